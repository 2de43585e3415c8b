"""The privacy loss distribution of dp-accounting, rounded up, on a grid that fits the question.

The tightest accountant for samples. A release costs time and memory by the number of points on the
grid, so the grid is relative to what is asked: epsilon over 1,000 to begin with, halved until
epsilon moves by less than 0.01% or there would be too many points.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from tacit.core import Gaussian, Laplace, Relation, Sampling
from tacit.privacy.bill import Costs, Part, gaussian_mu, merged, pure_epsilon, twice
from tacit.privacy.bounds import Curve, unsampled_epsilon

PARTS = 48  # different mechanisms
RELEASES = 10**7  # all of them
# on a grid: of single releases together, to begin with and at most; and of their composition
COARSE_POINTS = 3000
POINTS = 25_000
SUM_POINTS = 250_000
# between two points: less is lost in rounding, more makes their ratio e^interval overflow
FINEST = 1e-12
COARSEST = 16.0
LARGEST = 690.0  # epsilon: beyond, probabilities are e^-epsilon times smaller than any number


def grids(paid: Costs, relation: Relation, delta: float) -> Iterator[float]:
    """Yield ever tighter upper bounds on epsilon; none where no grid can be trusted."""
    if sum(n for _, n in paid) > RELEASES or rounding(paid) > delta / 100:
        return
    paid = merged(paid, PARTS)
    widths = [_width(part, relation) for part, _ in paid]
    if len(paid) > PARTS or sum(widths) / COARSE_POINTS > COARSEST:
        return
    interval, finest = _intervals(paid, widths, relation, delta)
    if not FINEST < interval < COARSEST:
        return
    last = math.inf
    now = pld_epsilon(paid, relation, delta, interval)
    if now > LARGEST:
        return
    yield now
    while last - now > 1e-4 * now and interval > finest:
        interval /= 2
        last = now
        now = min(now, pld_epsilon(paid, relation, delta, interval))
        yield now


def rounding(paid: Costs) -> float:
    """Return how much of delta the rounding errors of Fourier transforms may hide.

    Found by comparison with exact Gaussians: below 1e-13 for a few releases, and growing with
    their number, as each takes a power of a rounded number.
    """
    return 1e-12 + 1e-15 * sum(n for _, n in paid)


def pld_epsilon(paid: Costs, relation: Relation, delta: float, interval: float) -> float:
    """Return the epsilon of the composed privacy loss distribution on a given grid.

    Never below the truth.
    """
    # imported late: it would slow down every start
    from dp_accounting.pld import privacy_loss_distribution as pld

    total = pld.identity(value_discretization_interval=interval)
    for part, n in paid:
        total = total.compose(_times(_pld(part, relation, interval), n))
    with np.errstate(over="ignore"):  # infinite, where it is too large for a grid
        return float(total.get_epsilon_for_delta(delta - rounding(paid)))


def _times(one: Any, n: int) -> Any:
    """Return n releases, where n is large up to 0.1% more.

    Many in two steps: for a small distribution, dp-accounting computes size^n in whole numbers,
    which for large n have millions of digits.
    """
    few = 64
    if n <= 1000 * few:
        return one.self_compose(n)
    some = one.self_compose(few, tail_mass_truncation=1e-15 * few / n)
    return some.self_compose(-(-n // few))


@lru_cache(maxsize=128)
def _pld(part: Part, relation: Relation, interval: float) -> Any:
    """Return the privacy loss distribution of one release."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    event, sampling, stated = part
    if isinstance(event, Gaussian):
        return _gaussian_pld(event.z, sampling, twice(stated, relation), interval)
    epsilon = pure_epsilon(part, relation)
    if isinstance(event, Laplace):
        return pld.from_laplace_mechanism(1 / epsilon, value_discretization_interval=interval)
    return _pure_pld(epsilon, interval)


def _gaussian_pld(z: float, sampling: Sampling, replaced: bool, interval: float) -> Any:
    """Return the PLD of one Gaussian release on a sample.

    Poisson: dp-accounting's, for either relation. Fixed size, without replacement: the sample with
    and without a unit differ by exchanging it for another, which moves the sum by twice the clip,
    so both relations are dominated by the Poisson pair with half the noise (Zhu, Dong and Wang
    2022, Proposition 30).
    """
    import dp_accounting as dp
    from dp_accounting.pld import privacy_loss_distribution as pld

    grid = {"value_discretization_interval": interval}
    if sampling.law == "fixed":
        return pld.from_gaussian_mechanism(z / 2, sampling_prob=sampling.q, **grid)
    neighbours = dp.NeighboringRelation.ADD_OR_REMOVE_ONE
    if replaced:
        neighbours = dp.NeighboringRelation.REPLACE_ONE
    return pld.from_gaussian_mechanism(
        z, sampling_prob=sampling.q, neighboring_relation=neighbours, **grid
    )


def _pure_pld(epsilon: float, interval: float) -> Any:
    """Return the PLD of randomised response, the worst of all mechanisms with this epsilon.

    Its loss is +-epsilon. On the grid it lies between two points each, with the weights at which
    delta is right on the grid and too high between (connect the dots).
    """
    from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    top = math.ceil(epsilon / interval)
    points = np.array(sorted({-top, 1 - top, top - 1, top}))
    right = -math.log1p(math.exp(-epsilon))  # log of the probability of the true answer
    lies = np.exp(right - epsilon + points * interval)
    deltas = np.maximum(0, math.exp(right) - lies)
    truths = np.exp(np.minimum(right + points * interval, 0))
    deltas += np.maximum(0, math.exp(right - epsilon) - truths)
    deltas[-1] = 0.0  # at epsilon and above
    with np.errstate(over="ignore"):  # the middle is wide, and empty
        losses = create_pmf_pessimistic_connect_dots(interval, points, deltas)
    return PrivacyLossDistribution(losses)


def _intervals(
    paid: Costs, widths: Sequence[float], relation: Relation, delta: float
) -> tuple[float, float]:
    """Return the interval to begin with and the finest that is affordable, as powers of two.

    They follow from rough figures: how wide the losses of one release and of all are spread, and
    what epsilon will be about. Too rough ones cost time or tightness, and nothing else.
    """
    releases = sum(n for _, n in paid)
    orders = np.array([1, 2, 4, 8, 20]) / max(widths)  # some of those that tails are cut off by
    spread = sum(n * _divergence(part, relation, 1 + orders) for part, n in paid)
    about = min(spread - math.log(delta) / orders)
    about = min(about, unsampled_epsilon(paid, relation, delta))
    length = min(2 * min(spread + 40 / orders), releases * max(widths))
    first = min(about / 1000, math.sqrt(about / 50 / releases))
    # each has its overhead, beside which a few points more cost nothing
    room = 1 + len(paid) / 10
    first = max(first, sum(widths) / (room * COARSE_POINTS), length / (SUM_POINTS / 2))
    last = max(sum(widths) / (room * POINTS), length / SUM_POINTS)
    return 2.0 ** math.floor(math.log2(first)), 2.0 ** math.ceil(math.log2(last))


def _width(part: Part, relation: Relation) -> float:
    """Return about how far apart the least and the largest loss of one release are."""
    event, sampling, _ = part
    if not isinstance(event, Gaussian):
        return 2 * pure_epsilon(part, relation)
    if sampling.law == "everyone" or sampling.q == 1:
        return 20 * gaussian_mu(part, relation)
    mu = _pair_mu(part)
    top = mu * (mu / 2 + 10)  # ten standard deviations
    top = math.log1p(sampling.q * math.expm1(top)) if top < 700 else top + math.log(sampling.q)
    below = top if _far(part, relation) == 2 else min(top, -math.log1p(-sampling.q))
    return top + below


def _pair_mu(part: Part) -> float:
    """Return how far apart the Gaussians are that a sampled release mixes."""
    event, sampling, _ = part
    assert isinstance(event, Gaussian)
    return (2 if sampling.law == "fixed" else 1) / event.z


def _far(part: Part, relation: Relation) -> int:
    """Return 2 for a sampled release that is twice as far from its neighbour as its mixture."""
    _, sampling, stated = part
    return 2 if twice(stated, relation) and sampling.law == "poisson" else 1


def _divergence(part: Part, relation: Relation, orders: Curve) -> Curve:
    """Return about the Renyi divergence of one release, by quadrature."""
    event, sampling, _ = part
    if not isinstance(event, Gaussian):
        epsilon = pure_epsilon(part, relation)
        return np.minimum(epsilon, orders * epsilon * epsilon / 2)
    mu = _pair_mu(part)
    if sampling.law == "everyone" or sampling.q == 1 or mu > 20:
        return orders * gaussian_mu(part, relation) ** 2 / 2
    x = np.linspace(-12, 14 + mu, 2000)
    loss = np.logaddexp(math.log1p(-sampling.q), math.log(sampling.q) + mu * (x - mu / 2))
    density = np.exp(-x * x / 2) * (x[1] - x[0]) / math.sqrt(2 * math.pi)
    # what is left of the moment when its mean, 1, is taken off without rounding it away
    tilted = np.minimum(np.outer(orders, loss), 700)
    excess = np.expm1(tilted) - np.outer(orders, np.expm1(loss))
    found: Curve = _far(part, relation) ** 2 * np.log1p(excess @ density) / (orders - 1)
    return found
