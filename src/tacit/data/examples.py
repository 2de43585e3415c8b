"""Labelled examples and data sets: tensors with a meaning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.core.data import Goal, IntArray
from tacit.data.schema import Schema


@dataclass(frozen=True)
class Examples:
    """Inputs and labels, row by row."""

    x: Tensor  # uint8 images (n, channels, height, width), or float32 features (n, ...)
    y: Tensor  # int64 labels (n,); of other goals than classes float32 (n, labels)

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: Tensor) -> Examples:
        """Return a copy of these rows, in this order."""
        return Examples(picked(self.x, rows), picked(self.y, rows))

    def between(self, first: int, last: int) -> Examples:
        """Return a copy of the rows from one to before another, which lie together: at once."""
        return Examples(self.x[first:last].clone(), self.y[first:last].clone())

    def plus(self, other: Examples) -> Examples:
        """Return these examples followed by others of the same kind."""
        return union([self, other])


def picked(x: Tensor, rows: Tensor | slice | range) -> Tensor:
    """Return ``x[rows]``, each row copied at once: indexing copies number by number."""
    if not isinstance(rows, Tensor) or rows.dtype != torch.int64 or rows.dim() != 1:
        return x[rows]
    return x.index_select(0, rows) if bool((rows >= 0).all()) else x[rows]


def union(parts: Sequence[Examples]) -> Examples:
    """Return examples of the same kind, one part after the other."""
    return Examples(torch.cat([p.x for p in parts]), torch.cat([p.y for p in parts]))


@dataclass(frozen=True)
class Pool:
    """Released examples, such as synthetic ones, that join a client's own or stand in for them."""

    examples: Examples
    instead: bool = False


@dataclass(frozen=True)
class Owners:
    """Whose each record is, where the data say so."""

    names: tuple[str, ...]  # of the clients
    train: IntArray  # the place of each record's client among the names
    test: IntArray


@dataclass(frozen=True)
class Dataset:
    """A named train and test set.

    ``mean`` and ``std`` are public constants, never computed from the data. Data are somebody's
    ``own`` unless they are known to be public: nothing that happens to one record may then depend
    on the others. Whoever puts other records into a public one says ``own=True``.
    """

    name: str
    train: Examples
    test: Examples
    classes: tuple[str, ...]
    # one per channel, of pixels scaled to 0..1; unused for features
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    own: bool = True  # False: published, so that everybody has every record
    # classes are those that the records happen to have, and so tell something about them
    inferred: bool = False
    # of a table: what its columns are and how they became numbers
    schema: Schema | None = None
    owners: Owners | None = None  # for the split by:COLUMN
    # of a table: the names of the numbers of an input, in order
    columns: tuple[str, ...] = ()
    # what is predicted; of other goals than classes, ``classes`` are the names of the labels
    goal: Goal = "classes"
    # the public features that inputs are, by name; empty: inputs are as they were given
    features: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.train.x.shape[1:])
