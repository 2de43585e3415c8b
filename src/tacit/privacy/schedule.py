"""How a client's budget is shared out over the rounds that it takes part in, and over what it releases in each."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal

from tacit.core import Gaussian, Sampling
from tacit.privacy.accounting import Part, bill_epsilon
from tacit.privacy.calibrate import noise_for
from tacit.privacy.gdp import gdp_epsilon

Schedule = Literal["constant", "harmonic"]


def mu_in_round(mu: float, k: int, K: int, schedule: Schedule) -> float:
    """Return mu_k of a client's k-th round of K, with sum mu_k^2 = mu^2: the same in each, or mu_k^2 ~ 1/k.

    >>> mu_in_round(2.0, 1, 4, "constant")
    1.0
    """
    return mu / math.sqrt(K if schedule == "constant" else k * sum(1 / j for j in range(1, K + 1)))


@lru_cache(maxsize=256)
def noise_beside(mu: float, share: float, K: int, P: int, q: float, delta: float) -> tuple[float, float]:
    """Return two noise multipliers: of P steps on samples of rate q, and of one release beside them, in K rounds.

    Together they cost the epsilon of mu. The release gets ``share`` of mu^2, the steps what is left of epsilon.
    """
    epsilon, z_release = gdp_epsilon(mu, delta), math.sqrt(K / share) / mu
    z = noise_for(gdp_epsilon(mu * math.sqrt(1 - share), delta), K * P, q, delta=delta)
    release: Part = (Gaussian(z_release), Sampling(), "add/remove")

    def cost(z: float) -> float:
        step: Part = (Gaussian(z), Sampling.at(q), "add/remove")
        return bill_epsilon(frozenset({(release, K), (step, K * P)}), "add/remove", delta, 1e-3)

    while cost(z) > epsilon * (1 + 1e-9):
        z *= 1.01
    return z, z_release
