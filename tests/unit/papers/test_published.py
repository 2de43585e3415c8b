"""Every paper's file says what the paper prints, in words that this package understands."""

from __future__ import annotations

import math
from itertools import chain
from pathlib import Path

import pytest

from tacit.core import BadInput
from tacit.data.splits import SPLITS
from tacit.experiment.formulas import FORMULAS
from tacit.experiment.reproduce import experiments_of, is_of_today, preset
from tacit.methods.spec import name_of, parted
from tacit.papers.measured import Measured, results_of
from tacit.papers.published import Item, paper, papers, read_paper
from tacit.report.reproduction import verdict

ITEMS = [f"{key}/{item}" for key in papers() for item in paper(key).items]
KNOWN = {
    "dafl": ["table3", "table4", "figure4", "figure5", "figure6", "figure7"],
    "kd_dpfl": ["figure2a", "figure2b", "figure3", "figure4", "figure5", "figure6"],
    "gfl": ["table2", "table3", "table4", "figure3"],
    "ldp_fl": ["figure2a", "figure2b", "figure3", "table3", "figure4"],
    "cuag": [*(f"table{n}" for n in range(1, 9)), *(f"figure{n}" for n in range(3, 8))],
    "tacit": ["mnist", "fashion-mnist", "cifar10", "personal"],
}


def item_of(word: str) -> Item:
    key, _, item = word.partition("/")
    return paper(key).items[item]


def test_all_tables_and_figures_of_the_five_papers_and_our_own_are_known() -> None:
    assert {key: set(items) - set(paper(key).items) for key, items in KNOWN.items()} == {
        key: set() for key in papers()
    }


@pytest.mark.parametrize("word", ITEMS)
def test_every_cell_is_an_experiment(word: str) -> None:
    """Methods, settings and splits are understood, in full and in short; so are formulas."""
    of, item = paper(word.partition("/")[0]), item_of(word)
    for cell in item.cells.values():
        assert cell.line.formula in {"", *FORMULAS}
        assert cell.line.formula or cell.line.words != [""] or cell.why
        for scale in ("full", "short"):
            for experiment in experiments_of(of, cell, scale):
                assert experiment.setting.split.partition(":")[0] in SPLITS


@pytest.mark.parametrize("word", ITEMS)
def test_settings_reach_a_method(word: str) -> None:
    """A setting that no method of an item has is a slip of the pen."""
    of, item = paper(word.partition("/")[0]), item_of(word)
    words = {w for line in item.rows.values() for w in line.words if w}
    if not words:
        return
    asked = chain(item.short, item.method, *(c.method for c in item.columns.values()))
    options = {k for k in asked if not k.startswith("setting.")}
    from tacit.experiment.shared_options import with_common

    for option in options - {"rounds"}:
        with_common(sorted({parted(w)[0] for w in words}), {option: 1})
    assert of.rules


@pytest.mark.parametrize("word", ITEMS)
def test_claims_hold_for_what_is_printed(word: str) -> None:
    """A claim that the printed values contradict was misread, or a value was."""
    item = item_of(word)
    printed = {
        key: Measured("", key, "full", [cell.published])
        for key, cell in item.cells.items()
        if not math.isnan(cell.published)
    }
    assert {c.says for c in item.claims if verdict(c, printed) == "did not hold"} == set()


@pytest.mark.parametrize("key", papers())
def test_presets_are_of_the_paper_s_own_method(key: str) -> None:
    for name in paper(key).presets:
        assert name_of(preset(f"paper:{name}", key).method) == key


def test_a_preset_has_the_published_settings_of_any_row() -> None:
    mine = preset("paper:mnist-1label", "dafl")
    assert (mine.method.rounds, mine.setting.data, mine.setting.split) == (
        50,
        "mnist",
        "niid-label:1",
    )
    other = preset("dafl:cifar10-2label", "scaffold")
    assert (name_of(other.method), other.setting.split) == ("scaffold", "niid-label:2")
    with pytest.raises(BadInput, match="preset of DA-FL = 'mnist': "):
        preset("paper:mnist", "dafl")
    with pytest.raises(BadInput, match="must be PAPER:NAME"):
        preset("mnist", "dafl")


@pytest.mark.parametrize("key", papers())
def test_results_that_are_kept_are_of_cells(key: str) -> None:
    for record in results_of(key):
        assert is_of_today(paper(key), record), record.key
        assert record.commit
        assert not record.commit.endswith("-dirty")


def test_figures_of_known_papers_are_as_printed() -> None:
    """A few values of each table, read off the page once more."""
    cells = {
        "dafl/table3": {"mnist/1-label/fedavg": 50.44, "svhn/2-label/dafl-0.05": 52.41},
        "cuag/table5": {"sigma-1.0/C-1.5/alid5": 70.81, "mu-0.25/C-own/alid7": 83.81},
        "cuag/table4": {"mu-2/alid7": 83.67, "mu-0.1/acid3": 89.21},
        "cuag/table7": {"cifar100/alid7/bernoulli": 75.34, "cifar10/acid5/gaussian": 82.19},
        "gfl/table2": {"cifar10/0/gfl": 56.22, "emnist/inf/scaffold": 98.03},
        "ldp_fl/table3": {"fashion-mnist/150/cl_fl": 2.77, "mnist/25/ldp_fl": 1.87},
    }
    for word, printed in cells.items():
        found = {key: item_of(word).cells[key].published for key in printed}
        assert found == printed


def test_a_wrong_file_is_refused_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    head = 'name = "M"\nby = "me"\nmethod = "fedavg"\n[items.a]\ntitle = "t"\n'
    row = '[items.a.rows.r]\nmethod = "fedavg"\npublished = [1.0]\n'
    file.write_text(head + row)
    with pytest.raises(BadInput, match=r"mine.toml: r.published: has 1 values, .* 0 columns"):
        read_paper(file)
    file.write_text(head + '[[items.a.claims]]\nsays = "x"\norder = ["b/c"]\n')
    with pytest.raises(BadInput, match="cell of claim 'x' = 'b/c'"):
        read_paper(file)
