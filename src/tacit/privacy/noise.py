"""Where noise comes from, and how it is added so that no bit of the sum betrays the value.

Floating-point numbers lie more densely near zero, so the last bits of ``value + noise`` tell which
values are possible (Mironov 2012). Therefore every sum is rounded to a grid that depends on nothing
but the public size of the noise; see :func:`noised`.
"""

from __future__ import annotations

import itertools
import math
import ssl
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Bits = NDArray[np.uint64]
Floats = NDArray[np.float64]

# pairs of normal numbers that are made together: what they need fits into a processor's cache
BLOCK = 2**16
# fewer significant bits than a float64 holds: such words get 64 more
SHORT = np.uint64(2**53)
TWICE_SHORT = np.uint64(2**54)


class Source(Protocol):
    """Randomness that nobody else can predict, or that a simulation can repeat."""

    def bits(self, n: int) -> Bits: ...


class FromOS:
    """The cryptographic generator of OpenSSL, which the operating system seeds.

    AES-256 in counter mode (NIST SP 800-90A), about fifteen times as fast as asking the system for
    every number. A forked process is seeded anew.
    """

    def bits(self, n: int) -> Bits:
        """Return ``n`` words of 64 random bits."""
        return np.frombuffer(ssl.RAND_bytes(8 * n), np.uint64)


class FromSeed:
    """A seeded generator of numpy's default kind, for simulations and tests."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def bits(self, n: int) -> Bits:
        """Return ``n`` words of 64 random bits."""
        return self.rng.bit_generator.random_raw(n)


def source(noise: str, rng: np.random.Generator) -> Source:
    """Return the source that a run was told to use; a seeded one has a stream of its own."""
    return FromOS() if noise == "os" else FromSeed(rng.spawn(1)[0])


def log_uniform(draw: Source, n: int) -> Floats:
    """Return logarithms of numbers that are uniform in (0, 1), right to 2^-52 at either end.

    A word is the first 64 bits of a uniform number. Where the number or its distance from 1 has
    fewer than 53 significant bits among them (once in a thousand), it gets 64 more: the least
    is 2^-129.

    Args:
        draw: the source of the bits.
        n: how many numbers.

    Returns:
        ``n`` negative numbers.
    """
    words = draw.bits(n)
    logs = fractions(words)
    torch.from_numpy(logs).log_()
    # wraps round, and so finds words near either end
    rare = (words + SHORT < TWICE_SHORT).nonzero()[0]
    if len(rare):
        logs[rare] = _at_the_ends(draw, words[rare])
    return logs


def fractions(words: Bits) -> Floats:
    """Return words over 2^64: each half is exact, so their sum is rounded once, as the word's is.

    Processors turn whole words into float64 only one by one.
    """
    high: Floats = (words >> np.uint64(32)).view(np.int64) * np.float64(2.0**-32)
    high += (words & np.uint64(2**32 - 1)).view(np.int64) * 2.0**-64
    return high


def _at_the_ends(draw: Source, words: Bits) -> Floats:
    """Return the logarithms for words near 0 or near 2^64, with 64 further bits each."""
    low = words < np.uint64(2**63)
    short = np.where(low, words, ~words)
    small = (short + (draw.bits(len(words)) + 0.5) * 2.0**-64) * 2.0**-64
    logs: Floats = np.where(low, np.log(small), np.log1p(-small))
    return logs


def normal(draw: Source, n: int) -> Floats:
    """Return standard normal numbers (Box and Muller 1958), a pair for each two words.

    Each is within 2^-45 of the one that real arithmetic would make of the same endless bits, and
    they reach as far as 13 standard deviations.

    Args:
        draw: the source of the bits.
        n: how many numbers.

    Returns:
        ``n`` numbers.
    """
    out = np.empty(n + n % 2)
    for start in range(0, len(out), 2 * BLOCK):
        _box_muller(draw, out[start : start + 2 * BLOCK])
    return out[:n]


def _box_muller(draw: Source, out: Floats) -> None:
    half = len(out) // 2
    radius = log_uniform(draw, half)
    radius *= -2.0
    np.sqrt(radius, out=radius)
    turn = draw.bits(half).view(np.int64) * (math.pi * 2.0**-63)
    angle = torch.from_numpy(turn)
    np.multiply(radius, angle.cos().numpy(), out=out[:half])
    np.multiply(radius, angle.sin_().numpy(), out=out[half:])


def laplace(draw: Source, n: int) -> Floats:
    """Return Laplace numbers of scale 1: differences of two exponential numbers.

    Args:
        draw: the source of the bits.
        n: how many numbers.

    Returns:
        ``n`` numbers, right to 2^-45.
    """
    return log_uniform(draw, n) - log_uniform(draw, n)


def spacing(size: float) -> float:
    """Return the spacing of the grid for noise of a standard deviation or scale.

    The power of two from 1/512 to 1/256 of it. Fine enough that rounding adds a millionth to the
    variance; coarse enough that the error of :func:`normal`, 2^-45, is next to nothing beside it.
    Not below 2^-500, so that dividing by it never overflows.

    >>> spacing(1.0), spacing(1.5), spacing(2.0)
    (0.00390625, 0.00390625, 0.0078125)
    """
    return math.ldexp(1.0, max(math.frexp(size)[1] - 9, -500))


def noised(draw: Source, values: Sequence[Tensor], sd: float) -> list[Tensor]:
    """Return values with Gaussian noise, safe against attacks on the last bits.

    Guarantee: value and noise are added in float64 and the sum is rounded to the grid of
    :func:`spacing`, then to the values' type. Addition in float64 is the real sum, rounded. So all
    of this is a fixed function of the real sum ``value + noise``, whatever the value (a sum too
    large for the grid is rounded to the floating-point numbers themselves, a grid that does not
    depend on anything either), and would be post-processing if the noise were a real normal number.
    It is within 2^-45 sd of one, so the probability of each point of the grid is right to a share
    of 2^-34. For N numbers in all (numbers in a release times releases) that adds less than
    2^-33 sqrt(2 N ln(1/d)) to epsilon and some d to delta, for any d: 0.0001 for 10^10 numbers.

    Args:
        draw: the source of the noise.
        values: tensors of any shape and floating type.
        sd: standard deviation; 0 adds nothing.

    Returns:
        The noisy values, of the same shapes and types.
    """
    if sd == 0:
        return [value.clone() for value in values]
    return _added(values, normal(draw, _numbers(values)), sd)


def laplace_noised(draw: Source, values: Sequence[Tensor], scale: float) -> list[Tensor]:
    """Return values with Laplace noise, rounded to a grid as in :func:`noised`.

    The noise is continuous, as the accountant takes it. Discrete noise of the same scale would hide
    whole numbers less well: for counts that move by one it is randomised response, the worst of all
    mechanisms with that epsilon.

    Args:
        draw: the source of the noise.
        values: tensors of any shape and floating type.
        scale: mean of the noise's absolute value; 0 adds nothing.

    Returns:
        The noisy values, of the same shapes and types.
    """
    if scale == 0:
        return [value.clone() for value in values]
    return _added(values, laplace(draw, _numbers(values)), scale)


def _numbers(values: Sequence[Tensor]) -> int:
    return sum(value.numel() for value in values)


def _added(values: Sequence[Tensor], noise: Floats, size: float) -> list[Tensor]:
    """Return values plus noise of a size, on its grid; ``noise`` is used up."""
    noise *= size
    ends = list(itertools.accumulate(value.numel() for value in values))
    parts = torch.from_numpy(noise).tensor_split(ends)
    sums = [part.view(value.shape) for value, part in zip(values, parts, strict=False)]
    for total, value in zip(sums, values, strict=True):
        total.add_(value.detach().to("cpu"))
    step = spacing(size)
    noise *= 1 / step  # a power of two: as exact as to divide by it, and faster
    np.rint(noise, out=noise)
    noise *= step
    return [torch.empty_like(v).copy_(total) for v, total in zip(values, sums, strict=True)]
