"""What a comparison says of itself: options without effect, runs that stopped, its files."""

import json
import math
from pathlib import Path

import pytest

import tacit
from tacit.cli.main import call
from tacit.core import BadInput
from tacit.experiment.compare import FILE, read_comparison, resume_comparison
from tacit.experiment.result import Run
from tacit.experiment.shared_options import with_common
from tacit.experiment.sweep import FILE as SWEEP
from tacit.experiment.sweep import read_sweep

QUICK = {"clients": 3, "workers": 0, "model": "logistic"}
AT_8 = {"epsilon": 8}
FLAGS = ["--clients", "3", "--workers", "0", "--model", "logistic"]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def printed(capsys):
    """Call the command line and return its exit code and what it prints."""

    def check(*args):
        capsys.readouterr()
        code = call(list(args))
        said = capsys.readouterr()
        return code, said.out, said.err

    return check


# ---- options that do not apply


def test_an_option_that_some_methods_lack_is_said_below_the_table_and_again_by_resume(printed):
    asked = ["compare", "fedavg", "dp_fedavg", "moments", "--rounds", "1", "--per-round", "2"]
    code, text, _ = printed(*asked, *FLAGS, "--out", "c")
    assert code == 0
    notes = {"per_round does not apply to dp_fedavg, moments", "rounds does not apply to moments"}
    assert notes <= set(text.splitlines())
    code, again, _ = printed("resume", "c")
    assert notes <= set(again.splitlines())
    assert notes == set(json.loads(Path(f"c/{FILE}").read_text())["notes"])


def test_an_option_that_applies_to_all_is_not_spoken_of(printed):
    code, text, _ = printed("compare", "fedavg", "local", "--rounds", "1", *FLAGS, "--out", "c")
    assert code == 0
    assert "does not apply" not in text


@pytest.mark.parametrize("option", [["--per-round", "2"], ["--sgd.lr", "0.1"], ["--sgd.lr=0.05"]])
@pytest.mark.parametrize("command", [["compare"], ["sweep", "--over", "epsilon=1"]])
def test_an_option_that_no_method_has_is_refused(option, command, printed, tmp_path):
    methods = ["moments", "moments:epsilon=2"]
    code, _, said = printed(command[0], *methods, *command[1:], *option, *FLAGS, "--out", "c")
    assert code == 2
    name = option[0].partition("=")[0].removeprefix("--").replace("-", "_")
    assert said.startswith(f"tacit: {name} = ")
    assert "none of moments, moments:epsilon=2 has it" in said
    assert not (tmp_path / "c").exists()


def test_a_value_that_is_the_default_elsewhere_is_taken_as_said():
    """Batches of 32 are usual, but not ldp_fl's own 64."""
    compared = tacit.compare(
        ["ldp_fl:rounds=1", "fedavg:rounds=1"], common={"sgd.batch": 32}, **QUICK
    )
    methods = [e.method for _, e in read_comparison(compared.folder).experiments()]
    assert [m.sgd.batch for m in methods] == [32, 32]


def test_the_command_line_takes_it_as_said_too(printed):
    flags = ["--rounds", "1", "--sgd.batch", "32"]
    assert printed("compare", "ldp_fl", "fedavg", *flags, *FLAGS, "--out", "c")[0] == 0
    methods = [e.method for _, e in read_comparison(Path("c")).experiments()]
    assert [m.sgd.batch for m in methods] == [32, 32]


def test_a_word_that_has_its_own_keeps_it_and_that_is_said(printed):
    code, text, _ = printed("compare", "fedavg:rounds=2", "local", "--rounds", "1", *FLAGS)
    assert code == 0
    assert "rounds: fedavg:rounds=2 keeps its own" in text.splitlines()


def test_python_has_the_same_notes_and_refusals():
    compared = tacit.compare(["fedavg", "moments"], common={"rounds": 1}, **QUICK)
    assert compared.notes == ["rounds does not apply to moments"]
    assert resume_comparison(compared.folder).notes == compared.notes
    with pytest.raises(BadInput, match=r"^mu = 0\.1: none of fedavg, scaffold has it"):
        tacit.compare(["fedavg", "scaffold"], common={"mu": 0.1}, **QUICK)


# ---- one epsilon for all


def test_methods_are_compared_at_one_epsilon_and_who_cannot_keep_it_is_named(printed):
    asked = ["compare", "moments", "udp", "fedavg", "--epsilon", "2", "--rounds", "1"]
    code, text, _ = printed(*asked, *FLAGS, "--out", "c")
    assert code == 0
    plan = read_comparison(Path("c"))
    folders = {word.partition(":")[0]: plan.runs_of(word)[0][0] for word in plan.methods}
    spent = {name: Run(Path("c") / folder).spent for name, folder in folders.items()}
    assert spent["moments"] == pytest.approx(2.0, rel=1e-3)
    assert spent["udp"] == pytest.approx(2.0, rel=1e-3)
    assert spent["fedavg"] == math.inf
    assert {
        "fedavg: epsilon = 2: updates are sent without noise; sgd.clip = 1, say, is DP-SGD",
        "epsilon is of an example against server in moments; of a client against server in udp",
    } <= set(text.splitlines())


@pytest.mark.parametrize(
    ("words", "common", "made"),
    [
        # a clip that is said for all makes it DP-SGD, whatever comes first
        (["fedavg"], {"epsilon": 8, "sgd.clip": 1.0}, ["fedavg:sgd.clip=1.0,epsilon=8"]),
        (["fedavg:sgd.clip=1", "fedavg"], AT_8, ["fedavg:sgd.clip=1,epsilon=8", "fedavg"]),
        (["moments:epsilon=3", "ldp_fl"], AT_8, ["moments:epsilon=3", "ldp_fl:epsilon=8"]),
        (["dafl", "dafl:main=open"], AT_8, ["dafl:epsilon=8", "dafl:main=open"]),
        (["gfl", "gfl:mode=paper"], AT_8, ["gfl:epsilon=8", "gfl:mode=paper"]),
    ],
)
def test_an_epsilon_goes_to_those_who_can_keep_it(words, common, made):
    assert with_common(words, common)[0] == made


def test_an_epsilon_that_nobody_can_keep_is_refused_and_so_is_one_that_is_none():
    with pytest.raises(BadInput, match=r"^fedavg: epsilon = 8: .*; scaffold: epsilon = 8: "):
        with_common(["fedavg", "scaffold"], {"epsilon": 8})
    with pytest.raises(BadInput, match=r"^epsilon = 8: none of fedmix has it"):
        with_common(["fedmix"], {"epsilon": 8})
    with pytest.raises(BadInput, match=r"^epsilon = -1"):
        tacit.compare(["moments", "fedavg"], common={"epsilon": -1.0}, **QUICK)


# ---- a budget

ENDS = "fedavg:rounds=6,sgd.clip=1,sgd.z=1"  # 1.7 for the first round, 0.5 and less for the next
CHEAP = "fedavg:rounds=2,sgd.clip=1,sgd.z=20"


def test_a_budget_stops_one_method_and_not_the_others(printed):
    code, text, _ = printed("compare", ENDS, CHEAP, "--budget", "3", *FLAGS, "--out", "c")
    assert code == 0
    rows = [line for line in text.splitlines() if line.startswith("fedavg:")]
    assert len(rows) == 2
    done = len(Path(f"c/{ENDS.replace(':', '-')}-s0/metrics.jsonl").read_text().splitlines())
    assert 0 < done < 6
    assert rows[0].endswith(f"stopped at round {done} of 6 (budget)")
    assert "stopped" not in rows[1]
    code, again, _ = printed("resume", "c")
    assert code == 0
    assert rows[0] in again.splitlines()


@pytest.mark.parametrize("methods", [[ENDS], [ENDS, CHEAP]])
def test_if_the_budget_stops_every_run_the_exit_code_says_so(methods, printed):
    code, text, said = printed("compare", *methods, "--budget", "0.01", *FLAGS, "--out", "c")
    assert code == 3
    assert text.count("stopped at round 0 of") == len(methods)
    assert said.splitlines()[-1].startswith("tacit: budget: every run was stopped by it")


def test_a_sweep_whose_every_point_is_stopped_says_so_too(printed):
    sweep = ["sweep", ENDS, "--over", "sgd.lr=0.1,0.2", "--budget", "0.01", *FLAGS, "--out", "c"]
    assert printed(*sweep)[0] == 3


def test_rows_from_python_say_where_they_stopped():
    compared = tacit.compare([ENDS, CHEAP], budget=3.0, repeats=2, **QUICK)
    first, second = compared.rows
    assert len(first.stopped) == 2
    assert all(0 < rounds < 6 for rounds in first.stopped)
    assert (first.rounds, second.rounds, second.stopped) == (6, 2, [])


# ---- files


@pytest.mark.parametrize("budget", [math.inf, 50.0])
def test_what_is_compared_is_valid_json(budget, tmp_path):
    compared = tacit.compare(["local:rounds=1"], budget=budget, out=tmp_path / "c", **QUICK)

    def refuse(word):
        raise AssertionError(word)

    raw = json.loads((tmp_path / "c" / FILE).read_text(), parse_constant=refuse)
    assert raw["setting"]["budget"] == ("inf" if budget == math.inf else 50.0)
    assert read_comparison(compared.folder).setting.budget == budget


def test_a_sweep_is_valid_json_whatever_it_sweeps(tmp_path):
    tacit.sweep("local:rounds=1", {"budget": [1.0, math.inf]}, out=tmp_path / "s", **QUICK)

    def refuse(word):
        raise AssertionError(word)

    json.loads((tmp_path / "s" / SWEEP).read_text(), parse_constant=refuse)
    assert read_sweep(tmp_path / "s").over == {"budget": [1.0, math.inf]}


def test_a_comparison_as_it_was_written_before_is_read(tmp_path):
    tacit.compare(["local:rounds=1"], out=tmp_path / "c", **QUICK)
    file = tmp_path / "c" / FILE
    raw = json.loads(file.read_text())
    del raw["notes"]
    raw["setting"]["budget"] = math.inf
    file.write_text(json.dumps(raw))
    assert "Infinity" in file.read_text()
    assert read_comparison(tmp_path / "c").setting.budget == math.inf


def test_tables_are_kept(printed, tmp_path):
    _, text, _ = printed("compare", "fedavg", "local", "--rounds", "1", *FLAGS, "--out", "c")
    kept = (tmp_path / "c/table.txt").read_text()
    assert kept.strip() in text
    assert kept.splitlines()[-1].startswith("local")
    rows = json.loads((tmp_path / "c/table.json").read_text())
    assert [row["method"] for row in rows] == ["fedavg:rounds=1", "local:rounds=1"]
    assert rows[0]["epsilon"]["example/server"] == "inf"
    assert 0 <= rows[0]["accuracy"][0] <= 1


def test_the_table_of_a_sweep_is_kept(printed, tmp_path):
    sweep = ["sweep", "fedavg", "--over", "sgd.lr=0.1,0.2", "--rounds", "1", *FLAGS, "--out", "s"]
    _, text, _ = printed(*sweep)
    assert (tmp_path / "s/table.txt").read_text().strip() in text
    rows = json.loads((tmp_path / "s/table.json").read_text())
    assert [row["at"] for row in rows] == [{"sgd.lr": 0.1}, {"sgd.lr": 0.2}]


@pytest.mark.parametrize("own", ["kd_dpfl:eps_1=8", "kd_dpfl:eps_2=8", "ldp_fl:epsilons=[8]"])
@pytest.mark.parametrize("epsilon", [3.0, 4.0, 8.0])  # the usual ones of these methods, too
def test_who_says_its_epsilon_in_another_way_keeps_it_and_that_is_said(own, epsilon):
    words, notes = with_common([own, "nbafl"], {"epsilon": epsilon})
    assert words == [own, f"nbafl:epsilon={epsilon}"]
    assert f"epsilon: {own} keeps its own" in notes
