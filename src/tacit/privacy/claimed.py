"""The accountants of the papers. What they say is shown beside the certificate as `claimed`.

Nothing here certifies.
"""

from __future__ import annotations

import math

from tacit.core import BadInput, check
from tacit.privacy.gdp import gdp_epsilon


def log_moment(order: int, ratio: float, q: float = 1.0) -> float:
    """Return alpha(lambda) of the moments accountant for one round (Abadi et al. 2016).

    With v0 = N(0, s^2) and v1 = (1-q) N(0, s^2) + q N(d, s^2): the log of E_{v0} (v1/v0)^(lambda +
    1), in closed form.

    Args:
        order: lambda
        ratio: d / s
        q: sampling rate
    """
    n = order + 1
    away = math.log1p(-q) if q < 1 else -math.inf  # log of the share that is not sampled
    terms = [
        math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
        + ((n - k) * away if k < n else 0.0)
        + (k * math.log(q) if k else 0.0)
        + k * (k - 1) * ratio**2 / 2
        for k in range(n + 1)
    ]  # fmt: skip
    top = max(terms)
    return top + math.log(sum(math.exp(t - top) for t in terms))


def moments_epsilon(ratio: float, rounds: int, q: float = 1.0, *, delta: float) -> float:
    """Return the moments accountant's epsilon.

    The least (rounds * alpha(lambda) + ln(1/delta)) / lambda.

    At q = 1 the order need not be whole, and the minimum is T r^2 / 2 + r sqrt(2 T ln(1/delta)).
    """
    check.number("delta", delta, above=0, below=1)
    if q == 1:
        return rounds * ratio**2 / 2 + ratio * math.sqrt(2 * rounds * math.log(1 / delta))
    return min((rounds * log_moment(n, ratio, q) + math.log(1 / delta)) / n for n in range(1, 257))


def moments_noise(epsilon: float, rounds: int, q: float = 1.0, *, delta: float) -> float:
    """Return the noise multiplier with which the moments accountant counts ``epsilon``."""
    from scipy.optimize import brentq  # slow to import

    check.number("epsilon", epsilon, above=0)
    check.number("rounds", rounds, at_least=1)

    def over(log_z: float) -> float:
        return moments_epsilon(math.exp(-log_z), rounds, q, delta=delta) - epsilon

    low, high = math.log(1e-2), math.log(1e4)
    if not over(high) < 0 < over(low):
        raise BadInput(f"epsilon = {epsilon:g}: no noise between 0.01 and 10,000 costs that much")
    return math.exp(brentq(over, low, high, xtol=1e-9))


def other_of(one: float, rounds: int, q: float = 1.0, *, delta: float) -> float:
    """Return epsilon from a noise multiplier, or the other way round, by a formula of many papers.

    Their product is sqrt(2 q T ln(1/delta)) (LDP-FL, UDP, CUAG-PFL's theorem 1).
    """
    check.number("delta", delta, above=0, below=1)
    return math.sqrt(2 * q * rounds * math.log(1 / delta)) / one


def clt_epsilon(z: float, steps: int, q: float, *, delta: float) -> float:
    """Return the central-limit GDP epsilon, mu = q sqrt(T (e^(1/z^2) - 1)).

    Too low for finitely many steps.
    """
    if z < 0.04:  # e^625 and more
        return math.inf
    return gdp_epsilon(q * math.sqrt(steps * math.expm1(z**-2)), delta)
