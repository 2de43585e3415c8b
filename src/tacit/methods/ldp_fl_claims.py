"""LDP-FL's own formulas (Kang and Ji 2022): its noise, what it claims, and its performance loss.

Nothing here certifies.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from tacit.core import Claim, check
from tacit.privacy.claimed import log_moment, moments_epsilon, other_of
from tacit.privacy.gdp import gdp_epsilon


def noise(rounds: int, q: float, epsilon: float, delta: float) -> float:
    """Return the noise multiplier, sqrt(2 q T ln(1/delta)) / eps."""
    return other_of(epsilon, rounds, q, delta=delta)


def sigma(clip: float, m: int, rounds: int, q: float, epsilon: float, delta: float) -> float:
    """Return the noise of a client with m examples: (2C/m) sqrt(2 q T ln(1/delta)) / eps."""
    return 2 * clip / m * noise(rounds, q, epsilon, delta)


def ratio(rounds: int, epsilon: float, delta: float) -> float:
    """Return 2C/m over sigma, for q = 1."""
    check.number("rounds", rounds, at_least=1)
    return float(epsilon / (2 * rounds * math.log(1 / delta)) ** 0.5)


def why(epsilon: float, epochs: int) -> str:
    """Return what the proof lacks."""
    return (
        f"claimed eps {epsilon:g}, but 2C/m bounds one averaged full-batch gradient, "
        f"not {epochs} epochs of SGD"
    )


def published(rounds: int, epsilon: float, epochs: int, delta: float) -> list[Claim]:
    """Return what epsilon comes to, if the sensitivity were right, and what is wrong with that."""
    r = ratio(rounds, epsilon, delta)
    formula = "as the paper states it, for sigma = (2C/m) sqrt(2 q T ln(1/delta)) / eps"
    spent = "a logistic regression with a claimed eps of 1 really spends more than 10"
    gradient = "2C/m is the sensitivity of one averaged full-batch gradient"
    return [
        ("published", epsilon, formula),
        ("moments", moments_epsilon(r, rounds, delta=delta), "if 2C/m were the sensitivity"),
        ("exact GDP", gdp_epsilon(r * rounds**0.5, delta), "if 2C/m were the sensitivity"),
        ("certified", math.inf, f"{gradient}, not of {epochs} epochs of SGD; {spent}"),
    ]


def performance_loss(ratios: Iterable[float], rounds: int, q: float = 1.0, order: int = 1) -> float:
    """Return LDP-FL's P = sum_i exp(sum_t alpha(lambda)).

    The paper's diagnostic, not a privacy quantity. With q = lambda = 1 it is sum_i exp(t r_i^2),
    which after all T rounds is N exp(eps^2 / (2 ln(1/delta))): it begins at N, grows with t and is
    the same for all data. Table 3, 1.72 to 2.77 and mostly falling, cannot follow from it.

    Args:
        ratios: of the clients that take part, sensitivity over noise in one round
        rounds: t, so far
        q: share of clients in a round
        order: lambda
    """
    return sum(math.exp(min(700.0, rounds * log_moment(order, ratio, q))) for ratio in ratios)
