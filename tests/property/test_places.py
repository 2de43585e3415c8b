"""One record more, less or other leaves every other record of own data where it was.

Identical records count as a multiset: of two alike nobody can tell which is which.
"""

import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st
from often import often
from PIL import Image
from torch.utils.data import TensorDataset

from tacit.core import BadInput
from tacit.data import from_torch
from tacit.data.examples import Dataset, Examples
from tacit.data.user_data import load_own

few = often(15, suppress_health_check=list(HealthCheck))
quick = often(40, suppress_health_check=list(HealthCheck))
record = st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 2))  # many are alike
records = st.lists(record, min_size=25, max_size=40)
seeds = st.integers(0, 2**40)


def contents(part: Examples, classes: tuple[str, ...]) -> Counter:
    """Return how often each record is there, its label by name."""
    labels = [classes[k] for k in part.y.tolist()]
    return Counter(zip(map(tuple, part.x.flatten(1).tolist()), labels, strict=True))


def parts(data: Dataset) -> dict[str, Counter]:
    return {
        "train": contents(data.train, data.classes),
        "test": contents(data.test, data.classes),
    }


def moved(before: dict[str, Counter], after: dict[str, Counter]) -> tuple[Counter, Counter]:
    """Return what has left its place, and what is new at a place, as (place, record) pairs."""
    a, b = (
        Counter({(place, r): n for place, c in all_.items() for r, n in c.items()})
        for all_ in (before, after)
    )
    return a - b, b - a


def of_npz(folder: Path, rows: list) -> Dataset:
    x = np.array([r[:2] for r in rows], np.float64)
    np.savez(folder / "d.npz", x=x, y=[r[2] for r in rows])
    return load_own(folder / "d.npz")


def of_csv(folder: Path, rows: list) -> Dataset:
    names = ("ill", "other", "well")
    lines = "".join(f"{a},{b},{names[k]}\n" for a, b, k in rows)
    (folder / "d.csv").write_text("a,b,label\n" + lines)
    return load_own(folder / "d.csv")


def of_parquet(folder: Path, rows: list) -> Dataset:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet as pq

    a, b, k = (list(column) for column in zip(*rows, strict=True))
    pq.write_table(pa.table({"a": a, "b": b, "label": k}), folder / "d.parquet")
    return load_own(folder / "d.parquet")


def of_folder(folder: Path, rows: list) -> Dataset:
    with tempfile.TemporaryDirectory(dir=folder) as fresh:
        for i, (a, b, k) in enumerate(rows):
            kind = Path(fresh) / f"kind-{k}"
            kind.mkdir(exist_ok=True)
            Image.fromarray(np.array([[a, b]], np.uint8)).save(kind / f"{i:03}.png")
        return load_own(Path(fresh))


def of_torch(folder: Path, rows: list) -> Dataset:
    x = torch.tensor([r[:2] for r in rows], dtype=torch.float32)
    return from_torch(TensorDataset(x, torch.tensor([r[2] for r in rows])))


READERS = [of_npz, of_csv, of_parquet, of_folder, of_torch]


def loaded(reader, folder: Path, rows: list) -> dict[str, Counter]:
    """Return where the records are; a set so small that a part is empty does not count."""
    try:
        return parts(reader(folder, rows))
    except BadInput:
        assume(False)


def all_classes(rows: list) -> list:
    """Add a record of each class, so that no class appears or goes with the others."""
    return [(9, 9, k) for k in range(3)] + rows


@pytest.mark.parametrize("reader", READERS)
@few
@given(records, record, st.integers(0, 24))
def test_a_record_more_less_or_other_moves_no_other_between_train_and_test(
    reader, tmp_path, rows, new, at
):
    rows = all_classes(rows)
    before = loaded(reader, tmp_path, rows)
    more = loaded(reader, tmp_path, [*rows[: at + 3], new, *rows[at + 3 :]])
    gone, come = moved(before, more)
    assert not gone
    assert come.total() == 1
    other = loaded(reader, tmp_path, [*rows[: at + 3], new, *rows[at + 4 :]])
    gone, come = moved(before, other)
    assert gone.total() == come.total() <= 1


@pytest.mark.parametrize("reader", READERS)
@few
@given(records, st.randoms())
def test_the_order_of_the_file_decides_nothing(reader, tmp_path, rows, random):
    rows = all_classes(rows)
    before = loaded(reader, tmp_path, rows)
    random.shuffle(rows)
    assert loaded(reader, tmp_path, rows) == before


@quick
@given(records)
def test_a_class_that_appears_moves_nobody(tmp_path, rows):
    """Words are numbered in sorted order, so a new first one renumbers all others."""
    lines = "".join(f"{a},{b},kind-{k}\n" for a, b, k in rows)
    found = []
    for first in ("", "3,3,a new one\n"):
        (tmp_path / "d.csv").write_text("a,b,label\n" + first + lines)
        try:
            found.append(parts(load_own(tmp_path / "d.csv")))
        except BadInput:
            assume(False)
    gone, come = moved(*found)
    assert not gone
    assert [name for (_, (_, name)) in come.elements()] == ["a new one"]


@quick
@given(records)
def test_rows_stay_in_the_order_of_the_file(tmp_path, rows):
    x = np.array([[*r[:2], i] for i, r in enumerate(rows)], np.float64)
    np.savez(tmp_path / "d.npz", x=x, y=[r[2] for r in rows])
    try:
        data = load_own(tmp_path / "d.npz")
    except BadInput:
        assume(False)
    for part in (data.train, data.test):
        assert part.x[:, 2].tolist() == sorted(part.x[:, 2].tolist())


def test_a_fifth_is_held_out_of_every_class_and_of_copies_of_one_record(tmp_path):
    """Each record decides for itself: the number is binomial, here within four deviations."""
    rng = np.random.default_rng(0)
    for x in (rng.normal(size=(20_000, 2)), np.ones((20_000, 2))):
        np.savez(tmp_path / "d.npz", x=x, y=np.arange(20_000) % 2)
        data = load_own(tmp_path / "d.npz")
        counts = data.test.y.bincount(minlength=2)
        assert ((counts - 2000).abs() < 4 * (10_000 * 0.2 * 0.8) ** 0.5).all()
