"""Clients' examples lie together: the same rows, in the same order, and nobody else's memory."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.data import federated
from tacit.data.examples import Dataset, Examples, picked
from tacit.data.federated import Federation
from tacit.data.splits import Split


def federation(parts):
    n = sum(map(len, parts)) + 3  # some rows are nobody's
    x = torch.arange(2.0 * n).view(n, 2)
    train = Examples(x, torch.arange(n) % 3)
    none = tuple(np.arange(0) for _ in parts)
    return Federation(Dataset("numbers", train, train, tuple("abc")), Split(tuple(parts), none))


@given(st.integers(0, 999), st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_each_client_has_its_rows_in_order(seed, sizes):
    rows = np.random.default_rng(seed).permutation(sum(sizes) + 3)[: sum(sizes)]
    parts = np.split(rows, np.cumsum(sizes)[:-1])
    made = federation(parts)
    for client, part in zip(made.everyone, parts, strict=True):
        own = made.train(client)
        assert len(own) == len(part)
        assert torch.equal(own.examples.x, made.dataset.train.x[part])
        assert torch.equal(own.examples.y, made.dataset.train.y[part])


@pytest.mark.parametrize("limit", [0, 1 << 30])
def test_what_one_request_changes_the_next_one_does_not_meet(monkeypatch, limit):
    monkeypatch.setattr(federated, "TWICE", limit)
    made = federation([np.array([0, 1, 2]), np.array([4, 3])])
    before = made.train("0").examples.x.clone()
    made.train("0").examples.x.zero_()
    made.train("0").batch(slice(None))[0].zero_()
    assert torch.equal(made.train("0").examples.x, before)
    assert torch.equal(made.dataset.train.x[:3], before)


@pytest.mark.parametrize(
    "rows",
    [
        torch.tensor([2, 0, 2]),
        torch.tensor([-1, 0]),
        torch.tensor([], dtype=torch.int64),
        torch.tensor([[0, 1], [2, 3]]),
        torch.tensor([True, False, True, False, False]),
        torch.tensor([3, 1], dtype=torch.int32),
        slice(1, None, 2),
        range(1, 4),
    ],
)
@pytest.mark.parametrize("kind", [torch.uint8, torch.float32, torch.int64])
def test_picked_rows_are_those_of_indexing(rows, kind):
    x = torch.arange(5 * 3 * 4, dtype=kind).view(5, 3, 4)
    assert torch.equal(picked(x, rows), x[rows])
    assert picked(x, rows).dtype == kind
    assert torch.equal(picked(x[:, :, 0], rows), x[:, :, 0][rows])  # that lie apart, too


def test_a_row_that_is_not_there_is_refused():
    with pytest.raises(IndexError):
        picked(torch.arange(3), torch.tensor([0, 3]))


def test_a_picked_copy_is_nobody_elses_memory():
    x = torch.arange(4.0)
    picked(x, torch.arange(4)).zero_()
    assert x.sum() == 6
