"""Every cell of `tacit reproduce` runs: on few made-up images, for a round or two.

Numbers of rounds, epochs and clients are small; everything else is the cell's own, and it goes
through the same machinery: its split, network, features, method, measure, and the file of results.
KD-DPFL's cells have runs of their own.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from tacit.core import Keywords
from tacit.data.examples import Dataset, Examples
from tacit.experiment import reproduce
from tacit.experiment.config import Setting
from tacit.experiment.reproduce import Reproduction, chosen, experiments_of
from tacit.experiment.work import SHAPES
from tacit.methods.spec import spec_of
from tacit.papers.published import Cell, Paper, paper, papers

PAPERS = [key for key in papers() if key != "kd_dpfl"]
ITEMS = [(key, item) for key in PAPERS for item in paper(key).items]
TINY = {  # where a method has such a setting
    "rounds": 2,
    "per_round": 3,
    "sgd.epochs": 1,
    "sgd.batch": 16,
    "gan.epochs": 1,
    "gan.batch": 8,
    "local.steps": 2,
    "local.batch": 8,
    "setting.clients": 6,
    "setting.eval_every": 1,
    "setting.engine": "serial",
}
FEW = {
    "cuag": {"sgd.steps": 2},  # in place of epochs
    # ResNet-18 takes its time
    "gfl": {"rounds": 1, "E_s": 1.0, "n_k": 30, "setting.clients": 3},
}
QUICK = {"rounds": 1, "setting.model": "dafl-cnn"}


def tiny(key: str, name: str, more: Keywords | None = None) -> Paper:
    """Return a paper whose item is reduced to next to nothing."""
    of = paper(key)
    item = replace(of.items[name], short=TINY | FEW.get(key, {}) | (more or {}))
    return replace(of, items={name: item})


def images(setting: Setting) -> Dataset:
    """Return made-up images of the shape and the classes of a data set: noise, and one spot."""
    _, _, shape, classes = SHAPES[setting.data]
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(max(90 if setting.model == "resnet18" else 240, 3 * classes)) % classes
    x = torch.randint(0, 64, (len(y), *shape), generator=rng, dtype=torch.uint8)
    x[torch.arange(len(y)), 0, y % shape[1], y // shape[1] + 3] = 255
    means = (0.5,) * shape[0]
    names = tuple(str(k) for k in range(classes))
    test = Examples(x[: len(y) // 4], y[: len(y) // 4])
    return Dataset(f"tiny-{setting.data}", Examples(x, y), test, names, means, means)


def way_of(of: Paper, cell: Cell) -> tuple[str, ...]:
    """Return all that makes a cell another experiment than others, but how much eps it has."""
    each = experiments_of(of, cell, "short")
    words = [re.sub(r"\bepsilon=[\d.]+", "epsilon", spec_of(e.method)) for e in each]
    kinds = {f"{SHAPES[e.setting.data][2:]} {e.setting.split.split(':')[0]}" for e in each}
    nets = {f"{e.setting.model} {e.setting.features} {e.setting.compress}" for e in each}
    return (cell.measure, cell.item.draws, *words, *sorted(kinds), *sorted(nets))


@cache
def distinct(key: str) -> dict[str, list[Cell]]:
    """Return a cell of each way of a paper, by item."""
    seen: set[tuple[str, ...]] = set()
    cells: dict[str, list[Cell]] = {name: [] for name in paper(key).items}
    for name in cells:
        of = tiny(key, name)
        for cell in chosen(of.items[name], []):
            if (way := way_of(of, cell)) not in seen:
                seen.add(way)
                cells[name].append(cell)
    return cells


def reproduced(of: Paper, name: str, cells: list[Cell], folder: Path) -> None:
    """Run cells, and see that each has its value; training may diverge on so few images."""
    work = Reproduction(of, name, cells, "short", 1, folder, {"workers": 0})
    found = work.conduct()
    assert [m.cell for m in found] == [c.key for c in cells]
    assert not {m.stopped for m in found} - {""}


@pytest.fixture(autouse=True)
def small_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce, "dataset_of", images)


@pytest.mark.slow
@pytest.mark.parametrize(("key", "name"), ITEMS, ids="/".join)
def test_every_kind_of_cell_runs(key: str, name: str, tmp_path: Path) -> None:
    reproduced(tiny(key, name), name, distinct(key)[name], tmp_path)


SOME = {  # an item of each paper, and parts of the keys of its cells
    "ldp_fl/figure3": ["mnist/ldp_fl", "mnist/nbafl", "mnist/cl_fl"],
    "cuag/table2": ["accuracy/cuag", "uplink/prifedsync", "accuracy/udp"],
    "dafl/table3": ["mnist/1-label/fedmix", "mnist/1-label/dafl-0.01"],
    "gfl/table2": ["mnist/1/gfl"],
    "tacit/mnist": ["label-1/eps-1/moments", "iid/eps-1/ldp_fl", "dirichlet-0.1/eps-1/gfl"],
}


@pytest.mark.parametrize("word", SOME)
def test_cells_of_every_paper_run(word: str, tmp_path: Path) -> None:
    key, _, name = word.partition("/")
    of = tiny(key, name, QUICK if key == "gfl" else {"rounds": 1})
    reproduced(of, name, chosen(of.items[name], SOME[word]), tmp_path)
