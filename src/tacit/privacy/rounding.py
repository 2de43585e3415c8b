"""Numbers as text, rounded to the side on which they stay true."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context

LEAST = 1e-300  # below that, doubles have fewer digits than are printed


def show_epsilon(epsilon: float, digits: int = 3) -> str:
    """Return an epsilon as text, rounded up to so many significant digits.

    >>> show_epsilon(2.4511), show_epsilon(2.5), show_epsilon(float("inf"))
    ('2.46', '2.5', 'inf')
    """
    return rounded_up(epsilon, digits)


def rounded_up(value: float, digits: int) -> str:
    """Return text that is no smaller than a number: an epsilon, or noise that is enough."""
    return _rounded(max(value, LEAST) if value else 0.0, digits, ROUND_CEILING)


def rounded_down(value: float, digits: int) -> str:
    """Return text that is no larger than a number: a lower bound, or a rate that is not too high.

    >>> rounded_down(2.459, digits=3)
    '2.45'
    """
    return _rounded(0.0 if value < LEAST else value, digits, ROUND_FLOOR)


def _rounded(value: float, digits: int, rounding: str) -> str:
    if not 0 < value < math.inf:
        return f"{value:g}"
    # of the shortest text that stands for this double, so that 1.1 stays 1.1
    short = Context(prec=digits, rounding=rounding).create_decimal(repr(float(value)))
    # so few digits survive the way through a double, which drops their trailing zeros
    return f"{float(short):.{digits}g}"
