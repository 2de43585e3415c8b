"""The accountants of the papers. What they say is shown beside the certificate as `claimed`.

Nothing here certifies.
"""

from __future__ import annotations

import math
from functools import partial

from tacit.core import Gaussian, Sampling, check_number
from tacit.privacy.bill import Part
from tacit.privacy.gdp import gdp_epsilon
from tacit.privacy.pld import pld_epsilon


def log_moment(order: int, ratio: float, q: float = 1.0) -> float:
    """Return alpha(lambda) = log E_{v1,v0}, with v0 = N(0, s^2), v1 = (1-q) N(0, s^2) + q N(ds, s^2), ratio = ds / s.

    LDP-FL's equation for one round (as in Abadi et al. 2016): the log of E_{v0} (v1/v0)^(lambda +
    1), in closed form.
    """
    n = order + 1
    terms = [
        math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
        + (0.0 if k == n else (n - k) * math.log1p(-q) if q < 1 else -math.inf)
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
    check_number("delta", delta, above=0, below=1)
    if q == 1:
        return rounds * ratio**2 / 2 + ratio * math.sqrt(2 * rounds * math.log(1 / delta))
    return min((rounds * log_moment(n, ratio, q) + math.log(1 / delta)) / n for n in range(1, 257))


def clt_epsilon(z: float, steps: int, q: float, *, delta: float) -> float:
    """Return the central-limit GDP epsilon, mu = q sqrt(T (e^(1/z^2) - 1)).

    Too low for finitely many steps.
    """
    if z < 0.04:  # e^625 and more
        return math.inf
    return gdp_epsilon(q * math.sqrt(steps * math.expm1(z**-2)), delta)


def kd_dpfl_sigma(C: float, n: int, epsilon: float, delta: float) -> float:
    """Return KD-DPFL's noise on weights, (2C/n) sqrt(2 ln(1.25/delta)) / eps, with the sensitivity that it lacks."""
    return 2 * C / n * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def kd_dpfl_round(
    budget: float, N: int, ratio: float, eps_pub: float = 0.0
) -> tuple[float, float, float]:
    """Return eps_pub, eps_pri and what KD-DPFL counts for a round.

    Eps_pub + (N - 1) eps_pri, eps_pri = ratio eps_pub.

    Without an eps_pub it is the one with which the round costs ``budget``.

    >>> kd_dpfl_round(3.0, 5, 0.5)
    (1.0, 0.5, 3.0)
    """
    units = 1 + (N - 1) * ratio
    eps_pub = eps_pub or budget / units
    return eps_pub, ratio * eps_pub, eps_pub * units


def cuag_sigma(mu: float, D: int, lam: float, B: int, t: int, P: int) -> float:
    """Return CUAG-PFL's noise multiplier in round t = 1, 2, ....

    By the central limit theorem, mu in all up to then.
    """
    return 1 / math.sqrt(math.log1p(mu**2 * D**2 / (4 * lam**2 * B**2 * t * P)))


def cuag_claims(mu: float, B: int, P: int, delta: float) -> list[tuple[str, float, str]]:
    """Return what CUAG-PFL's mu comes to in its own setting.

    300 rounds, 10 of 100 clients, 500 examples each.
    """
    T, D, lam = 300, 500, 0.1
    H = sum(1 / t for t in range(1, T + 1))
    own = partial(cuag_epsilon, mu, D=D, lam=lam, B=B, P=P, delta=delta)
    exact = [(f"exact, round {t}", own(t), "PLD of the paper's own model") for t in (1, 10, 100, T)]
    fixed = lam * sum(
        (B / cuag_sigma(mu, D, lam, B, t, P)) ** 2 for t in range(1, T + 1)
    )  # a client is in lam T rounds
    return [
        (
            "published",
            gdp_epsilon(mu, delta),
            f"mu = {mu:g} in {T} rounds, 10 of 100 clients, {D} examples each",
        ),
        (
            "mu sqrt(H_T)",
            gdp_epsilon(mu * math.sqrt(H), delta),
            f"sigma is solved anew in each round: the rounds add up to {mu * H**0.5:.3f}",
        ),
        *exact,
        (
            "public clip",
            gdp_epsilon(math.sqrt(fixed), delta),
            "real noise, were C public: updates are 2C apart",
        ),
    ]


def cuag_epsilon(mu: float, t: int, *, D: int, lam: float, B: int, P: int, delta: float) -> float:
    """Return the epsilon of CUAG-PFL's own model after t rounds, by PLD.

    P steps a round, samples of rate 2 lam B/D.
    """
    sampling = Sampling.at(2 * lam * B / D)
    parts: list[Part] = [
        (Gaussian(cuag_sigma(mu, D, lam, B, s, P)), sampling, "zero-out") for s in range(1, t + 1)
    ]
    return pld_epsilon([(part, P) for part in parts], "zero-out", delta, 1e-3)
