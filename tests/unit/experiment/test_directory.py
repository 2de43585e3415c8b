"""A run directory: what made it, where it is said to be, more rounds of it, none left behind."""

import json
import re
import subprocess
import sys
from dataclasses import fields, replace
from datetime import UTC, datetime

import pytest

import tacit
from tacit.cli import runs, sweeps
from tacit.cli.main import call
from tacit.core import BadInput
from tacit.experiment import about
from tacit.experiment.rundir import RunDir
from tacit.experiment.watch import Nobody
from tacit.methods import METHODS

QUICK = {"clients": 3, "workers": 0, "model": "logistic"}
FLAGS = ["--clients", "3", "--workers", "0", "--model", "logistic"]
PRIVATE = "fedavg:rounds=2,sgd.clip=1,sgd.z=1"


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


# ---- what made a run


def test_a_run_says_what_made_it(tmp_path):
    before = datetime.now(UTC).replace(microsecond=0)
    tacit.run("local:rounds=1", out=tmp_path / "run", **QUICK)
    (start,) = json.loads((tmp_path / "run/about.json").read_text())["starts"]
    assert start["tacit"] == tacit.__version__
    assert start["python"] == ".".join(map(str, sys.version_info[:3]))
    assert before <= datetime.fromisoformat(start["started"]) <= datetime.now(UTC)
    assert set(start) == {"started", "command", "tacit", "commit", "python", "torch", "numpy"}


def test_a_resumed_run_has_two_starts_and_a_finished_one_no_more(tmp_path):
    run = tmp_path / "run"

    class Impatient(Nobody):
        def finished_round(self, line, rounds):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tacit.run("local:rounds=2", out=run, watch=Impatient(), **QUICK)
    tacit.resume(run)
    assert len(about.starts(run)) == 2
    tacit.resume(run)
    assert len(about.starts(run)) == 2


@pytest.mark.parametrize("text", [None, "", "[]", '{"starts": 3}', "{"])
def test_a_run_without_it_goes_on(text, tmp_path):
    run = tmp_path / "run"
    tacit.run("local:rounds=1", out=run, **QUICK)
    (run / about.FILE).unlink()
    if text is not None:
        (run / about.FILE).write_text(text)
    assert tacit.resume(run).accuracy == tacit.resume(run, rounds=1).accuracy
    tacit.resume(run, rounds=2)
    assert len(about.starts(run)) == 1


def test_the_commit_is_that_of_a_checkout_and_only_of_one(tmp_path):
    assert about.commit(tmp_path / "nowhere") is None
    root = tmp_path / "checkout"
    git = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    (root / "file").write_text("1")
    subprocess.run([*git, "add", "file"], check=True)
    subprocess.run([*git, "commit", "-qm", "first"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    assert about.commit(root) == head.stdout.strip()
    about.commit.cache_clear()
    (root / "file").write_text("2")
    assert about.commit(root) == f"{head.stdout.strip()}-dirty"


# ---- where it is


def test_the_folder_is_said_at_the_start(capsys):
    assert call(["run", "local", "--rounds", "1", *FLAGS]) == 0
    assert capsys.readouterr().err.startswith("run directory: runs/local-digits-iid-s0\n")
    assert call(["compare", "local", "--rounds", "1", *FLAGS]) == 0
    assert capsys.readouterr().err.startswith("run directory: runs/compare\n")
    assert call(["sweep", "local", "--over", "seed=1", "--rounds", "1", *FLAGS]) == 0
    assert capsys.readouterr().err.startswith("run directory: runs/sweep\n")


class Impatient(Nobody):
    """Presses Ctrl-C after the first round."""

    def __init__(self, label, track="none"):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def finished_round(self, line, rounds):
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("command", "folder"),
    [
        (["run", "local"], "runs/local-digits-iid-s0"),
        (["compare", "local"], "runs/compare"),
        (["sweep", "local", "--over", "seed=1"], "runs/sweep"),
    ],
)
def test_ctrl_c_names_the_command_that_goes_on(command, folder, capsys, monkeypatch):
    said = f"tacit: stopped; `tacit resume {folder}` continues it"
    with monkeypatch.context() as patch:
        patch.setattr(runs, "watcher", Impatient)
        patch.setattr(sweeps, "watcher", Impatient)
        assert call([*command, "--rounds", "2", *FLAGS]) == 130
        assert capsys.readouterr().err.splitlines()[-1] == said
        assert call(["resume", folder]) == 130
        assert capsys.readouterr().err.splitlines()[-1] == said
    assert call(["resume", folder]) == 0


# ---- more rounds


def test_a_longer_run_is_the_one_that_was_long_from_the_start(tmp_path, capsys):
    how = {"noise": "seeded", **QUICK}
    tacit.run("scaffold:rounds=3,per_round=2", out=tmp_path / "long", **how)
    tacit.run("scaffold:rounds=1,per_round=2", out=tmp_path / "short", **how)
    assert call(["resume", "short", "--rounds", "3"]) == 0
    assert "after round 3" in capsys.readouterr().out
    models = [(tmp_path / run / "model.safetensors").read_bytes() for run in ("long", "short")]
    assert models[0] == models[1]
    assert RunDir.open(tmp_path / "short").experiment().method.rounds == 3
    ledgers = [RunDir.open(tmp_path / run).ledger() for run in ("long", "short")]
    assert ledgers[0] == ledgers[1]


def test_given_noise_may_go_on_and_spends_more(tmp_path):
    short = tacit.run(PRIVATE, out=tmp_path / "run", **QUICK)
    before = short.spent
    longer = tacit.resume(tmp_path / "run", rounds=4)
    assert longer.rounds == 4
    assert before < longer.spent < 2 * before


def test_a_run_that_its_budget_stopped_stays_within_it(tmp_path):
    with pytest.raises(tacit.experiment.result.Stopped):
        tacit.run(PRIVATE, out=tmp_path / "run", budget=2.9, **QUICK)
    with pytest.raises(tacit.experiment.result.Stopped):
        tacit.resume(tmp_path / "run", rounds=5)
    assert tacit.experiment.result.Run(tmp_path / "run").spent <= 2.9


WITH_DP_SGD = ["fedprox", "scaffold", "dp_scaffold", "fednova", "centralised", "local"]
SOLVED = [
    "fedavg:rounds=2,sgd.clip=1,sgd.epsilon=4,sgd.batch=1000",
    "ldp_fl:rounds=2,sgd.batch=1000",
    "ldp_fl:rounds=2,mode=update",
    "ldp_fl:rounds=2,mode=paper",
    "udp:rounds=2",
    "udp:rounds=2,mode=paper",
    "nbafl:rounds=2",
    "cuag:rounds=2,mu=1",
    "cuag:rounds=2,epsilon=3",
    "dp_fedavg:rounds=2,epsilon=4",
    "prifedsync:rounds=2,epsilon=4",
    *(f"{name}:rounds=2,epsilon=4,sgd.clip=1,sgd.batch=1000" for name in WITH_DP_SGD),
]
GIVEN = ["fedavg", "dp_fedavg", "dp_scaffold", "cl_fl", "prifedsync", "pfldyn", "local"]


@pytest.mark.parametrize("word", SOLVED)
def test_noise_that_was_solved_for_so_many_rounds_allows_no_more(word, tmp_path):
    run = tmp_path / "run"
    tacit.run(word, out=run, **QUICK)
    config = (run / "config.toml").read_bytes()
    with pytest.raises(BadInput, match=r"^rounds = 3: the noise of this run was chosen for 2 rou"):
        tacit.resume(run, rounds=3)
    assert (run / "config.toml").read_bytes() == config
    assert tacit.resume(run, rounds=2).rounds == 2


@pytest.mark.parametrize("word", GIVEN)
def test_noise_that_was_given_allows_more(word, tmp_path):
    tacit.run(f"{word}:rounds=1", out=tmp_path / "run", **QUICK)
    assert tacit.resume(tmp_path / "run", rounds=2).rounds == 2


def test_every_method_is_one_or_the_other():
    """So that a new method with an epsilon of its own is thought of here."""
    named = {word.partition(":")[0] for word in [*SOLVED, *GIVEN]}
    solving = {
        name
        for name, method in METHODS.items()
        if any(f.name.startswith("eps") for f in fields(method)) and name not in ("moments",)
    }
    solving -= {"fedavgm", "fedadam", "mr_mtl", "ditto", "moon"}  # as fedavg; moon refuses one
    assert solving - named <= {"dafl", "gfl", "kd_dpfl", "pate"}  # they need a split of their own


def test_what_cannot_have_more_rounds_is_refused(tmp_path, capsys):
    tacit.run("moments", out=tmp_path / "one", **QUICK)
    with pytest.raises(BadInput, match=r"rounds = 3: moments has no rounds to add"):
        tacit.resume(tmp_path / "one", rounds=3)
    tacit.run("local:rounds=2", out=tmp_path / "two", **QUICK)
    for rounds in (1, 2.5, -1):
        with pytest.raises(BadInput, match=r"^rounds = "):
            tacit.resume(tmp_path / "two", rounds=rounds)
    tacit.compare(["local:rounds=1"], out=tmp_path / "c", **QUICK)
    for folder in ("c", "c/local-rounds=1-s0"):
        assert call(["resume", folder, "--rounds", "3"]) == 2
        assert "one of several runs" in capsys.readouterr().err


# ---- nothing is left behind


@pytest.mark.parametrize("out", [None, "deep/er/run"])
@pytest.mark.parametrize(
    "refused", [["moments", "--features", "nosuch"], ["dp_fedavg", "--epsilon", "1e-300"]]
)
def test_a_refused_run_leaves_nothing_behind(refused, out, tmp_path, capsys):
    where = ["--out", out] if out else []
    assert call(["run", *refused, *FLAGS, *where]) == 2
    assert re.match(r"tacit: (features|epsilon) = ", capsys.readouterr().err.splitlines()[-1])
    assert list(tmp_path.iterdir()) == []


def test_somebody_else_s_files_stay(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/notes.txt").write_text("mine")
    assert call(["run", "moments", "--features", "nosuch", *FLAGS, "--out", "run"]) == 2
    assert [f.name for f in (tmp_path / "run").iterdir()] == ["notes.txt"]


def test_what_has_left_a_client_stays_in_the_ledger(tmp_path):
    """Training that diverges in the first round has told so."""
    assert call(["run", "fedavg", "--sgd.lr", "1e30", *FLAGS[:-1], "mlp", "--out", "run"]) == 2
    assert len(RunDir.open(tmp_path / "run").ledger()) == 3


def test_a_budget_too_small_for_the_first_step_keeps_what_was_asked(tmp_path, capsys):
    """It is a result, and the run may go on with more."""
    flags = ["--sgd.clip", "1", "--sgd.z", "1", "--rounds", "1", "--budget", "0.01"]
    assert call(["run", "fedavg", *flags, *FLAGS, "--out", "run"]) == 3
    directory = RunDir.open(tmp_path / "run")
    assert len(directory.ledger()) == 0
    old = directory.experiment()
    directory.rewrite(replace(old, setting=replace(old.setting, budget=50.0)))
    assert call(["resume", "run"]) == 0
