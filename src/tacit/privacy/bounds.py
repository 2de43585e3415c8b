"""Upper bounds on epsilon in closed form: at once, however extreme the numbers.

Two of them: as if nobody were left out of a sample (GDP), and Renyi differential privacy of
dp-accounting. They certify where a privacy loss distribution would be too large, or its rounding
errors larger than delta; and they show that a step is far from its budget.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tacit.core import Gaussian, Laplace, Relation
from tacit.privacy.bill import Costs, Part, gaussian_mu, merged, pure_epsilon, twice
from tacit.privacy.gdp import gdp_epsilon

Curve = NDArray[np.float64]

# whole orders, which are fast and exact; between them the curve is below its chords
WHOLE = (*range(2, 33), 40, 48, 64, 96, 128, 192, 256, 512)
ORDERS = np.unique(np.concatenate([1 + np.geomspace(0.05, 511, 120), WHOLE]))
PARTS = 40  # a curve takes 20 ms
LEAST_NOISE = 1e-6  # below it, squares overflow, and no sampling helps
# Of a log moment, which for much noise is nearly 0: dp-accounting takes one that rounding has made
# negative for no cost at all.
ROUNDING = 1e-12


def unsampled_epsilon(paid: Costs, relation: Relation, delta: float) -> float:
    """Return epsilon as if every release looked at everybody: Gaussians by GDP, others added up."""
    mu2 = 0.0
    rest = 0.0
    for part, n in paid:
        if isinstance(part[0], Gaussian):
            mu = gaussian_mu(part, relation)
            mu2 += mu * mu * n
        else:
            rest += pure_epsilon(part, relation) * n
    return gdp_epsilon(math.sqrt(mu2), delta) + rest


def renyi_epsilon(paid: Costs, relation: Relation, delta: float) -> float:
    """Return the epsilon of Renyi accounting; infinite where it has none for the relation."""
    from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

    paid = merged(paid, PARTS)
    if len(paid) > PARTS:
        return math.inf
    whole = float(compute_epsilon(ORDERS, _sum(paid, relation), delta)[0])
    known = {stated for (_, _, stated), _ in paid}
    if not any(twice(stated, relation) for stated in known) or known & {"replace", "as is"}:
        return whole
    once = [((event, sampling, "either"), n) for (event, sampling, _), n in paid]
    return min(whole, _in_two_steps(once, delta))


def _sum(paid: Costs, relation: Relation) -> Curve:
    total = np.zeros_like(ORDERS)
    with np.errstate(over="ignore"):  # more than any number is infinite
        for part, n in paid:
            total += float(n) * renyi_curve(part, relation)
    return total


def _in_two_steps(paid: Costs, delta: float) -> float:
    """Return epsilon for what is zeroed out and then put back as something else.

    Two steps, each of (e, d), are one of (2 e, (1 + exp e) d).
    """
    curve = _sum(paid, "zero-out")

    def enough(e: float) -> bool:
        logs = (ORDERS - 1) * (curve - e + np.log1p(-1 / ORDERS)) - np.log(ORDERS)
        return bool(min(logs) + np.logaddexp(0, e) <= math.log(delta))

    low = 0.0
    high = 1.0
    while not enough(high):
        low = high
        high = 2 * high
        if high > 1e9:
            return math.inf
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return 2 * high


@lru_cache(maxsize=1024)
def renyi_curve(part: Part, relation: Relation) -> Curve:
    """Return the Renyi divergence of one release at ``ORDERS``, rounding errors included.

    (a - 1) times the divergence of order a is convex in a, so that chords between whole orders
    bound it from above.
    """
    event, sampling, stated = part
    if not isinstance(event, Gaussian):
        return _pure_curve(part, relation)
    swapped = twice(stated, relation) and sampling.law == "poisson"
    if swapped or event.z < LEAST_NOISE:
        return np.full_like(ORDERS, math.inf)
    moments = (np.array(WHOLE) - 1) * _gaussian_divergence(part, relation)
    chords = np.interp(ORDERS, (1, *WHOLE), (0.0, *moments))
    careful: Curve = ((1 + ROUNDING) * chords + 10 * ROUNDING) / (ORDERS - 1)
    return careful


def _gaussian_divergence(part: Part, relation: Relation) -> Curve:
    import dp_accounting as dp
    from dp_accounting.rdp import RdpAccountant

    _, sampling, _ = part
    release = dp.GaussianDpEvent(1 / gaussian_mu(part, relation))
    q = 1.0 if sampling.law == "everyone" else sampling.q
    made = RdpAccountant(WHOLE).compose(dp.PoissonSampledDpEvent(q, release))
    return np.asarray(made.rdp)


def _pure_curve(part: Part, relation: Relation) -> Curve:
    """Return min(epsilon, a epsilon^2 / 2), for Laplace noise the exact curve."""
    epsilon = pure_epsilon(part, relation)
    if isinstance(part[0], Laplace) and 1e-3 < epsilon < 700:
        from dp_accounting import LaplaceDpEvent
        from dp_accounting.rdp import RdpAccountant

        exact = np.asarray(RdpAccountant(ORDERS).compose(LaplaceDpEvent(1 / epsilon)).rdp)
        return exact + 1e-12
    return epsilon * np.minimum(1.0, ORDERS * min(epsilon, 2.0) / 2)


def rdp_epsilon(paid: Iterable[tuple[Part, int]], delta: float) -> float:
    """Return the epsilon of dp-accounting's own Renyi orders for zero-out, as a cross-check.

    An upper bound, usually looser than the certificate.
    """
    import absl.logging
    import dp_accounting as dp
    from dp_accounting.rdp import RdpAccountant
    from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

    # it warns of orders that it leaves out, which only loosens the bound
    absl.logging.set_verbosity(absl.logging.ERROR)
    accountant = RdpAccountant()
    total = 0
    for (event, sampling, _), n in paid:
        if not isinstance(event, Gaussian) or event.z < LEAST_NOISE:
            return math.inf
        z = event.z / 2 if sampling.law == "fixed" else event.z
        accountant.compose(dp.PoissonSampledDpEvent(sampling.q, dp.GaussianDpEvent(z)), n)
        total += n
    orders = accountant.orders
    careful = (1 + ROUNDING) * accountant.rdp + 10 * ROUNDING * total / (orders - 1)
    return float(compute_epsilon(orders, careful, delta)[0])
