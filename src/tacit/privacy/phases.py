"""One epsilon for two phases: a part for the first, and noise for the second beside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TypeVar

from tacit.core import BadInput, Ledger, Protects, Release
from tacit.privacy.accounting import epsilon as epsilon_of
from tacit.privacy.gdp import gdp_epsilon, gdp_mu

T = TypeVar("T")
STEP = 0.01  # by which the second phase is made cheaper until both cost no more than asked


def half_of(epsilon: float, delta: float) -> float:
    """Return the epsilon of half of what may be spent, as Gaussian noise adds up: half of mu^2.

    >>> half_of(4.0, 1e-5) > 2.0
    True
    """
    return float(gdp_epsilon(gdp_mu(epsilon, delta) / math.sqrt(2), delta))


def rest_of(epsilon: float, first: float, delta: float) -> float:
    """Return what is left for a second phase, once the first has cost ``first``.

    >>> abs(rest_of(4.0, half_of(4.0, 1e-5), 1e-5) / half_of(4.0, 1e-5) - 1) < 1e-6
    True
    """
    left = gdp_mu(epsilon, delta) ** 2 - gdp_mu(first, delta) ** 2
    if left <= 0:
        raise BadInput(f"epsilon = {epsilon:g}: the first phase alone costs {first:g}")
    return float(gdp_epsilon(math.sqrt(left), delta))


def parts_of(epsilon: float, first: float, second: float, delta: float) -> tuple[float, float]:
    """Return an epsilon for each phase: both as given, or what one leaves, or halves; 0: not given.

    >>> first, second = parts_of(4.0, 1.0, 0.0, 1e-5)
    >>> first == 1.0 and abs(rest_of(4.0, second, 1e-5) - 1.0) < 1e-6
    True
    """
    if not (first or second):
        return (half_of(epsilon, delta),) * 2
    left = 0.0 if first and second else rest_of(epsilon, first or second, delta)
    return first or left, second or left


def cost_of(lines: Iterable[Release], protects: Protects, delta: float) -> float:
    """Return the epsilon of releases, for whom it is about."""
    unit, observer = protects
    return epsilon_of(Ledger(lines), unit=unit, observer=observer, delta=delta)


def cheapened(
    make: Callable[[float], T],
    lines: Callable[[T], Iterable[Release]],
    protects: Protects,
    epsilon: float,
    delta: float,
) -> T:
    """Return the first of ``make(1)``, ``make(0.99)``, ... whose releases cost at most ``epsilon``.

    Halves of mu^2 add up exactly if both are Gaussian; steps on samples are nearly that.

    Args:
        make: from a factor on what the second phase may spend to whatever is chosen
        lines: the ledger of that
        protects: whose epsilon it is
        epsilon: of both phases
        delta: of that
    """
    factor = 1.0
    while factor > 0.5:
        made = make(factor)
        spent = cost_of(lines(made), protects, delta)
        if spent <= epsilon * (1 + 1e-6) or spent == math.inf:
            return made
        factor -= STEP
    raise BadInput(f"epsilon = {epsilon:g}: cannot be shared out over two phases")
