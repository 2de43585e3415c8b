"""Solve for any one of epsilon, noise, steps and sampling rate, given the others."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Protocol

from tacit.core import BadInput, Gaussian, Laplace, Relation, Sampling, check
from tacit.privacy.accounting import (
    Certificate,
    bill_epsilon,
    certificate,
    quick_certificate,
)
from tacit.privacy.bill import Bill
from tacit.privacy.bounds import rdp_epsilon
from tacit.privacy.gdp import gdp_mu

MOST_STEPS = 10**15
FAR = 10**9  # more steps than anybody takes
LEAST = 1e-18  # of what is solved for


def spend(
    z: float,
    steps: int,
    q: float = 1.0,
    *,
    delta: float,
    law: str = "poisson",
    relation: Relation = "zero-out",
    quick: bool = False,
) -> float:
    """Return the certified epsilon of ``steps`` Gaussian releases on samples of rate ``q``.

    ``z`` is their noise multiplier.
    """
    return spent(z, steps, q, delta=delta, law=law, relation=relation, quick=quick).epsilon


def spent(
    z: float,
    steps: int,
    q: float = 1.0,
    *,
    delta: float,
    law: str = "poisson",
    relation: Relation = "zero-out",
    quick: bool = False,
) -> Certificate:
    """Return the certificate of the same releases, which names the accountant."""
    check.number("z", z, at_least=0)
    _check_releases(steps, q, delta)
    if steps == 0 or q == 0:
        return Certificate(0.0, "nothing is released")
    sampling = Sampling.at(q, "fixed" if law == "fixed" else "poisson")
    bill: Bill = frozenset({((Gaussian(float(z)), sampling, "zero-out"), int(steps))})
    found = quick_certificate if quick else certificate
    return found(bill, relation, delta)


def _check_releases(steps: int, q: float, delta: float) -> None:
    check.number("steps", steps, at_least=0, at_most=MOST_STEPS, whole=True)
    check.number("q", q, at_least=0, at_most=1)
    check.number("delta", delta, above=0, below=1)


def rdp_spend(z: float, steps: int, q: float = 1.0, *, delta: float) -> float:
    """Return the Renyi accountant's epsilon for the same releases, as a cross-check."""
    return rdp_epsilon(
        (((Gaussian(float(z)), Sampling("poisson", q), "zero-out"), int(steps)),), delta
    )


@lru_cache(maxsize=1024)
def noise_for(
    epsilon: float, steps: int, q: float = 1.0, *, delta: float, law: str = "poisson"
) -> float:
    """Return the least noise multiplier (to 0.1%) with which ``steps`` releases cost ``epsilon``.

    They cost at most that, by the certificate.
    """
    check.number("epsilon", epsilon, above=0)
    _check_releases(steps, q, delta)
    mu = gdp_mu(epsilon, delta)
    if q == 1 or steps == 0 or q == 0:
        return math.sqrt(steps) / mu if q else 0.0
    # where the central limit theorem puts it
    start = math.log1p((mu / q) ** 2 / steps) ** -0.5
    cost = partial(spend, steps=steps, q=q, delta=delta, law=law)
    return _least(cost, epsilon, start, "no noise multiplier up to 10^18 is enough")


@lru_cache(maxsize=1024)
def laplace_for(epsilon: float, steps: int, *, delta: float) -> float:
    """Return the least Laplace scale (to 0.1%) with which ``steps`` releases cost ``epsilon``.

    In units of the sensitivity.
    """
    check.number("epsilon", epsilon, above=0)
    check.number("steps", steps, at_least=1, at_most=MOST_STEPS, whole=True)

    def cost(b: float, *, quick: bool = False) -> float:
        bill: Bill = frozenset({((Laplace(b), Sampling(), "zero-out"), steps)})
        return bill_epsilon(bill, "zero-out", delta, quick=quick)

    # simple, and nearly normal
    start = min(steps / epsilon, math.sqrt(2 * steps) / gdp_mu(epsilon, delta))
    return _least(cost, epsilon, start, "no Laplace noise up to 10^18 is enough")


def vote_noise_for(epsilon: float, queries: int, kind: str, *, delta: float) -> float:
    """Return the scale of the noise on each count of votes.

    With it, all queries cost a voter ``epsilon``.
    """
    if kind == "gaussian":
        return math.sqrt(2) * noise_for(epsilon, queries, delta=delta)
    return 2 * laplace_for(epsilon, queries, delta=delta)


def steps_for(
    epsilon: float, z: float, q: float = 1.0, *, delta: float, law: str = "poisson"
) -> int:
    """Return the most releases (to 0.1%) that cost at most ``epsilon``.

    0 if one is too many already.
    """
    check.number("epsilon", epsilon, above=0)
    cost = partial(spend, z, q=q, delta=delta, law=law)
    if cost(1) > epsilon:
        return 0
    if cost(FAR, quick=True) <= epsilon:
        raise BadInput(f"z = {z}: more than 10^9 steps cost less than epsilon {epsilon:g}")
    start = min(max(gdp_mu(epsilon, delta) ** 2 / _limit_mu2(z, q), 1.0), FAR)

    def each(share: float, *, quick: bool = False) -> float:
        return cost(max(1, round(1 / share)), quick=quick)

    steps = max(1, round(1 / _least(each, epsilon, 1 / start, good=1.0)))
    while steps < 1000 and cost(steps + 1) <= epsilon:
        steps += 1
    return steps


def rate_for(epsilon: float, z: float, steps: int, *, delta: float, law: str = "poisson") -> float:
    """Return the largest sampling rate (to 0.1%) with which ``steps`` releases cost ``epsilon``.

    They cost at most that, by the certificate.
    """
    check.number("epsilon", epsilon, above=0)
    if spend(z, steps, 1.0, delta=delta) <= epsilon:
        return 1.0
    if z == 0:
        raise BadInput(f"z = {z}: must be above 0, as without noise no sampling rate is enough")

    def cost(left_out: float, *, quick: bool = False) -> float:
        return spend(z, steps, 1 / left_out, delta=delta, law=law, quick=quick)

    # where the central limit theorem puts it
    start = gdp_mu(epsilon, delta) / math.sqrt(steps * _limit_mu2(z, 1e-3)) * 1e-3
    refusal = "no sampling rate from 10^-18 on is low enough"
    return 1 / _least(cost, epsilon, 1 / min(max(start, 1e-15), 0.99), refusal, bad=1.0)


def _limit_mu2(z: float, q: float) -> float:
    """Return mu^2 of one release after the central limit theorem; too low, but a place to start."""
    alone = (1 / z) * (1 / z)
    return alone if q == 1 else q * q * math.expm1(min(alone, 600.0))


class Cost(Protocol):
    """What some amount of protection costs: the more of it, the less."""

    def __call__(self, x: float, /, *, quick: bool = False) -> float: ...


def _least(
    cost: Cost,
    epsilon: float,
    start: float,
    refusal: str = "",
    *,
    bad: float = 0.0,
    good: float = math.inf,
) -> float:
    """Return the least ``x`` that costs at most ``epsilon``: about, by quick figures; then to 0.1%.

    ``bad`` is known to cost too much, ``good`` not to. Where epsilon is nearly 0 and falls to it
    all at once, what was found quickly may stand.
    """
    search = Search(epsilon, start, bad, good)
    about = search.meet(partial(cost, quick=True), looks=60, within=2e-2)
    if about == math.inf:
        raise BadInput(f"epsilon = {epsilon:g}: {refusal}")
    return Search(epsilon, about, bad, about, search.slope).meet(cost, looks=3, within=1e-3)


@dataclass
class Search:
    """A search for the least ``x`` whose cost, a falling function, is at most ``epsilon``.

    Secants of log cost over log x, between an ``x`` that costs too much (``low``) and one that does
    not (``high``). Where they hardly move, halves.
    """

    epsilon: float
    x: float
    low: float
    high: float = math.inf
    slope: float = -1.0
    last: tuple[float, float] | None = None

    def meet(self, cost: Callable[[float], float], *, looks: int, within: float) -> float:
        """Return an ``x`` that costs epsilon or ``within`` less, or the least found so far."""
        for look in range(looks):
            if not LEAST < self.x < 1 / LEAST:
                break
            spent = cost(self.x)
            if spent <= self.epsilon:
                self.high = min(self.high, self.x)
            else:
                self.low = max(self.low, self.x)
            close = self.epsilon * (1 - within) <= spent <= self.epsilon
            if close or self.high <= self.low * (1 + within):
                break
            self._move(spent, aim=within / 2, halve=look % 4 == 3)
        return self.high

    def _move(self, spent: float, *, aim: float, halve: bool) -> None:
        """Choose the next ``x``: where the secant points, if that is between the known ends."""
        wanted = math.nan
        if 0 < spent < math.inf:
            here = math.log(self.x), math.log(spent / self.epsilon)
            if self.last and here[0] != self.last[0]:
                slope = (here[1] - self.last[1]) / (here[0] - self.last[0])
                self.slope = min(slope, -0.2)
            self.last = here
            wanted = math.exp(min(max(here[0] - (here[1] + aim) / self.slope, -700.0), 700.0))
        if self.low < wanted < self.high and not halve:
            self.x = wanted
        elif self.low > 0 and self.high < math.inf:
            self.x = math.sqrt(self.low * self.high)
        else:
            self.x *= 16 if self.high == math.inf else 1 / 16
