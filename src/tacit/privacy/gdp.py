"""Gaussian differential privacy (Dong, Roth and Su 2022).

Exact for Gaussian releases without subsampling.

A release with noise multiplier z is 1/z-GDP; releases compose as mu = sqrt(sum of mu_i^2), without
loss.
"""

from __future__ import annotations

import math
from functools import lru_cache

from tacit.core import check


def gdp_log_delta(mu: float, epsilon: float) -> float:
    """Return the log of delta(eps) = Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2)."""
    from scipy.special import log_ndtr  # imported late: scipy would slow down every start

    first = float(log_ndtr(mu / 2 - epsilon / mu))
    second = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    return first + math.log(-math.expm1(second - first)) if second < first else -math.inf


@lru_cache(maxsize=10_000)
def gdp_epsilon(mu: float, delta: float) -> float:
    """Return the epsilon of a mu-GDP release at delta.

    >>> round(gdp_epsilon(0.25, 1e-5), 3), round(gdp_epsilon(2.0, 1e-5), 2)
    (0.926, 10.0)
    """
    check.number("delta", delta, above=0, below=1)
    if mu <= 0 or math.erf(mu / math.sqrt(8)) <= delta:
        return 0.0
    high = mu * (mu / 2 + math.sqrt(-2 * math.log(delta)))  # Phi(-x) <= exp(-x^2 / 2)
    if math.isinf(high):
        return math.inf
    low = 0.0
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if gdp_log_delta(mu, middle) > math.log(delta) else (low, middle)
    return high


@lru_cache(maxsize=10_000)
def gdp_mu(epsilon: float, delta: float) -> float:
    """Return the largest mu whose epsilon at delta is at most the given one.

    >>> round(gdp_mu(1.0, 1e-5), 3), round(gdp_mu(8.0, 1e-5), 3)
    (0.268, 1.666)
    """
    check.number("epsilon", epsilon, above=0)
    low = 0.0
    high = 1.0
    while gdp_epsilon(high, delta) <= epsilon:
        low = high
        high = 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if gdp_epsilon(middle, delta) <= epsilon else (low, middle)
    return low
