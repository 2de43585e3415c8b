"""What a task may know of data: examples, a client's part of them, and a pool that joins it.

The classes are in ``tacit.data``; these say what everybody else may rely on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, Protocol, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tacit.core.loose import Array

IntArray: TypeAlias = "NDArray[np.int64]"
Rows: TypeAlias = "Sequence[int] | Array | slice"
# what is predicted: one class of several, numbers, or for each of several labels yes or no
Goal = Literal["classes", "regression", "multilabel"]
GOALS: tuple[Goal, ...] = get_args(Goal)


class Examples(Protocol):
    """Inputs and labels, row by row."""

    @property
    def x(self) -> Tensor:
        """Images as bytes (n, channels, height, width), or features as float32 (n, ...)."""
        ...

    @property
    def y(self) -> Tensor:
        """Labels as int64 (n,)."""
        ...

    def __len__(self) -> int: ...


class Pool(Protocol):
    """Released examples, such as synthetic ones, that join a client's data or stand in for them."""

    @property
    def examples(self) -> Examples: ...
    @property
    def instead(self) -> bool: ...


class LocalData(Protocol):
    """One client's examples, as batches that a network takes."""

    @property
    def examples(self) -> Examples:
        """All of them, as they are stored, with the labels that this client uses."""
        ...

    @property
    def source(self) -> Examples:
        """The data set that they are rows of; of anybody else's, not even a shape is private."""
        ...

    @property
    def rows(self) -> IntArray:
        """Which rows of the source they are."""
        ...

    @property
    def mean(self) -> tuple[float, ...]:
        """A public constant for each channel, which batches are normalised with."""
        ...

    @property
    def std(self) -> tuple[float, ...]:
        """Likewise."""
        ...

    @property
    def features(self) -> str:
        """The public features that stand in for inputs, by name; empty: inputs as they are."""
        ...

    @property
    def device(self) -> str:
        """Where batches are."""
        ...

    @property
    def public(self) -> bool:
        """Whether nothing here is anybody's secret: what is made of it may go anywhere."""
        ...

    def __len__(self) -> int: ...

    def batch(self, rows: Rows, /) -> tuple[Tensor, Tensor]:
        """Return inputs, normalised, and labels of some of these examples."""
        ...

    def batches(self, each: Iterable[IntArray], /) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield one batch for each of several lists of rows."""
        ...

    def only(self, rows: IntArray, /) -> LocalData:
        """Return some of the client's own rows of the source."""
        ...

    def holding(self, source: Examples, rows: IntArray, /) -> LocalData:
        """Return rows of other examples, with labels as they are, treated as this client's."""
        ...

    def showing(self, inputs: Tensor, /) -> LocalData:
        """Return other inputs, without labels, as this client's network takes them."""
        ...
