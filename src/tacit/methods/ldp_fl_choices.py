"""What LDP-FL chooses itself where gradients of a linear model are sent: numbers, and a step size.

They were chosen on training data that were held out, never on test data: docs/methods/ldp_fl.md.
"""

from __future__ import annotations

from tacit.core import BadInput, Keywords, check
from tacit.local.linear import noise_in_mean

__all__ = [
    "CLIP",
    "FASTEST",
    "MOMENTUM",
    "MOVED",
    "ONLY_IN",
    "check_fits",
    "noise_in_mean",
    "step_size",
]

CLIP, MOMENTUM = 0.4, 0.9  # clipping norm of an example's gradient; of the server
MOVED = 0.45  # how far a round's noise may move the model: step size times norm of the noise
FASTEST = 32.0  # the largest step size
# settings that mean something in one mode only
ONLY_IN = {"relation": "gradient", "mechanism": "update", "deltas": "paper"}


def step_size(noise: float) -> float:
    """Return the step size for a norm of the noise in a round's mean gradient.

    >>> step_size(0.05), step_size(0.001)
    (9.0, 32.0)
    """
    return float(f"{min(FASTEST, MOVED / noise):.4g}") if noise else FASTEST


def check_fits(mode: str, weights: str, said: Keywords) -> None:
    """Refuse what means nothing in a mode, or would tell what it hides."""
    check.choice("weights", weights, ("auto", "alike", "size"))
    if weights == "size" and mode == "update":
        hides = "tells a client's size, which mode = 'update' hides; allowed: auto, alike"
        raise BadInput(f"weights = 'size': {hides}")
    for name, given in said.items():
        if mode != ONLY_IN[name]:
            modes = f"mode = {mode!r}, only in {ONLY_IN[name]!r}"
            raise BadInput(f"{name} = {given!r}: means nothing in {modes}")
