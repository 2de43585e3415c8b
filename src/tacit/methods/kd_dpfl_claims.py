"""KD-DPFL's own formulas (Tan et al. 2024): its noise, what a round costs, and what it claims.

Nothing here certifies.
"""

from __future__ import annotations

import math

from tacit.core import Claim

NO_CLIPPING = "no clipping: noise on weights that nothing bounds proves nothing"


def sigma(C: float, n: int, epsilon: float, delta: float) -> float:
    """Return the noise on weights, (2C/n) sqrt(2 ln(1.25/delta)) / eps.

    The paper's formula lacks the sensitivity; 2C/n is NbAFL's.
    """
    return 2 * C / n * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def round_costs(
    budget: float, N: int, ratio: float, eps_pub: float = 0.0
) -> tuple[float, float, float]:
    """Return eps_pub, eps_pri and what the paper counts for a round: eps_pub + (N - 1) eps_pri.

    Args:
        budget: what the round costs, where no eps_pub is given
        N: participants of the round, the special client among them
        ratio: eps_pri / eps_pub
        eps_pub: of the special client; 0: the one with which the round costs ``budget``

    >>> round_costs(3.0, 5, 0.5)
    (1.0, 0.5, 3.0)
    """
    units = 1 + (N - 1) * ratio
    eps_pub = eps_pub or budget / units
    return eps_pub, ratio * eps_pub, eps_pub * units


def published(epsilon: float) -> list[Claim]:
    """Return what the paper claims for the larger one of its two epsilons, and what is wrong."""
    formula = "max(eps_1, eps_2), where eps_2 adds up over the clients of a round"
    return [("published", epsilon, formula), ("certified", math.inf, NO_CLIPPING)]
