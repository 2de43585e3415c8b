"""The grid, what is refused, sharing the work, and the table."""

import json
import math
from dataclasses import dataclass, field, replace
from typing import Literal

import pytest

from tacit.core import BadInput
from tacit.data import load
from tacit.experiment.compare import Row, run_all
from tacit.experiment.config import Setting
from tacit.experiment.rundir import Busy, RunDir
from tacit.experiment.sweep import (
    Point,
    Sweep,
    numbers,
    over_from,
    placed,
    raw_method,
    read_sweep,
    resume_sweep,
    sweep,
)
from tacit.experiment.watch import Nobody
from tacit.methods.fedavg import FedAvg
from tacit.methods.fedprox import FedProx
from tacit.report.pictures import draw_sweep
from tacit.report.tables import sweep_table

QUICK = {"clients": 4, "workers": 0}


def plan(over, *methods, repeats=1, **setting):
    raw = {type(m).__name__.lower(): raw_method(m) for m in methods or [FedAvg(rounds=1)]}
    return Sweep(raw, over, Setting(**QUICK | setting), repeats)


# ---- the grid
# --------------------------------------------------------------------------------------------------


def test_a_grid_is_every_method_at_every_combination():
    grid = plan({"sgd.lr": [0.1, 0.2], "clients": [2, 3]}, FedAvg(), FedProx()).points()
    assert len(grid) == 2 * 2 * 2
    assert grid[1] == Point("fedavg", {"sgd.lr": 0.1, "clients": 3})  # the last field moves fastest
    assert len({(p.word, *p.values.values()) for p in grid}) == 8


def test_a_point_sets_the_field_where_it_belongs_and_nothing_else():
    method, setting = placed(
        raw_method(FedProx(mu=0.3)), Setting(), {"sgd.lr": 0.5, "clients": 7, "rounds": 3}
    )
    assert method == FedProx(mu=0.3, rounds=3, sgd=replace(FedProx().sgd, lr=0.5))
    assert setting == Setting(clients=7)


def test_repeats_have_their_own_seeds_and_come_last():
    names = [name for name, _ in plan({"sgd.lr": [0.1, 1]}, repeats=2, seed=5).experiments()]
    assert names == [f"fedavg-sgd.lr={lr}-s{seed}" for seed in (5, 6) for lr in (0.1, 1)]
    assert len(set(names)) == 4


def test_only_numbers_can_be_swept():
    @dataclass
    class Inner:
        e: float = 0.5
        f: tuple[float, ...] = ()

    @dataclass
    class Outer:
        a: int = 1
        b: bool = True
        c: str = "word"
        d: Inner = field(default_factory=Inner)
        g: float | Literal["auto"] = "auto"

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "Inner", Inner)
        assert numbers(Outer) == ["a", "d.e", "g"]


def test_the_file_holds_the_whole_plan(tmp_path):
    given = plan({"clients": [2, 3], "sgd.lr": [0.1, 1]}, budget=math.inf)
    (tmp_path / "sweep.json").write_text(
        json.dumps({**vars(given), "setting": vars(given.setting)})
    )
    again = read_sweep(tmp_path)
    assert again == given
    assert [type(v) for v in again.over["clients"]] == [int, int]


# ---- refused in one line
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        (["sgd.lrr=1"], ["over (fedavg) = 'sgd.lrr'", "did you mean 'sgd.lr'?"]),
        (["mu=1"], ["over (fedavg) = 'mu'", "rounds", "clients"]),
        (["split=1"], ["'split'", "not a number"]),
        (["sgd=1"], ["'sgd'", "not a number"]),
        (["sgd.lr="], ["'sgd.lr='", "empty"]),
        (["sgd.lr"], ["'sgd.lr'", "FIELD=v1,v2"]),
        (["=1"], ["'=1'", "FIELD=v1,v2"]),
        (["sgd.lr=0.1,x"], ["'sgd.lr=0.1,x'", "'x' is not a number"]),
        (["sgd.lr=0.1,"], ["'' is not a number"]),
        (["sgd.lr=0.1,0.1"], ["different numbers"]),
        (["sgd.lr=nan"], ["different numbers"]),
        (["sgd.lr=1", "sgd.lr=2"], ["sgd.lr", "more than once"]),
        ([], ["over", "at least one"]),
    ],
)
def test_what_cannot_be_swept_is_refused_in_one_line(specs, words):
    with pytest.raises(BadInput) as e:
        plan(over_from(specs))
    assert all(word in str(e.value) for word in words), str(e.value)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({"sgd.lr": [0.1, -1]}, ["sgd.lr = -1", "above 0"]),
        ({"per_round": [1.5]}, ["per_round = 1.5", "integer"]),
        ({"per_round": [2, 9]}, ["per_round = 9", "at most 4"]),
        ({"rounds": [0, 1]}, ["rounds = 0", "at least 1"]),
    ],
)
def test_a_bad_value_leaves_no_folder_behind(over, words, tmp_path):
    with pytest.raises(BadInput) as e:
        sweep("fedavg", over, out=tmp_path / "out", **QUICK)
    assert all(word in str(e.value) for word in words), str(e.value)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_in_use_is_refused(tmp_path):
    (tmp_path / "something").touch()
    with pytest.raises(BadInput, match="empty folder"):
        sweep("fedavg:rounds=1", {"sgd.lr": [0.1]}, out=tmp_path, **QUICK)


# ---- running
# --------------------------------------------------------------------------------------------------


def test_points_are_runs_and_a_finished_one_is_not_repeated(tmp_path):
    done = sweep("fedavg:rounds=1", {"sgd.lr": [0.01, 0.1]}, repeats=2, out=tmp_path / "s", **QUICK)
    assert [len(row.accuracy) for _, row in done.rows] == [2, 2]
    files = sorted((tmp_path / "s").glob("*/metrics.jsonl"))
    assert len(files) == 4
    before = [f.read_bytes() for f in files]  # with the seconds that each round took
    again = resume_sweep(tmp_path / "s")
    assert [f.read_bytes() for f in files] == before
    assert [row for _, row in again.rows] == [row for _, row in done.rows]


def test_a_run_that_diverges_or_has_spent_its_budget_does_not_stop_the_others(tmp_path):
    done = sweep("fedavg:rounds=2", {"sgd.lr": [1e30, 0.1]}, out=tmp_path / "lr", **QUICK)
    assert list(done.stopped) == ["fedavg-rounds=2-sgd.lr=1e+30-s0"]
    assert "not finite" in done.stopped["fedavg-rounds=2-sgd.lr=1e+30-s0"]
    assert [len(row.accuracy) for _, row in done.rows] == [0, 1]
    word = "fedavg:rounds=3,sgd.clip=1.0,sgd.z=2.0,sgd.batch=64"
    done = sweep(word, {"budget": [0.1, 1000]}, out=tmp_path / "budget", noise="seeded", **QUICK)
    assert ["budget = 0.1" in why for why in done.stopped.values()] == [True]
    assert done.rows[1][1].epsilon["example/server"] < 1000


def test_a_run_that_another_process_holds_is_left_to_it(tmp_path):
    """The first run is held until the others are done; then it is found done, not run again."""
    runs = plan({"sgd.lr": [0.1, 0.2, 0.3]}).experiments()
    held = RunDir(tmp_path / runs[0][0])
    held.folder.mkdir(parents=True)
    held.lock()
    order = []

    class Watch(Nobody):
        def begin(self, label, rounds):
            order.append(label)
            if len(order) == 2:
                held.unlock()

    assert run_all(tmp_path, runs, load("digits"), Watch()) == {}
    assert order == [name for name, _ in (*runs[1:], runs[0])]


def test_a_lock_is_held_once_by_one_and_by_no_other(tmp_path):
    mine, other = RunDir(tmp_path), RunDir(tmp_path)
    mine.lock()
    mine.lock()
    with pytest.raises(Busy, match="another process"):
        other.lock()
    mine.unlock()
    other.lock()
    other.unlock()


# ---- table and picture
# -----------------------------------------------------------------------------------------------


def row(word, accuracy, **measured):
    epsilon, spent, protects = {"example/server": 1.0}, 1.0, "example/server"
    return Row(word, accuracy, [], False, epsilon, spent, protects, measured, 1.0, 2.0, "")


def test_the_table_has_mean_deviation_epsilon_and_what_is_measured():
    rows = [
        (Point("a", {"epsilon": 1}), row("a", [0.5, 0.7], labels=[0.25, 0.25])),
        (Point("b", {"epsilon": 1}), row("b", [])),
    ]
    head, _, first, second = sweep_table(rows).splitlines()
    assert head.split() == [
        "method",
        "epsilon",
        "accuracy",
        "%",
        "labels",
        "%",
        "eps",
        "for",
        "seconds",
    ]
    assert "60.0 ± 14.1" in first  # the deviation of a sample: 20 / sqrt 2
    assert "25.0 ± 0.0" in first
    assert second.split() == ["b", "1", "-", "-", "1", "example/server", "2.0"]


@pytest.mark.parametrize(
    ("values", "scale"), [([1, 30], "linear"), ([1, 31], "log"), ([0, 100], "linear")]
)
def test_the_axis_is_logarithmic_where_values_span_much(values, scale, tmp_path, monkeypatch):
    from matplotlib.axes import Axes

    scales = []
    monkeypatch.setattr(Axes, "set_xscale", lambda self, value, **kw: scales.append(value))
    rows = [(Point("a", {"epsilon": v}), row("a", [0.5, 0.6], labels=[0.2, 0.3])) for v in values]
    files = draw_sweep(rows, tmp_path / "sweep")
    assert [f.suffix for f in files] == [".png", ".svg"]
    assert all(f.stat().st_size > 1000 for f in files)
    assert scales == (["log"] if scale == "log" else [])
