"""What every command prints and leaves behind when all is well."""

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from tacit.cli import listings, main, runs
from tacit.cli.main import COMMANDS, call
from tacit.cli.progress import Lines
from tacit.experiment.rundir import RunDir

Printed = Callable[..., str]
SERIAL = ["--workers", "0"]
FEW = ["--rounds", "2", *SERIAL]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "data"))


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Printed:
    """Call the command line and return what it prints."""

    def check(*args: str) -> str:
        capsys.readouterr()
        try:
            code = call(list(args))
        except SystemExit as e:  # help of flags
            code = int(e.code or 0)
        assert code == 0
        out = capsys.readouterr().out
        assert "\x1b" not in out  # no colours where there is no terminal
        return out

    return check


def lines_of(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


# ---- help
# --------------------------------------------------------------------------------------------------

HELP = {
    "": [
        *COMMANDS,
        "exit codes: 0",
        "2 wrong input or training that diverged",
        "130 interrupted",
        "--help",
    ],
    "run": ["METHOD", "EXPERIMENT.toml", "fedavg", "scaffold", "--help"],
    "run fedprox": [
        "--mu",
        "--rounds",
        "--per-round",
        "--sgd.lr",
        "--sgd.epochs",
        "--data",
        "--split",
        "--out",
    ],
    "resume": ["DIR"],
    "sweep": ["METHOD", "FIELD", "--over", "resume"],
    "sweep fedprox": ["--over", "--repeats", "--mu", "--data", "--out"],
    "compare": [
        "--rounds",
        "--repeats",
        "--sgd.lr",
        "--data",
        "--split",
        "--seed",
        "--workers",
        "--out",
        "fedavg",
    ],
    "privacy": ["--epsilon", "--z", "--q", "--steps", "--paper", "--plot"],
    "privacy ldp_fl": ["--mode", "--epsilon", "--paper", "--plot", "--rounds"],
    "methods": ["methods"],
    "data": ["list", "get NAME", "check NAME", "mnist", "TACIT_DATA"],
    "split": ["--data", "--split", "--clients", "--seed", "--out", "label:k", "dirichlet:beta"],
    "doctor": ["doctor"],
    "predict": ["RUN", "INPUTS", "--out", "--client", "--model", "--trust-code"],
    "export": ["RUN", "--to", "--out", "--client", "--trust-code"],
    "reproduce": ["PAPER/ITEM", "--cells", "--only", "--scale"],
    "report": ["DIR", "--out", "--for", "--metric"],
    "view": ["DIR", "--port", "--open"],
    "serve": ["EXPERIMENT.toml", "--keys", "--port", "--deadline", "--insecure"],
    "join": ["--server", "--name", "--data", "--budget", "--metrics", "--insecure"],
    "keys": ["init DIR", "new NAME", "add DIR NAME FILE.pub"],
    "synth": ["--epsilon", "--generator", "--samples", "--out", "--gan.epochs"],
    "encode": ["--data", "--public", "--model", "--out", "--epochs", "--features FILE"],
}


@pytest.mark.parametrize("command", HELP)
def test_help(command: str, printed: Printed) -> None:
    text = printed(*command.split(), "--help")
    assert [w for w in HELP[command] if w not in text] == []


def test_every_command_has_help() -> None:
    assert {h.split()[0] for h in HELP if h} == set(COMMANDS)


def test_version(printed: Printed) -> None:
    assert re.fullmatch(r"tacit \d+\.\d+\.\d+\n", printed("--version"))


def test_help_does_not_wait_for_torch() -> None:
    code = (
        "import sys; from tacit.cli.main import call; call(['--help']); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


# ---- run and resume
# --------------------------------------------------------------------------------------------------


def test_run_leaves_a_run_directory(tmp_path: Path, printed: Printed) -> None:
    text = printed("run", "fedavg", *FEW, "--out", "first")
    run = tmp_path / "first"
    assert re.search(r"fedavg: accuracy \d+\.\d\d% after round 2", text)
    assert "eps inf for one example against the server, delta 1e-05: fedavg.train sends dx" in text
    assert "without noise" in text
    assert str(Path("first") / "accuracy.png") in text
    for name in (
        "accuracy.png",
        "accuracy.svg",
        "model.safetensors",
        "checkpoint/state-000002.safetensors",
        "manifest.json",
        "ledger.jsonl",
    ):
        assert (run / name).stat().st_size > 0
    assert not list(run.rglob("*.part"))

    metrics = lines_of(run / "metrics.jsonl")
    assert [line["round"] for line in metrics] == [1, 2]
    for line in metrics:
        assert 0 <= float(str(line["accuracy"])) <= 1
        assert math.isfinite(float(str(line["loss"])))
        assert line["epsilon"]["example/server"] == "inf"  # type: ignore[index]
        assert all(float(str(line[k])) > 0 for k in ("bytes_up", "bytes_down", "seconds"))
    lines = lines_of(run / "ledger.jsonl")
    assert [line["rounds"] for line in lines] == ["0-1"] * 10  # every client in every round

    # The configuration is an experiment file, and gives the same model again, also with worker
    # processes.
    printed("run", "first/config.toml", "--workers", "2", "--out", "again")
    assert (tmp_path / "again/model.safetensors").read_bytes() == (
        run / "model.safetensors"
    ).read_bytes()
    assert (tmp_path / "again/ledger.jsonl").read_bytes() == (run / "ledger.jsonl").read_bytes()

    # A finished run is not run again.
    kept = (
        "config.toml",
        "metrics.jsonl",
        "ledger.jsonl",
        "model.safetensors",
        "checkpoint/state-000002.safetensors",
        "manifest.json",
    )
    before = {f: (run / f).read_bytes() for f in kept}
    assert printed("resume", "first") == text
    assert {f: (run / f).read_bytes() for f in kept} == before


def test_a_run_of_personal_models_says_how_much_they_differ(
    tmp_path: Path, printed: Printed
) -> None:
    text = printed("run", "local", *FEW, "--out", "own")
    found = re.search(
        r"own models (\S+)% \(± (\S+) over clients, worst (\S+)%\) after round 2", text
    )
    assert found
    accuracies = np.array(list(RunDir.open(tmp_path / "own").metrics()[-1]["per_client"].values()))
    want = [100 * accuracies.mean(), 100 * accuracies.std(), 100 * accuracies.min()]
    assert [float(x) for x in found.groups()] == pytest.approx(want, abs=0.06)


def test_flags_override_the_file(tmp_path: Path, printed: Printed) -> None:
    (tmp_path / "e.toml").write_text(
        "clients = 5\nworkers = 0\nseed = 3\n"
        '[method]\nname = "fedprox"\nrounds = 9\nmu = 0.5\n[method.sgd]\nepochs = 2\n'
    )
    printed("run", "e.toml", "--rounds", "1", "--sgd.lr", "0.01", "--seed", "4", "--out", "run")
    config = (tmp_path / "run/config.toml").read_text().splitlines()
    assert {"clients = 5", "seed = 4", "rounds = 1", "mu = 0.5", "epochs = 2", "lr = 0.01"} <= set(
        config
    )


def test_runs_get_a_folder_of_their_own(tmp_path: Path, printed: Printed) -> None:
    for _ in range(2):
        printed("run", "local", "--rounds", "1", "--split", "label:2", *SERIAL)
    assert sorted(f.name for f in (tmp_path / "runs").iterdir()) == [
        "local-digits-label2-s0",
        "local-digits-label2-s0-2",
    ]


def test_no_rounds(tmp_path: Path, printed: Printed) -> None:
    assert "no round was run" in printed("run", "fedavg", "--rounds", "0", *SERIAL, "--out", "run")
    assert (tmp_path / "run/model.safetensors").exists()


def model_of(folder: Path) -> bytes | None:
    file = folder / "model.safetensors"
    return file.read_bytes() if file.exists() else None


@pytest.mark.parametrize("word", ["scaffold", "local"])
def test_killed_before_the_first_checkpoint(
    word: str, tmp_path: Path, printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger and the first line of metrics are written before the first checkpoint.

    Neither may come twice.
    """
    printed("run", word, *FEW, "--out", "whole")
    whole = tmp_path / "whole"
    model, ledger = model_of(whole), lines_of(whole / "ledger.jsonl")
    assert (model is None) == (word == "local")  # it has no model of everybody's

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(RunDir, "save", killed)
        assert call(["run", word, *FEW, "--out", "run"]) == 130
    assert [line["round"] for line in lines_of(run / "metrics.jsonl")] == [1]
    assert not list((run / "checkpoint").glob("state*"))
    printed("resume", "run")
    assert [line["round"] for line in lines_of(run / "metrics.jsonl")] == [1, 2]
    assert model_of(run) == model
    assert lines_of(run / "ledger.jsonl") == ledger


def test_interrupted(
    tmp_path: Path,
    printed: Printed,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After Ctrl-C the model on disk is that of the last finished round,
    and the run goes on from there.
    """
    printed("run", "fedavg", *FEW, "--out", "two")

    class Impatient(Lines):
        def answered(self, done: int, of: int) -> None:
            if self.seen == 2:
                raise KeyboardInterrupt

        def finished_round(self, line: dict[str, object], rounds: int) -> None:
            self.seen = line["round"]

        seen: object = 0

    with monkeypatch.context() as patch:
        patch.setattr(runs, "watcher", lambda label, track: Impatient(label))
        assert call(["run", "fedavg", "--rounds", "3", *SERIAL, "--out", "run"]) == 130
    assert "tacit resume" in capsys.readouterr().err
    assert (tmp_path / "run/model.safetensors").read_bytes() == (
        tmp_path / "two/model.safetensors"
    ).read_bytes()
    printed("resume", "run")
    assert [line["round"] for line in lines_of(tmp_path / "run/metrics.jsonl")] == [1, 2, 3]


@pytest.mark.parametrize(
    ("command", "how"),
    {
        "serve": "; `tacit serve RUN` continues from the last finished round",
        "synth": "",
        "encode": "",
        "privacy": "",
    }.items(),
)
def test_interrupted_elsewhere(
    command: str, how: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(args: object) -> None:
        raise KeyboardInterrupt

    module, _, function = COMMANDS[command][0].partition(":")
    monkeypatch.setattr(f"{module}.{function}", interrupted)
    assert call([command]) == 130
    assert capsys.readouterr().err == f"\ntacit: interrupted{how}\n"


def test_a_command_listens_for_ctrl_c_before_it_imports_anything_that_takes_long() -> None:
    """Until then Python answers, with a traceback."""
    code = """
import sys
sys.path.insert(0, sys.argv[1])
from tacit.cli import interrupts, main
interrupts.at_once = lambda: sys.exit(" ".join(sys.modules))
main.main()
"""
    source = Path(main.__file__).parents[2]
    command = [sys.executable, "-S", "-c", code, str(source)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    loaded = set(ended.stderr.split())
    assert {"tacit", "tacit.core", "tacit.cli.main", "signal"} <= loaded
    assert not loaded & {"ast", "importlib", "numpy", "pathlib", "re", "torch", "typing"}


HEAD = [("--help", ""), ("methods", "1")]
HEADS = [(c, u) for c in ("--help", "methods", "compare --help") for u in ("", "1")]


@pytest.mark.parametrize(
    ("command", "unbuffered"),
    [pytest.param(*h, marks=() if h in HEAD else pytest.mark.slow) for h in HEADS],
)
def test_nobody_reads_the_output(
    command: str, unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `tacit ... | head -1`, whether the first line fails or the last flush."""
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    code = "import sys; from tacit.cli.main import main; sys.argv[0] = 'tacit'; main()"
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run(
        [sys.executable, "-c", code, *command.split()], stdout=write, stderr=subprocess.PIPE
    )
    os.close(write)
    assert ended.returncode == 141
    assert b"roken pipe" not in ended.stderr
    assert b"Traceback" not in ended.stderr


def test_a_pipe_that_breaks_elsewhere_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(args: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("tacit.cli.listings.methods", broken)
    assert call(["methods"]) == 2
    assert capsys.readouterr().err == "tacit: methods: Broken pipe\n"


# ---- compare
# --------------------------------------------------------------------------------------------------


def test_compare(tmp_path: Path, printed: Printed) -> None:
    text = printed(
        "compare", "fedavg", "fedprox:mu=0.1", "local", *FEW, "--out", "both", "--split", "label:2"
    )
    assert "digits, label:2, 10 clients, 1 seed" in text
    for name in ("fedavg", "fedprox", "local"):
        assert re.search(rf"^\W*{name}\b.*\d", text, re.MULTILINE)
    assert re.search(r"^\W*fedavg\b.*\binf\b", text, re.MULTILINE)
    assert re.search(r"eps of fedavg.*: .*without noise", text)
    assert "±" not in text
    for name in (
        "accuracy.png",
        "accuracy.svg",
        "comparison.json",
        "fedavg-rounds=2-s0/model.safetensors",
    ):
        assert (tmp_path / "both" / name).stat().st_size > 0


def test_compare_with_repeats_and_continue(tmp_path: Path, printed: Printed) -> None:
    text = printed("compare", "fedavg", "scaffold", *FEW, "--repeats", "2", "--out", "all")
    assert "2 seeds" in text
    assert len(re.findall(r"\d\s*±\s*\d", text)) >= 2

    # As after a kill: the last run is missing, the one before lacks its end, the others are
    # finished.
    folder = tmp_path / "all"
    *finished, unfinished, missing = [
        folder / f"{m}-rounds=2-s{s}" for s in (0, 1) for m in ("fedavg", "scaffold")
    ]
    models = {
        run: (run / "model.safetensors").read_bytes() for run in (*finished, unfinished, missing)
    }
    metrics = {run: (run / "metrics.jsonl").read_bytes() for run in finished}
    for file in sorted(missing.rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    (missing / "checkpoint" / "clients").mkdir(parents=True)  # a kill between this and config.toml
    (unfinished / "checkpoint/state-000002.safetensors").unlink()
    (unfinished / "model.safetensors").unlink()
    again = printed("resume", "all")
    # with the same seconds
    assert {run: (run / "metrics.jsonl").read_bytes() for run in finished} == metrics
    assert {run: (run / "model.safetensors").read_bytes() for run in models} == models
    assert (
        re.findall(r"\d+\.\d+ ± \d+\.\d+", again)[:1]
        == re.findall(r"\d+\.\d+ ± \d+\.\d+", text)[:1]
    )


# ---- what there is
# --------------------------------------------------------------------------------------------------


def test_split(tmp_path: Path, printed: Printed) -> None:
    text = printed(
        "split", "--split", "label:1", "--clients", "10", "--out", "pictures/label0.5.png"
    )
    assert len(text.splitlines()) > 10
    for name in ("label0.5.png", "label0.5.svg"):
        assert str(Path("pictures") / name) in text
        assert (tmp_path / "pictures" / name).stat().st_size > 0


def test_a_platform_without_poll_or_sysconf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("select.poll")
    assert main._reader_has_gone()
    monkeypatch.setattr("os.sysconf", Mock(side_effect=ValueError("unrecognized name")))
    assert listings._memory() == (True, "not known on this system")
    monkeypatch.delattr("os.sysconf")
    assert listings._memory() == (True, "not known on this system")


def test_doctor_methods_data(tmp_path: Path, printed: Printed) -> None:
    text = printed("doctor")
    assert [
        w
        for w in (
            "python",
            "processors",
            "torch",
            "precision",
            "dp-sgd",
            "disk",
            "digits",
            str(tmp_path / "data"),
        )
        if w not in text
    ] == []
    text = printed("methods")
    assert [
        w for w in ("fedavg", "scaffold", "centralised", "mlp", "module:Class") if w not in text
    ] == []
    text = printed("data")
    assert [
        w
        for w in ("digits", "mnist", "missing", "tacit data get svhn", str(tmp_path / "data"))
        if w not in text
    ] == []
    assert printed("data", "list") == text
    assert printed("data", "check", "digits") == printed("data", "get", "digits")
    assert "1,437 train and 360 test examples of 1x8x8, 10 classes" in printed(
        "data", "check", "digits"
    )


def test_an_interpreter_is_enough(tmp_path):
    """`python -m tacit` is the command, and a run directory says so."""
    words = ["run", "local", "--rounds", "1", "--workers", "0", "--out", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, "-m", "tacit", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "files in" in done.stdout
    started = json.loads((tmp_path / "run" / "about.json").read_text())["starts"][0]
    assert started["command"] == f"tacit {' '.join(words)}"
