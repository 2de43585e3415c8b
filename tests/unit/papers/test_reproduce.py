"""A made-up paper on digits is run, resumed, judged and written down."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tacit.cli.reproductions import say_what_stayed
from tacit.core import BadInput, Known
from tacit.engines.recall import MARK, Made
from tacit.experiment import reproduce
from tacit.experiment.config import Experiment, Setting
from tacit.experiment.measures import _OF_RUNS, value_of
from tacit.experiment.reproduce import (
    Reproduction,
    able,
    chosen,
    experiments_of,
    folder_name,
    is_of_today,
)
from tacit.experiment.result import Run
from tacit.experiment.rundir import RunDir
from tacit.experiment.work import Work, seconds_of, work_of
from tacit.methods.fedavg import FedAvg
from tacit.methods.spec import method_from_spec
from tacit.papers.measured import (
    Measured,
    add_results,
    merged,
    read_results,
    results_of,
    write_results,
)
from tacit.papers.published import Claim, Paper, paper, papers, read_paper
from tacit.report.pictures import new_axes
from tacit.report.reproduction import cell_table, claims_table, matrix, page, state, verdict
from tacit.report.reproduction_figures import _published, draw_item, place_of

MADE_UP = """
name = "Made up"
by = "nobody"
method = "fedavg"
rules = { rounds = 2, "sgd.lr" = 0.1 }
setting = { data = "digits", split = "label:2", clients = 4, model = "logistic", engine = "serial" }

[presets]
two = "table1/a"

[items.table1]
title = "Accuracy"
short = { rounds = 1, "setting.eval_every" = 1 }
[items.table1.columns]
a = {}
b = { method = { "sgd.epochs" = 2 } }
far = { setting = { data = "svhn" }, why = "no SVHN" }
[items.table1.rows]
fedavg = { method = "fedavg", published = [50.0, 60.0, nan] }
fedprox = { method = ["fedprox:mu=0.1", "fedprox:mu=1.0"], published = [40.0, 70.0, nan] }
[[items.table1.claims]]
says = "fedavg above fedprox"
order = ["a/fedavg", "a/fedprox"]

[items.figure1]
like = "table1"
title = "Over rounds"
draws = "curves"
only = ["a"]
curves = ["fedavg"]

[items.figure3]
like = "table1"
title = "Seconds"
measure = "seconds"
only = ["a"]
curves = ["fedavg"]

[items.figure2]
title = "By formula"
measure = "formula"
draws = "lines"
[items.figure2.columns]
"1" = { x = 1.0, given = { t = 1 } }
"300" = { x = 300.0, given = { t = 300 } }
[items.figure2.rows]
eps = { formula = "dp_scaffold_epsilon", published = [1.52, 26.28] }
"""


@pytest.fixture(scope="module")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> Paper:
    file = tmp_path_factory.mktemp("papers") / "made_up.toml"
    file.write_text(MADE_UP)
    return read_paper(file)


def of(made: Paper, item: str, out: Path, repeats: int = 1, *only: str) -> Reproduction:
    cells = chosen(made.items[item], only)
    return Reproduction(made, item, cells, "short", repeats, out, {"workers": 0})


@pytest.fixture(scope="module")
def done(made_up: Paper, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Measured]]:
    out = tmp_path_factory.mktemp("out")
    return out, of(made_up, "table1", out, 1, "a").conduct()


def test_a_cell_has_rules_columns_its_own_word_and_the_reduction_in_turn(made_up: Paper) -> None:
    cell = made_up.items["table1"].cells["b/fedprox"]
    full, short = (experiments_of(made_up, cell, scale) for scale in ("full", "short"))
    assert [e.method for e in full] == [
        method_from_spec(f"fedprox:mu={mu},rounds=2,sgd.lr=0.1,sgd.epochs=2") for mu in (0.1, 1.0)
    ]
    assert [e.method.rounds for e in short] == [1, 1]
    assert {e.setting.noise for e in full} == {"seeded"}
    own = reproduce.method_of("fedavg:rounds=9", {"rounds": 2, "no.such": 1}, {"sgd.batch": 7})
    assert own == method_from_spec("fedavg:rounds=9,sgd.batch=7")


def test_what_cannot_run_is_left_out_unless_nothing_else_was_asked_for() -> None:
    table = paper("dafl").items["table3"]
    asked = chosen(table, ("scaffold",))
    left = able(asked)
    assert {c.key for c in asked} - {c.key for c in left} == {
        "svhn/1-label/scaffold",
        "svhn/2-label/scaffold",
    }
    svhn = chosen(table, ("svhn",))
    assert able(svhn) == svhn


def test_of_several_methods_the_best_is_taken(done: tuple[Path, list[Measured]]) -> None:
    out, (fedavg, best) = done
    assert fedavg.rounds == 1
    both = [Run(folder) for folder in (out / "runs").glob("fedprox-*-s0")]
    first = max(both, key=lambda run: run.accuracy)
    assert len({run.accuracy for run in both}) == 2
    assert best.values == [100 * first.accuracy]
    usual = method_from_spec(best.word).tuned(Known({}, 1e-5))
    assert usual == first.experiment.method
    assert (fedavg.seeds, fedavg.precision) == ([0], "f32")


def test_a_run_that_chose_fewer_rounds_is_at_its_end(tmp_path: Path) -> None:
    text = MADE_UP.replace('fedavg = { method = "fedavg",', 'fedavg = { method = "moments",')
    text = text.replace(
        '{ method = ["fedprox:mu=0.1", "fedprox:mu=1.0"]', '{ method = "local:head=gaussian"'
    )
    text = text.replace("rounds = 1, ", "").replace("rounds = 2, ", "")
    (tmp_path / "made_up.toml").write_text(text)
    once = of(read_paper(tmp_path / "made_up.toml"), "table1", tmp_path / "out", 1, "a")
    assert [m.rounds for m in once.conduct()] == [1, 1]


def test_a_record_of_other_settings_is_known(
    done: tuple[Path, list[Measured]], tmp_path: Path
) -> None:
    """A page shows what the file asks for now, not what it asked for when something ran."""

    def with_other(old: str, new: str) -> Paper:
        assert old in MADE_UP
        (tmp_path / "made_up.toml").write_text(MADE_UP.replace(old, new))
        return read_paper(tmp_path / "made_up.toml")

    _, (fedavg, best) = done
    assert is_of_today(with_other("", ""), fedavg)
    assert is_of_today(with_other("rules = { rounds = 2", "rules = { rounds = 3"), fedavg)
    assert not is_of_today(with_other('"sgd.lr" = 0.1', '"sgd.lr" = 0.2'), fedavg)
    assert not is_of_today(with_other('"sgd.lr" = 0.1', '"sgd.lr" = 0.2'), best)
    more = with_other('"fedprox:mu=1.0"]', '"fedprox:mu=2.0"]')
    assert is_of_today(more, best) == ("mu=0.1" in best.word)
    silent = replace(fedavg, settings="")  # of before: it does not say
    assert is_of_today(more, silent)
    assert not is_of_today(more, replace(silent, cell="a/none"))


def test_what_is_finished_is_read_and_shared_by_items(
    made_up: Paper, done: tuple[Path, list[Measured]]
) -> None:
    """The figure over rounds is of the table's runs: nothing is computed again."""
    out, (fedavg, _) = done
    before = {f: f.stat().st_mtime_ns for f in (out / "runs").glob("*/metrics.jsonl")}
    (curve,) = of(made_up, "figure1", out).conduct()
    assert {f: f.stat().st_mtime_ns for f in (out / "runs").glob("*/metrics.jsonl")} == before
    assert curve.values == fedavg.values
    assert curve.curves == [[fedavg.values[0]]]
    assert curve.at == [1]


def test_what_a_run_shows_elsewhere_is_written_down_too(
    made_up: Paper, done: tuple[Path, list[Measured]]
) -> None:
    """One who runs the table has the figure as well, but no time of a run that had company."""
    out, (fedavg, _) = done
    (curve,) = read_results(out / "results" / "fedavg-figure1-short.jsonl")
    assert (curve.item, curve.cell) == ("figure1", "a/fedavg")
    assert curve.values == curve.curves[0] == pytest.approx(fedavg.values, rel=1e-5)
    assert not (out / "results" / "fedavg-figure3-short.jsonl").exists()
    (time,) = of(made_up, "figure3", out).conduct()  # who asks for it gets it
    assert time.values[0] > 0


def test_who_takes_times_finds_nothing_ready_made(
    made_up: Paper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a run that did find something shows none: the command says what to do."""
    given: list[Made | None] = []
    run = reproduce.run_all
    monkeypatch.setattr(reproduce, "run_all", lambda *a: (given.append(a[-1]), run(*a))[1])
    table, timed = (of(made_up, item, tmp_path, 1, "a/fedavg") for item in ("table1", "figure3"))
    (accuracy,) = table.conduct()
    assert accuracy.seconds > 0
    (name,) = table.runs()
    mark = tmp_path / "runs" / name / "checkpoint" / "clients" / "0" / MARK
    mark.parent.mkdir(exist_ok=True)
    mark.touch()
    assert (timed.conduct(), timed.untimed()) == ([], ["a/fedavg"])
    assert (table.conduct()[0].seconds, table.untimed()) == (0.0, [])
    assert [made and made.folder for made in given] == [tmp_path / "made", None, tmp_path / "made"]


def test_two_processes_that_write_results_lose_none(tmp_path: Path) -> None:
    file = tmp_path / "results" / "made-up.jsonl"

    def put(n: int) -> None:
        add_results(file, [Measured("table1", f"cell-{n}", "short", [float(n)])])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, range(40)))
    assert sorted(r.values[0] for r in read_results(file)) == list(range(40))


def test_a_repeat_more_runs_one_seed_more(
    made_up: Paper, done: tuple[Path, list[Measured]]
) -> None:
    out, (fedavg, _) = done
    (again,) = of(made_up, "figure1", out, 2).conduct()
    assert again.seeds == [0, 1]
    assert again.values[0] == fedavg.values[0]
    assert again.spread == pytest.approx(abs(again.values[0] - again.values[1]) / math.sqrt(2))


def test_a_record_that_stays_is_named(
    made_up: Paper, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be of older code, and what was printed is not what a page will say."""
    work = of(made_up, "table1", tmp_path)
    key = work.cells[0].key
    three = Measured("table1", key, "short", [1.0] * 3, [0, 1, 2], commit="a" * 40, date="then")
    add_results(work.file, [three])
    one = replace(three, values=[2.0], seeds=[0], commit="b" * 40)
    add_results(work.file, [one])
    say_what_stayed(work, [one])
    assert f"{key}: {work.file} keeps its record of 3 seeds (commit aaaaaaaaaa, then)" in (
        capsys.readouterr().err
    )
    say_what_stayed(work, [three])
    assert capsys.readouterr().err == ""


def test_a_record_with_more_seeds_stays(tmp_path: Path) -> None:
    """Whoever runs one seed of a figure does not undo the table's three."""
    file = tmp_path / "results" / "made-up.jsonl"

    def after(seeds: list[int], settings: str = "same") -> list[int]:
        values = [float(seed) for seed in seeds]
        one = Measured("table1", "cell", "short", values, seeds, settings=settings)
        add_results(file, [one])
        return read_results(file)[0].seeds

    assert after([0]) == [0]
    assert after([0, 1, 2]) == [0, 1, 2]
    assert after([0]) == [0, 1, 2]
    assert after([3]) == [3]
    assert after([3], "others") == [3]
    assert after([0, 3], "others") == [0, 3]
    assert after([0], "same") == [0]


def test_another_items_damage_ends_nothing(made_up: Paper, tmp_path: Path) -> None:
    other = tmp_path / "results" / "fedavg-figure1-short.jsonl"
    other.parent.mkdir()
    other.write_text("no record\n")
    table = of(made_up, "table1", tmp_path, 1, "a/fedavg")
    (cell,) = table.conduct()
    assert read_results(table.file)[0].values == pytest.approx(cell.values, rel=1e-5)
    with pytest.raises(BadInput, match="not results"):
        of(made_up, "figure1", tmp_path).conduct()


@pytest.mark.parametrize("measure", list(_OF_RUNS))
def test_a_run_that_came_to_nothing_has_no_figure(measure: str, tmp_path: Path) -> None:
    """It diverged in its first round, say: that it has sent 0 GB and taken 0 s tells nothing."""
    directory = RunDir.create(tmp_path / "run", Experiment(FedAvg(), Setting()))
    assert math.isnan(value_of(SimpleNamespace(measure=measure), Run(directory.folder)))


def test_a_stopped_cell_goes_on_where_it_was(made_up: Paper, tmp_path: Path) -> None:
    """Killed after the first of two runs, the second command does the other alone."""

    class Killed(BaseException):
        pass

    class Kills:
        began = 0

        def begin(self, label: str, rounds: int) -> None:
            Kills.began += 1
            if Kills.began == 2:
                raise Killed

        def answered(self, done: int, of: int) -> None: ...
        def finished_round(self, line: dict[str, object], rounds: int) -> None: ...

    work = of(made_up, "table1", tmp_path, 1, "a/fedavg", "b/fedavg")
    with pytest.raises(Killed):
        work.conduct(Kills())
    assert [m.cell for m in read_results(work.file)] == ["a/fedavg"]
    kept = next((tmp_path / "runs").glob("*/metrics.jsonl")).stat().st_mtime_ns
    assert [m.cell for m in work.conduct()] == ["a/fedavg", "b/fedavg"]
    assert kept in {f.stat().st_mtime_ns for f in (tmp_path / "runs").glob("*/metrics.jsonl")}


def test_folders_are_named_by_what_comes_out_and_not_by_where_it_runs() -> None:
    mine = Experiment(method_from_spec("fedavg"), Setting())
    there = Experiment(mine.method, Setting(workers=1, engine="serial"))
    assert folder_name(mine) == folder_name(there)
    assert folder_name(mine) != folder_name(Experiment(mine.method, Setting(seed=1)))
    assert folder_name(mine) != folder_name(Experiment(method_from_spec("fedavg:rounds=3")))


def test_cells_with_a_reason_run_only_where_they_are_named(made_up: Paper) -> None:
    item = made_up.items["table1"]
    assert [c.key for c in chosen(item, [])] == ["a/fedavg", "b/fedavg", "a/fedprox", "b/fedprox"]
    assert [c.key for c in chosen(item, ["far/fedavg"])] == ["far/fedavg"]
    with pytest.raises(reproduce.BadInput, match="no such cell; there are a/fedavg"):
        chosen(item, ["fed"])


def test_published_measured_and_difference(made_up: Paper) -> None:
    item = made_up.items["table1"]
    here = {
        "a/fedavg": Measured("table1", "a/fedavg", "short", [51.0, 53.0], seeds=[0, 1]),
        "b/fedavg": Measured("table1", "b/fedavg", "short", [55.5], seeds=[0], stopped="diverged"),
    }
    lines = cell_table(list(item.cells.values()), here).splitlines()
    assert lines[2].split() == ["a/fedavg", "50.00", "52.00", "±", "1.41", "+2.00", "2"]
    assert lines[3].split() == ["b/fedavg", "60.00", "55.50*", "-4.50", "1"]
    assert lines[5].split() == ["a/fedprox", "40.00", "-", "-", "-"]
    assert "| fedavg | 50.00 → 52.00 ± 1.41 | 60.00 → 55.50* | - |" in matrix(item, here)
    one = {key: Measured("table1", key, "short", [50.0], seeds=[0]) for key in item.cells}
    assert "| not decided (one seed) | a/fedavg: 50.00; a/fedprox: 50.00 |" in claims_table(
        item, one
    )
    said = state(item, list(here.values()), "table1")
    assert said == "of 6 cells: 2 short, 2 not run (no SVHN), 2 not run yet"


def test_one_seed_of_several_that_ended_early_takes_nothing_from_the_others(
    made_up: Paper, tmp_path: Path
) -> None:
    """A mean over the others alone would flatter, so nothing is decided by it.

    What diverged is below what did not.
    """
    item, nan = made_up.items["table1"], math.nan
    here = {
        "a/fedavg": Measured("table1", "a/fedavg", "short", [51.0, nan, 53.0], seeds=[0, 1, 2]),
        "a/fedprox": Measured("table1", "a/fedprox", "short", [50.0, nan], seeds=[0, 1]),
        "b/fedavg": Measured("table1", "b/fedavg", "short", [nan, nan], seeds=[0, 1]),
    }
    here = {key: replace(m, stopped="diverged") for key, m in here.items()}
    text = cell_table(list(item.cells.values()), here)
    assert "52.00 ± 1.41, 1 of 3 ended early*" in text
    assert "50.00, 1 of 2 ended early*" in text
    assert ["b/fedavg", "60.00", "ended", "early*", "-", "2"] in map(str.split, text.splitlines())
    assert math.isnan(here["a/fedavg"].spread)
    assert verdict(Claim("", order=["a/fedavg", "a/fedprox"]), here) == "not decided"
    here["b/fedprox"] = Measured("table1", "b/fedprox", "short", [9.0, 9.0], seeds=[0, 1])
    assert verdict(Claim("", order=["b/fedprox", "a/fedavg"]), here) == "held"
    assert verdict(Claim("", order=["a/fedavg", "b/fedprox"]), here) == "did not hold"
    for cells in (["a/fedavg", "b/fedprox"], ["b/fedprox", "a/fedavg"]):
        assert verdict(Claim("", cells=cells, within=99), here) == "did not hold"
    unreached = replace(here["b/fedavg"], stopped="")  # no target's round, say
    assert verdict(Claim("", order=["a", "b"]), {"a": here["b/fedprox"], "b": unreached}) == (
        "not measured"
    )
    lines = replace(item, draws="lines")
    assert draw_item(lines, here, tmp_path / "f")


def test_one_pair_refutes_a_claim_whatever_is_not_measured() -> None:
    def m(value: float) -> Measured:
        return Measured("", "", "full", [value], seeds=[0])

    best = Claim("a above all others", above=["a"], below=["b", "c", "d"])
    assert verdict(best, {"a": m(50), "b": m(40), "c": m(60)}) == "did not hold"
    assert verdict(best, {"a": m(50), "b": m(40), "c": m(45)}) == "not measured"
    assert verdict(best, {"b": m(40), "c": m(45), "d": m(1)}) == "not measured"
    alike = Claim("all alike", cells=["a", "b", "c"], within=5.0)
    assert verdict(alike, {"a": m(50), "b": m(40)}) == "did not hold"
    assert verdict(alike, {"a": m(50), "b": m(47)}) == "not measured"
    assert verdict(alike, {"a": m(50)}) == "not measured"


def test_a_claim_is_decided_by_more_than_the_spread() -> None:
    def m(*values: float) -> Measured:
        return Measured("", "", "full", list(values))

    order = Claim("a above b", order=["a", "b"])
    assert verdict(order, {"a": m(50, 52), "b": m(40, 42)}) == "held"
    assert verdict(order, {"a": m(40, 42), "b": m(50, 52)}) == "did not hold"
    assert verdict(order, {"a": m(50, 60), "b": m(49, 58)}) == "not decided"
    assert verdict(order, {"a": m(50)}) == "not measured"
    both = Claim("each", above=["a", "b"], below=["c"])
    assert verdict(both, {"a": m(3), "b": m(1), "c": m(2)}) == "did not hold"
    alike = Claim("each pair", pairs=[("a", "b"), ("c", "d")])  # and no a above d
    assert alike.keys == ["a", "b", "c", "d"]
    assert verdict(alike, {"a": m(2), "b": m(1), "c": m(9), "d": m(5)}) == "held"
    assert verdict(alike, {"a": m(2), "b": m(3), "c": m(9), "d": m(5)}) == "did not hold"
    assert verdict(alike, {"a": m(2), "b": m(1), "c": m(9)}) == "not measured"
    near = Claim("alike", cells=["a", "b"], within=2.0)
    assert verdict(near, {"a": m(1), "b": m(2.9)}) == "held"
    assert verdict(near, {"a": m(1), "b": m(3.1)}) == "did not hold"


def test_formulas_need_no_run_and_figures_are_drawn(made_up: Paper, tmp_path: Path) -> None:
    found = of(made_up, "figure2", tmp_path).conduct()
    assert [round(m.mean, 2) for m in found] == [1.52, 26.28]
    assert not (tmp_path / "runs").exists()
    item, by = made_up.items["figure2"], {m.cell: m for m in found}
    assert [f.name for f in draw_item(item, by, tmp_path / "f")] == ["f.png", "f.svg"]
    assert draw_item(item, {}, tmp_path / "g") == []
    assert draw_item(made_up.items["table1"], by, tmp_path / "g") == []


def test_printed_bars_stand_where_their_columns_say() -> None:
    """CUAG-PFL's uplink with ALID7 was drawn as a point over the fourth of six columns."""
    item = paper("cuag").items["figure7"]
    cells = [c for c in item.cells.values() if c.at.startswith("cifar10/")]
    _, at = new_axes(4, 3)
    _published(at, item, cells)
    names = [label.get_text() for label in at.get_xticklabels()]
    assert names == ["acid3", "acid5", "acid7", "alid3", "alid5", "alid7"]
    cuag, uncompressed = at.containers
    assert [bar.get_height() for bar in cuag] == [0.2796, 0.2760, 0.2766, 0.2735]
    assert [bar.get_center()[0] + 1 / 6 for bar in cuag] == pytest.approx([0, 1, 2, 5])
    assert [bar.get_center()[0] - 1 / 6 for bar in uncompressed] == pytest.approx(list(range(6)))


def test_an_infinite_eps_is_drawn_behind_all_others() -> None:
    """It stood at 0, left of the smallest."""
    item = paper("gfl").items["figure3"]
    places = {c.column.x: place_of(c, n) for n, c in enumerate(item.cells.values())}
    assert places == {0.01: 0.0, 0.1: 1.0, 1.0: 2.0, math.inf: 3.0}
    rates = paper("cuag").items["figure3"]
    assert all(place_of(c, 0) == c.column.x for c in rates.cells.values())


def test_results_are_kept_line_by_line_and_replaced_cell_by_cell(tmp_path: Path) -> None:
    old = Measured("t", "a", "full", [1.0], seeds=[0])
    new = Measured("t", "a", "full", [float("nan")], seeds=[0], stopped="diverged")
    other = Measured("t", "b", "short", [1 / 3], at=[1], curves=[[1 / 3]])
    file = tmp_path / "r" / "x.jsonl"
    write_results(file, merged([old, other], [new]))
    back = read_results(file)
    assert [m.key for m in back] == [("t", "a", "full"), ("t", "b", "short")]
    assert math.isnan(back[0].mean)
    assert back[0].seeds == [0]
    assert back[1].values == [0.333333]
    assert read_results(tmp_path / "none.jsonl") == []


def test_a_page_has_every_item_with_its_state(made_up: Paper) -> None:
    record = Measured(
        "table1", "a/fedavg", "short", [51.0], seeds=[0], commit="abc", precision="f32", date="d"
    )
    text = page(made_up, [record], {"figure1": "f.png"})
    assert "## table1: Accuracy (%)" in text
    assert "![figure1](f.png)" in text
    assert (
        "`tacit reproduce fedavg/table1 --scale short --repeats 1`, in f32, commit abc"
        in " ".join(text.split())
    )
    assert "State: of 1 cells: 1 not run yet." in text
    assert all(len(line) <= 100 for line in text.splitlines() if not line.startswith("|"))


def test_what_is_ours_has_one_side_and_says_who_spent_more(tmp_path: Path) -> None:
    ours = paper("tacit")
    keys = {"iid/eps-1/ldp_fl": [0.99, 1.0], "iid/eps-1/fedavg-open": [math.inf, math.inf]}
    records = [
        Measured("mnist", key, "full", [90.0, 92.0], seeds=[0, 1], spent=spent, commit="c")
        for key, spent in keys.items()
    ]
    text = " ".join(page(ours, records, {}).split())
    assert "every run kept the eps of its column, but fedavg-open (inf)." in text
    text = " ".join(page(ours, records[:1], {}).split())
    assert "every run kept the eps of its column." in text
    assert draw_item(ours.items["mnist"], {r.cell: r for r in records}, tmp_path / "figure")


def test_work_is_counted_by_images() -> None:
    mnist = Setting(data="mnist", clients=10, eval_every=2, model="logistic")
    work = work_of(Experiment(method_from_spec("fedavg:rounds=4,per_round=5,sgd.epochs=3"), mnist))
    assert work == Work(4 * 3 * 30_000 + 2 * 10_000 / 3, "logistic", (1, 28, 28), 10)
    steps = method_from_spec("fedavg:rounds=2,sgd.steps=5,sgd.batch=8")
    counted = work_of(Experiment(steps, mnist))
    assert counted is not None
    assert counted.images == pytest.approx(2 * 5 * 8 * 10 + 10_000 / 3)
    assert work_of(Experiment(steps, Setting(data="mine.npz"))) is None
    assert seconds_of(Work(2e6, "logistic", (1, 8, 8), 10)) == pytest.approx(
        2 * seconds_of(Work(1e6, "logistic", (1, 8, 8), 10))
    )


def counted(word: str, **setting: object) -> Work:
    """Return the work of a method on MNIST with ten clients, evaluated at the end alone."""
    made = Setting(**{"data": "mnist", "clients": 10, "eval_every": 1000} | setting)
    work = work_of(Experiment(method_from_spec(word), made))
    assert work is not None
    return work


END = 10_000 / 3  # one evaluation


def test_a_linear_model_of_features_is_counted_as_such() -> None:
    """LDP-FL by its defaults: 100 rounds, in each one gradient of all 60,000 examples, clipped.

    HOG has 288 numbers. With a network that was named it is DP-SGD on images.
    """
    assert counted("ldp_fl") == Work(100 * 60_000 * 5.5 + END, "logistic", (288,), 10, 1024)
    steps = counted("ldp_fl:sgd.epochs=2", model="dafl-cnn")
    assert steps == Work(100 * 2 * 60_000 * 1.4 + END, "dafl-cnn", (1, 28, 28), 10)


def test_one_gradient_is_one_whatever_the_epochs() -> None:
    named = counted("ldp_fl:mode=gradient,sgd.epochs=5,rounds=7", model="dafl-cnn")
    assert named == Work(7 * 60_000 * 1.4 + END, "dafl-cnn", (1, 28, 28), 10)
    five = counted("ldp_fl:rounds=7,per_round=5,sgd.epochs=5")
    assert five == Work(7 * 30_000 * 5.5 + END, "logistic", (288,), 10, 1024)


def test_what_is_in_closed_form_is_fitted_once() -> None:
    assert counted("moments") == Work(60_000 + END, "logistic", (288,), 10)
    assert counted("local:head=gaussian") == Work(60_000 + END, "logistic", (288,), 10)
    personal = counted("cuag:per_round=2", split="acid:3")
    assert personal == Work(60_000 + END, "logistic", (288,), 10)


def test_samples_of_features_are_counted_and_not_what_they_stand_for() -> None:
    """DA-FL: half as many samples as examples, dealt out. As published: 9 others' 5 % more.

    GFL: its server alone trains, 10 epochs on 10 times 500 samples, then e^-0.2 times as long.
    """
    assert counted("dafl:rounds=4") == Work(4 * 30_000 + END, "mlp", (288,), 10)
    paper_mode = counted("dafl:mode=paper,rounds=4,gamma=0.05,gan.epochs=3", model="ldp-cnn")
    assert paper_mode.images == pytest.approx(4 * 60_000 * 1.45 + 3 * 60_000 * 4 + END)
    gfl = counted("gfl:rounds=2,tau=0.2")
    assert gfl.images == pytest.approx(10 * 10 * 500 * (1 + math.exp(-0.2)) + END)


def test_pages_are_those_of_the_files() -> None:
    """`python docs/reproduction.py` was run after the last change."""
    docs = Path(__file__).parents[3] / "docs"
    for key in papers():
        pictures = {
            item: f"../pictures/{file.name}"
            for item in paper(key).items
            if (file := docs / "pictures" / f"{key}-{item}.png").exists()
        }
        there = (docs / "reproduction" / f"{key}.md").read_text(encoding="utf-8")
        assert there == page(paper(key), results_of(key), pictures)


def test_a_table_that_is_too_wide_is_several() -> None:
    wide = matrix(paper("dafl").items["table3"], {})
    assert "| mnist | 1-label | 2-label | dir |" in wide
    assert "| svhn | 1-label | 2-label |" in wide
    assert "| fedavg | 13.99 | 45.62 |" in wide
    assert "| fedavg | 50.44 | 90.99 | 96.63 |" in wide
    narrow = matrix(paper("dafl").items["table4"], {})
    assert "|  | eps-1 | eps-5 | eps-20 | eps-50 | eps-inf |" in narrow
