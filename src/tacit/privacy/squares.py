"""Squared norms in double precision, each with what may be missing from it.

Squares of small numbers vanish in single precision, and squares of large ones have no end. So each
squared norm comes with what may be missing from it, for whoever has to decide whether that matters.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

# numbers whose squares are added up in single precision: of 100,000 alike, rounding would leave out
# one in 10,000
STRETCH = 1024


@dataclass(frozen=True)
class Squares:
    """Squared norms, one for each example, in double precision.

    The true ones are at most ``value + missing``, but for rounding: squares below the smallest
    number that their precision can hold were lost.
    """

    value: Tensor
    missing: Tensor | float

    @classmethod
    def of(cls, rows: Tensor) -> Squares:
        """Return the squared norms of rows (n, ...)."""
        flat = rows.flatten(1)
        return cls.added(norms_of(flat), flat.shape[1])

    @classmethod
    def added(cls, norms: Tensor, numbers: int) -> Squares:
        """Return the squared norms of rows of so many numbers, given the norms of their parts."""
        value = norms.double().square().sum(1)
        return cls(value, numbers * least(norms))

    def __mul__(self, other: Squares) -> Squares:
        """Return the squared norms of outer products."""
        value = self.value * other.value
        whole = self.whole * other.whole
        return Squares(value, whole - value)

    @property
    def whole(self) -> Tensor:
        """What the squared norms are at most."""
        return self.value + self.missing


def norms_of(flat: Tensor) -> Tensor:
    """Return the norms of stretches of rows, (n, stretches)."""
    n, numbers = flat.shape
    stretch = stretch_of(numbers)
    whole = numbers - numbers % stretch
    stretches = flat[:, :whole].view(n, whole // stretch, stretch)
    norms: Tensor = torch.linalg.vector_norm(stretches, dim=2)
    if whole == numbers:
        return norms
    rest = torch.linalg.vector_norm(flat[:, whole:], dim=1, keepdim=True)
    return torch.cat([norms, rest], 1)


@cache
def stretch_of(numbers: int) -> int:
    """Return the longest stretch that divides rows evenly, as sizes of layers mostly allow."""
    if numbers <= STRETCH:
        return max(1, numbers)
    even = next(s for s in range(STRETCH, 0, -1) if numbers % s == 0)
    return even if even >= STRETCH // 8 else STRETCH


def least(t: Tensor) -> float:
    """Return below what a square is lost in a tensor's precision."""
    return torch.finfo(t.dtype).tiny


def inner(K: Tensor, M: Tensor, depth: int) -> Squares:
    """Return <K_i, M_i> of Gram matrices, each a sum over ``depth`` products, and a little more.

    Where positions cancel, rounding must not make it less.
    """
    k, m = (t.diagonal(dim1=1, dim2=2).sum(1).double() for t in (K, M))
    value = (K * M).sum((1, 2)).double() + 32 * torch.finfo(K.dtype).eps * k * m
    # no entry is larger than a trace; each may lack as much, and so may each product of two
    lost = depth * least(K)
    return Squares(value, K.shape[1] ** 2 * (lost * (k + m) + lost**2 + least(K)))


def sum_of(tensors: Iterable[Tensor]) -> Tensor:
    """Return the sum of tensors of one shape."""
    return torch.stack(list(tensors)).sum(0)
