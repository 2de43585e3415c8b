"""Small worlds, and twins of them: a record that is not there or is another, and so a client.

A record that is left out ("zero-out", as sizes are public) still counts as one of its client's, but
nobody gets to see it: whatever is added up over records lacks exactly what it would have added.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from sandbox import federation as tiny
from twins.harness import Twin, values_of

from tacit.data.examples import Dataset, Examples
from tacit.data.federated import Federation, LocalData
from tacit.data.splits import Split


@dataclass(frozen=True)
class Lacking(LocalData):
    """A client's data without one row of a source, which counts all the same."""

    whole: Examples | None = None  # the source that the row is missing from
    gone: int = -1

    @cached_property
    def present(self) -> Any:
        """Which of this client's rows are there."""
        here = np.ones(len(self), bool)
        if self.source is self.whole:
            here[: len(self.rows)] = self.rows != self.gone
        return here

    @cached_property
    def examples(self) -> Examples:
        full = LocalData(**{name: getattr(self, name) for name in LocalData.__dataclass_fields__})
        return full.examples.take(torch.from_numpy(np.flatnonzero(self.present)))

    def batch(self, rows: Any) -> tuple[torch.Tensor, torch.Tensor]:
        wanted = np.arange(len(self))[rows]
        place = np.cumsum(self.present) - 1
        return super().batch(place[wanted[self.present[wanted]]])

    def batches(self, each: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return map(self.batch, each)  # one by one: a batch may have a row less


@dataclass(frozen=True)
class Without(Federation):
    """A federation in which one row of the training data is in nobody's hands."""

    gone: int = -1

    def train(self, client: str, device: str = "cpu") -> LocalData:
        data = super().train(client, device)
        rows = list(self.split.train[int(client)])
        gone = int(data.rows[rows.index(self.gone)]) if self.gone in rows else -1
        return Lacking(**values_of(data), whole=data.source, gone=gone)


def with_train(federation: Federation, rows: Any, x: Any, y: Any) -> Federation:
    """Return a federation with other examples in some rows."""
    train = federation.dataset.train
    inputs, labels = train.x.clone(), train.y.clone()
    inputs[rows], labels[rows] = x, y % len(federation.dataset.classes)
    return replace(federation, dataset=replace(federation.dataset, train=Examples(inputs, labels)))


def far(x: torch.Tensor, times: float) -> torch.Tensor:
    """Return inputs that are far from all others."""
    return 255 - x if x.dtype == torch.uint8 else times * x


def row_of(federation: Federation, client: str) -> int:
    """Return the row of the record that twins differ in: one in the midst of a client's."""
    rows = federation.split.train[int(client)]
    return int(rows[len(rows) // 3])


def wild(federation: Federation, *clients: str) -> Federation:
    """Return a federation in which a record of some clients is far from all others.

    So every clip has something to cut off.
    """
    for client in clients:
        row, train = row_of(federation, client), federation.dataset.train
        federation = with_train(federation, row, far(train.x[row], 20), train.y[row] + 1)
    return federation


def record_gone(client: str) -> Twin:
    """A twin in which one of a client's records is left out."""

    def change(federation: Federation) -> Federation:
        return Without(**values_of(federation), gone=row_of(federation, client))

    return Twin(f"record of client {client} gone", client, "example", "zero-out", change)


def record_other(client: str) -> Twin:
    """A twin in which one of a client's records is another one."""

    def change(federation: Federation) -> Federation:
        row, train = row_of(federation, client), federation.dataset.train
        return with_train(federation, row, far(train.x[row], -1), train.y[row] + 1)

    return Twin(f"record of client {client} other", client, "example", "replace", change)


def client_other(client: str) -> Twin:
    """A twin in which all of a client's records are others."""

    def change(federation: Federation) -> Federation:
        rows, train = federation.split.train[int(client)], federation.dataset.train
        return with_train(federation, rows, far(train.x[rows], -1), train.y[rows] + 1)

    return Twin(f"client {client} other", client, "client", "replace", change)


def client_away(client: str) -> Twin:
    """A twin in which a client never answers."""
    return Twin(
        f"client {client} away",
        client,
        "client",
        "zero-out",
        fault=lambda i, t: "crash" if i == client else None,
    )


def pictures(clients: int = 2, each: int = 12) -> Federation:
    """Return a federation of small images of three classes."""
    rng = np.random.default_rng(3)
    n = clients * each
    y = torch.from_numpy(rng.integers(0, 3, n))
    x = torch.from_numpy(rng.integers(0, 256, (n, 1, 8, 8), dtype=np.uint8))
    examples = Examples(x, y)
    rows = tuple(np.split(np.arange(n), clients))
    return Federation(Dataset("pictures", examples, examples, ("a", "b", "c")), Split(rows, rows))


__all__ = ["pictures", "tiny"]
