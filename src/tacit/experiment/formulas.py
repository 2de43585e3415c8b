"""What a paper prints that follows from a formula alone: its claims over rounds, and its matrices.

Nothing here certifies. Papers' files of data name these functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tacit.compress import coherence as measuring
from tacit.methods import cuag_claims, ldp_fl_claims
from tacit.privacy.gdp import gdp_epsilon

DELTA = 1e-5
CUAG = {"mu": 0.25, "D": 500, "lam": 0.1, "B": 50, "P": 25}  # CUAG-PFL, section 7.2.4


def performance_loss(
    clients: int, epsilon: float, delta: float, rounds: int, all_rounds: int
) -> float:
    """LDP-FL's performance loss after some rounds, with the noise of all of them (table 3)."""
    ratio = ldp_fl_claims.ratio(all_rounds, epsilon, delta)
    return ldp_fl_claims.performance_loss([ratio] * clients, rounds)


def coherence(matrix: str, basis: str, rate: float, numbers: int = 512) -> float:
    """How coherent a measurement matrix is with a basis (CUAG-PFL, figure 3)."""
    return measuring.coherence(
        measuring.explicit(matrix, numbers, rate), measuring.basis(basis, numbers)
    )


def cuag_epsilon(t: int) -> float:
    """CUAG-PFL claims the same after every round."""
    return gdp_epsilon(CUAG["mu"], DELTA)


def cuag_sigma(t: int) -> float:
    """CUAG-PFL's noise multiplier in a round."""
    c = CUAG
    return cuag_claims.sigma(c["mu"], int(c["D"]), c["lam"], int(c["B"]), t, int(c["P"]))


def prifedsync_epsilon(t: int, sigma: float = 0.45) -> float:
    """PriFedSync's eps by theorem 4: rate lambda B / |D|, one step a round, as figure 4 has it."""
    rate = CUAG["lam"] * CUAG["B"] / CUAG["D"]
    return gdp_epsilon(rate * math.sqrt(t * math.expm1(1 / sigma**2)), DELTA)


def dp_scaffold_epsilon(t: int, sigma: float = 1.0) -> float:
    """DP-SCAFFOLD's eps by theorem 1, with sensitivity 1."""
    return math.sqrt(2 * CUAG["lam"] * t * math.log(1 / DELTA)) / sigma


def udp_epsilon(t: int) -> float:
    """UDP claims the same after every round."""
    return 10.0


def udp_sigma(t: int) -> float:
    """UDP's noise by theorem 1, with sensitivity 1."""
    return math.sqrt(2 * CUAG["lam"] * t * math.log(1 / DELTA)) / udp_epsilon(t)


FORMULAS: dict[str, Callable[..., float]] = {
    f.__name__: f
    for f in (
        performance_loss,
        coherence,
        cuag_epsilon,
        cuag_sigma,
        prifedsync_epsilon,
        dp_scaffold_epsilon,
        udp_epsilon,
        udp_sigma,
    )
}
