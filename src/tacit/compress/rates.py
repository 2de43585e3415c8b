"""Compression rates of the layers: the share of a layer's numbers that is sent."""

from __future__ import annotations

from tacit.core import BadInput, Params, check

LEAST = 0.1  # no layer goes below: rates are multiples of it


def check_bounds(r_max: float, r_min: float) -> None:
    """Refuse bounds of the rates that make no sense."""
    check.number("r_max", r_max, at_least=LEAST, at_most=1)
    check.number("r_min", r_min, above=0, at_most=1)
    if r_min > r_max:
        raise BadInput(f"r_min = {r_min:g}: must be at most r_max = {r_max:g}")


def weights(w: Params) -> dict[str, float]:
    """Return each layer's share in the sum of all layers' norms; nothing has a share in nothing.

    CUAG-PFL's paper divides by the norm "of the whole model". Read as the norm of all numbers
    together, that gives an uplink of 48% with its network; read as the sum of the layers' norms it
    gives 31%, which is what it reports.
    """
    norms = w.norms()
    whole = sum(norms.values())
    return {layer: norm / whole if whole else 0.0 for layer, norm in norms.items()}


def dynamic(w: Params, r_max: float, r_min: float) -> dict[str, float]:
    """Return CUAG-PFL's rate for each layer (Algorithm 2), by its share in the norms of ``w``.

    A layer with a small share is compressed by r_max less its share, one with a large share by its
    share, at most by r_max. Rounding is Python's. Bounds other than the paper's can lead to a rate
    of 0, which becomes 0.1.
    """
    check_bounds(r_max, r_min)
    return {layer: max(LEAST, _rate(weight, r_max, r_min)) for layer, weight in weights(w).items()}


def _rate(weight: float, r_max: float, r_min: float) -> float:
    if weight < r_min:
        return round(r_max - round(weight, 2), 1)
    return round(weight, 1) if round(weight, 1) < r_max else r_max
