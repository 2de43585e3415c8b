"""What LDP-FL chooses itself where gradients of a linear model are sent: numbers, and a step size.

They were chosen on training data that were held out, never on test data: docs/methods/ldp_fl.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

CLIP, MOMENTUM = 0.4, 0.9  # clipping norm of an example's gradient; of the server
MOVED = 0.45  # how far a round's noise may move the model: step size times norm of the noise
FASTEST = 32.0  # the largest step size


def step_size(noise: float) -> float:
    """Return the step size for a norm of the noise in a round's mean gradient.

    >>> step_size(0.05), step_size(0.001)
    (9.0, 32.0)
    """
    return float(f"{min(FASTEST, MOVED / noise):.4g}") if noise else FASTEST


def noise_in_mean(sds: Sequence[float], k: int, numbers: int) -> float:
    """Return the norm of the noise in the mean of k clients' gradients, whoever they are.

    Args:
        sds: of the noise on each number of a client's own mean gradient, of all clients
        k: how many of them take part in a round
        numbers: in the model
    """
    return math.sqrt(sum(sd**2 for sd in sds) / len(sds) / k * numbers)
