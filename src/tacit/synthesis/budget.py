"""How much noise a GAN trains with, and for how many steps, within a budget.

`certified` asks the certificate (PLD). `paper` asks the accountant that DA-FL's authors had, the
moments accountant in its Renyi form, as Opacus has it: a budget of 50 then ends after epoch 32 of
50, with 49.5 spent. The ledger has what was really spent, whichever of them was asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Literal

from tacit.core import BadInput
from tacit.privacy.calibrate import noise_for, rdp_spend, spend, steps_for

Mode = Literal["certified", "paper"]
PUBLISHED_Z = 0.5  # DA-FL's noise multiplier


def solved_noise(mode: Mode, steps: int, q: float, epsilon: float, delta: float) -> float:
    """Return the noise multiplier of a training for which none was chosen.

    Certified, it is the one with which all steps cost the budget. The paper's is 0.5, as long as
    the budget lasts for half of the steps; below that (its table 4 goes down to 1) it is solved.

    Args:
        mode: whose accountant is asked
        steps: of the whole training
        q: the share of the examples in each
        epsilon: the budget; inf is no noise
        delta: of that epsilon
    """
    if epsilon == math.inf:
        return 0.0
    if mode == "certified":
        return noise_for(epsilon, steps, q, delta=delta)
    if rdp_spend(PUBLISHED_Z, -(-steps // 2), q, delta=delta) <= epsilon:
        return PUBLISHED_Z
    return _published_noise(steps, q, epsilon, delta)


@lru_cache(maxsize=256)
def _published_noise(steps: int, q: float, epsilon: float, delta: float) -> float:
    """Return the noise with which all steps cost ``epsilon`` by the paper's accountant."""
    from scipy.optimize import brentq  # slow to import

    def over(log_z: float) -> float:
        return rdp_spend(math.exp(log_z), steps, q, delta=delta) - epsilon

    most = math.log(1e6)
    if over(most) > 0:
        raise BadInput(f"epsilon = {epsilon:g}: too small for {steps} steps, whatever the noise")
    return math.exp(brentq(over, math.log(PUBLISHED_Z), most, xtol=1e-4) + 1e-4)


def permitted(mode: Mode, steps: int, z: float, q: float, epsilon: float, delta: float) -> int:
    """Return how many of the steps are done before the next one would pass the budget.

    The paper looks at the end of each epoch, if the budget lasts for one. There, no noise at all is
    a choice that no budget stops: its ledger says infinity.
    """
    if epsilon == math.inf or (mode == "paper" and z == 0):
        return steps
    cost = spend if mode == "certified" else rdp_spend
    if cost(z, steps, q, delta=delta) <= epsilon:
        return steps
    fewer = _fewer(mode, steps, z, q, epsilon, delta) if z else 0
    if fewer == 0:
        raise BadInput(
            f"gan.z = {z:g}: one step alone costs more than epsilon {epsilon:g}; "
            "more noise is needed"
        )
    return fewer


def _fewer(mode: Mode, steps: int, z: float, q: float, epsilon: float, delta: float) -> int:
    """Return the most steps that the budget lasts for, which is not for all."""
    if mode == "certified":
        return min(steps, steps_for(epsilon, z, q, delta=delta))
    last = _last(lambda n: rdp_spend(z, n, q, delta=delta) <= epsilon, steps)
    return round(math.floor(last * q) / q) or last


def _last(holds: Callable[[int], bool], end: int) -> int:
    """Return the last number below ``end`` for which a property holds that is lost once for all.

    >>> _last(lambda n: n * n <= 50, 100)
    7
    """
    low = 0
    while end - low > 1:
        middle = (low + end) // 2
        low, end = (middle, end) if holds(middle) else (low, middle)
    return low
