"""Who takes part how often, and how a client's budget is shared out over its rounds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from tacit.core import Array, ClientId, Gaussian, Sampling
from tacit.privacy.accounting import bill_epsilon
from tacit.privacy.bill import Part
from tacit.privacy.calibrate import noise_for
from tacit.privacy.gdp import gdp_epsilon

Schedule = Literal["constant", "harmonic"]


@dataclass(frozen=True)
class Turns:
    """In each round ``k`` clients of a pool, by lot.

    If it is fair, of those that had the fewest turns so far.
    """

    pool: Sequence[ClientId]
    k: int
    rounds: int
    fair: bool = True
    most: int = 0  # turns of one client, if it is fair; 0: no limit

    def drawn(self, lots: Sequence[Array]) -> list[list[ClientId]]:
        """Return who takes part in each round.

        A round's lots are in the order of the pool, and the least win.
        """
        taken = Counter[ClientId]()
        plan = []
        for round_lots in lots:
            lot = dict(zip(self.pool, round_lots, strict=True))
            free = [i for i in self.pool if not (self.fair and self.most and taken[i] >= self.most)]
            first = sorted(free, key=lambda i: (self.fair and taken[i], lot[i]))
            plan.append(sorted(first[: self.k]))
            taken.update(plan[-1])
        return plan

    def at_most(self) -> int:
        """Return how many turns a client can have, if it is fair.

        No two clients' differ by more than one.

        >>> Turns(["a", "b", "c"], 2, rounds=4).at_most()
        3
        """
        K = math.ceil(self.rounds * self.k / len(self.pool))
        return min(K, self.most or K)


def mu_in_round(mu: float, k: int, K: int, schedule: Schedule) -> float:
    """Return mu_k of a client's k-th round of K, with sum mu_k^2 = mu^2.

    The same in each, or mu_k^2 ~ 1/k.

    >>> mu_in_round(2.0, 1, 4, "constant")
    1.0
    """
    return mu / math.sqrt(K if schedule == "constant" else k * sum(1 / j for j in range(1, K + 1)))


@lru_cache(maxsize=256)
def noise_beside(
    mu: float, share: float, K: int, P: int, q: float, delta: float
) -> tuple[float, float]:
    """Return two noise multipliers.

    Of P steps on samples of rate q, and of one release beside them, in K rounds.

    Together they cost the epsilon of mu. The release gets ``share`` of mu^2, the steps what is left
    of epsilon.
    """
    epsilon = gdp_epsilon(mu, delta)
    z_release = math.sqrt(K / share) / mu
    z = noise_for(gdp_epsilon(mu * math.sqrt(1 - share), delta), K * P, q, delta=delta)
    release: Part = (Gaussian(z_release), Sampling(), "zero-out")

    def cost(z: float) -> float:
        step: Part = (Gaussian(z), Sampling.at(q), "zero-out")
        return bill_epsilon(frozenset({(release, K), (step, K * P)}), "zero-out", delta, quick=True)

    while cost(z) > epsilon * (1 + 1e-9):
        z *= 1.01
    return z, z_release
