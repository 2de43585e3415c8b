"""Solve for any one of epsilon, noise, steps and sampling rate, given the others."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial

from tacit.core import BadInput, Gaussian, Laplace, Relation, Sampling, check_number
from tacit.privacy.accounting import Bill, bill_epsilon, rdp_epsilon
from tacit.privacy.gdp import gdp_mu


def spend(
    z: float,
    steps: int,
    q: float = 1.0,
    *,
    delta: float,
    law: str = "poisson",
    relation: Relation = "zero-out",
    grid: float | None = None,
) -> float:
    """Return the certified epsilon of ``steps`` Gaussian releases with noise multiplier ``z`` on samples of rate q."""
    check_number("z", z, at_least=0)
    check_number("steps", steps, at_least=0, whole=True)
    check_number("q", q, at_least=0, at_most=1)
    check_number("delta", delta, above=0, below=1)
    if steps == 0 or q == 0:
        return 0.0
    sampling = Sampling.at(q, "fixed" if law == "fixed" else "poisson")
    bill: Bill = frozenset({((Gaussian(float(z)), sampling, "zero-out"), int(steps))})
    return bill_epsilon(bill, relation, delta, grid)


def rdp_spend(z: float, steps: int, q: float = 1.0, *, delta: float) -> float:
    """Return the Renyi accountant's epsilon for the same releases, as a cross-check."""
    return rdp_epsilon(
        (((Gaussian(float(z)), Sampling("poisson", q), "zero-out"), int(steps)),), delta
    )


@lru_cache(maxsize=1024)
def noise_for(
    epsilon: float, steps: int, q: float = 1.0, *, delta: float, law: str = "poisson"
) -> float:
    """Return the least noise multiplier (to 0.1%) with which ``steps`` releases cost at most ``epsilon``."""
    check_number("epsilon", epsilon, above=0)
    check_number("steps", steps, at_least=0, whole=True)
    if q == 1:
        return math.sqrt(steps) / gdp_mu(epsilon, delta)
    cost = partial(spend, steps=steps, q=q, delta=delta, law=law)
    # where the central limit theorem puts it
    z = math.log1p((gdp_mu(epsilon, delta) / q) ** 2 / max(steps, 1)) ** -0.5
    z = _meet(partial(cost, grid=1e-2), epsilon, z, within=1e-2)
    z = _meet(partial(cost, grid=1e-3), epsilon, z, within=1e-3)
    if cost(z) > 0.995 * epsilon:
        return z
    return _meet(cost, epsilon, z, within=1e-3)  # the coarse grid was too careful


@lru_cache(maxsize=1024)
def laplace_for(epsilon: float, steps: int, *, delta: float) -> float:
    """Return the least Laplace scale (to 0.1%, over the sensitivity) with which ``steps`` releases cost ``epsilon``."""
    check_number("epsilon", epsilon, above=0)
    check_number("steps", steps, at_least=1, whole=True)

    def cost(b: float) -> float:
        return bill_epsilon(
            frozenset({((Laplace(b), Sampling(), "zero-out"), steps)}), "zero-out", delta, 1e-3
        )

    # simple, and nearly normal
    start = min(steps / epsilon, math.sqrt(2 * steps) / gdp_mu(epsilon, delta))
    return _meet(cost, epsilon, start, within=1e-3)


def vote_noise_for(epsilon: float, queries: int, kind: str, *, delta: float) -> float:
    """Return the scale of the noise on each count of votes with which all queries cost a voter ``epsilon``."""
    if kind == "gaussian":
        return math.sqrt(2) * noise_for(epsilon, queries, delta=delta)
    return 2 * laplace_for(epsilon, queries, delta=delta)


def _meet(cost: Callable[[float], float], epsilon: float, z: float, *, within: float) -> float:
    """Return a noise multiplier that costs ``epsilon`` or ``within`` less.

    Secants of log cost over log z.
    """
    slope, before = -1.0, None
    for _ in range(30):
        spent = cost(z)
        if epsilon * (1 - within) <= spent <= epsilon:
            return z
        if not 0 < spent < math.inf:
            break
        here = math.log(z), math.log(spent / epsilon) + within / 2
        if before and here[0] != before[0]:
            # more noise always costs less
            slope = min((here[1] - before[1]) / (here[0] - before[0]), -0.2)
        before, z = here, math.exp(here[0] - here[1] / slope)
    return _least(lambda z: cost(z) <= epsilon, 0.5 * z, 2 * z, relative=within)


def steps_for(
    epsilon: float, z: float, q: float = 1.0, *, delta: float, law: str = "poisson"
) -> int:
    """Return the most releases that cost at most ``epsilon``; 0 if one is too many already."""
    check_number("epsilon", epsilon, above=0)
    low, high = 0, 1
    while spend(z, high, q, delta=delta, law=law, grid=1e-3) <= epsilon:
        low, high = high, 2 * high
        if high > 10**9:
            raise BadInput(f"z = {z}: more than 10^9 steps cost less than epsilon {epsilon:g}")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (middle, high)
            if spend(z, middle, q, delta=delta, law=law, grid=1e-3) <= epsilon
            else (low, middle)
        )
    return low


def rate_for(epsilon: float, z: float, steps: int, *, delta: float, law: str = "poisson") -> float:
    """Return the largest sampling rate (to 0.1%) with which ``steps`` releases cost at most ``epsilon``."""
    check_number("epsilon", epsilon, above=0)
    if spend(z, steps, 1.0, delta=delta) <= epsilon:
        return 1.0
    worst = _least(
        lambda inverse: spend(z, steps, 1 / inverse, delta=delta, law=law) <= epsilon,
        1.0,
        2.0,
        relative=1e-3,
    )
    return 1 / worst


def _least(good: Callable[[float], bool], low: float, high: float, *, relative: float) -> float:
    """Return nearly the least number that is good, starting from a guess.

    What is good stays good when it grows.
    """
    while low > 0.01 and good(low):
        low, high = low / 2, low
    while not good(high):
        low, high = high, 2 * high
        if high > 1e7:
            raise BadInput("calibration: no value up to 10^7 is enough")
    while high / low > 1 + relative:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if good(middle) else (middle, high)
    return high
