"""CUAG-PFL's deterministic binary measurement (Algorithm 3) as sums over consecutive blocks.

No matrix is built.

A layer of I numbers becomes floor(r I) sums over blocks that tile it: the first I - floor(1/r)
floor(r I) blocks have floor(1/r) + 1 numbers, the others floor(1/r). That is the same as to make
the blocks as equal as they can be, the longer ones first, and this is how they are made here: it
also covers layers that are too small for the two lengths of the paper (I > floor(r I) (floor(1/r) +
1)), and one that would have no row at all gets one.
"""

from __future__ import annotations

from fractions import Fraction

import torch
from torch import Tensor


def rows_for(numbers: int, rate: float) -> int:
    """Return floor(rate * numbers), at least 1, by exact arithmetic on the rate as it is written.

    >>> rows_for(10, 0.7), int(0.1 * 3 * 10), rows_for(100, 0.29), int(0.29 * 100)
    (7, 3, 29, 28)
    """
    return max(1, int(Fraction(repr(rate)) * numbers))


def measure(x: Tensor, rate: float) -> Tensor:
    """Return the sums of the blocks; besides them nothing is allocated."""
    flat = x.detach().reshape(-1)
    rows = rows_for(flat.numel(), rate)
    length, longer = divmod(flat.numel(), rows)
    cut = longer * (length + 1)
    sums = flat.new_empty(rows)
    torch.sum(flat[:cut].view(longer, length + 1), 1, out=sums[:longer])
    torch.sum(flat[cut:].view(rows - longer, length), 1, out=sums[longer:])
    return sums


def rebuild(sums: Tensor, numbers: int) -> Tensor:
    """Return the shortest vector with these sums.

    Each is spread evenly over its block (the pseudo-inverse).
    """
    rows = sums.numel()
    length, longer = divmod(numbers, rows)
    cut = longer * (length + 1)
    out = sums.new_empty(numbers)
    out[:cut].view(longer, length + 1).copy_((sums[:longer] / (length + 1)).unsqueeze(1))
    out[cut:].view(rows - longer, length).copy_((sums[longer:] / length).unsqueeze(1))
    return out
