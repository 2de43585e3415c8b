"""Exact draws of whole numbers and choices (Canonne, Kamath and Steinke 2020).

Nothing but whole numbers stands between the random bits and the result, so probabilities are what
they are said to be, however small. Rates are fractions; a float is one, exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from tacit.privacy.noise import Source


def words(draw: Source) -> Iterator[int]:
    """Yield words of 64 random bits without end."""
    while True:
        yield from draw.bits(64).tolist()


def below(random: Iterator[int], n: int) -> int:
    """Return a whole number from 0 to ``n - 1``, all equally likely.

    Draws as many bits as ``n - 1`` has, and again if they make too large a number.
    """
    size = (n - 1).bit_length()
    count = -(-size // 64)
    while True:
        value = 0
        for _ in range(count):
            value = value << 64 | next(random)
        value >>= 64 * count - size
        if value < n:
            return value


def happens(random: Iterator[int], over: int, under: int) -> bool:
    """Return true with probability exp(-over/under) (Algorithm 1).

    The whole part of the exponent is as many events of probability 1/e. The rest, g, is at most 1:
    the first of the events of probability g/1, g/2, g/3, ... that fails is an odd one with
    probability 1 - g + g^2/2! - ... = exp(-g).

    Args:
        random: words of random bits.
        over: the exponent's numerator, 0 or more.
        under: its denominator, 1 or more.

    Returns:
        Whether it happened.
    """
    while over > under:
        if not happens(random, 1, 1):
            return False
        over -= under
    k = 1
    while below(random, under * k) < over:
        k += 1
    return k % 2 == 1


def discrete_laplace(random: Iterator[int], rate: Fraction) -> int:
    """Return a whole number k with probability proportional to exp(-rate |k|) (Algorithm 2).

    Args:
        random: words of random bits.
        rate: above 0.

    Returns:
        The number, of either sign.
    """
    while True:
        size = _geometric(random, rate.denominator) // rate.numerator
        negative = below(random, 2) == 1
        # zero has one sign only
        if size or not negative:
            return -size if negative else size


def _geometric(random: Iterator[int], scale: int) -> int:
    """Return a whole number k of 0 or more with probability proportional to exp(-k / scale)."""
    rest = below(random, scale)
    while not happens(random, rest, scale):
        rest = below(random, scale)
    whole = 0
    while happens(random, 1, 1):
        whole += 1
    return rest + scale * whole


def choice(random: Iterator[int], scores: Sequence[Fraction]) -> int:
    """Return an index with probability proportional to exp(score), by rejection.

    Args:
        random: words of random bits.
        scores: one for each index, at least one.

    Returns:
        The index. It takes as many trials as there are scores at most, on average.
    """
    top = max(scores)
    while True:
        at = below(random, len(scores))
        short = top - scores[at]
        if happens(random, short.numerator, short.denominator):
            return at
