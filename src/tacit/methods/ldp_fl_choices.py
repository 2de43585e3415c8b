"""What LDP-FL chooses itself where gradients of a linear model are sent: numbers, and a step size.

They were chosen on training data that were held out, never on test data: docs/methods/ldp_fl.md.
"""

from __future__ import annotations

from tacit.local.linear import noise_in_mean

__all__ = ["CLIP", "FASTEST", "MOMENTUM", "MOVED", "noise_in_mean", "step_size"]

CLIP, MOMENTUM = 0.4, 0.9  # clipping norm of an example's gradient; of the server
MOVED = 0.45  # how far a round's noise may move the model: step size times norm of the noise
FASTEST = 32.0  # the largest step size


def step_size(noise: float) -> float:
    """Return the step size for a norm of the noise in a round's mean gradient.

    >>> step_size(0.05), step_size(0.001)
    (9.0, 32.0)
    """
    return float(f"{min(FASTEST, MOVED / noise):.4g}") if noise else FASTEST
