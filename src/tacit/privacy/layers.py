"""Bounds of single layers that together are one bound: what a Gaussian release of a whole update needs to know."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tacit.core import Params

LEAST = 0.01  # of the whole: the bound of a layer with hardly any weight


@dataclass(frozen=True)
class LayerBounds:
    """Public bounds c_l of the layers, and norms a_l with sum a_l^2 = 1 that they are scaled to.

    Guarantee: whatever the layers were, scaled by a_l / c_l and clipped to a_l they have norm 1 together at most, so
    adding or removing the client whose they are moves them by at most 1. The bounds must not depend on its data. Noise
    of standard deviation z comes back as z c_l / a_l in layer l; a_l^2 ~ c_l sqrt(d_l), d_l numbers in the layer, makes
    that least, z^2 (sum_l c_l sqrt(d_l))^2 in all, which is at most the noise for one clip at sqrt(sum_l c_l^2).
    """

    c: dict[str, float]
    a: dict[str, float]

    @classmethod
    def of(cls, c: Mapping[str, float], like: Params) -> LayerBounds:
        """Return the best scales for bounds of layers that are as large as in ``like``."""
        squares = {layer: c[layer] * math.sqrt(v.numel()) for layer, v in like.items()}
        whole = sum(squares.values())
        return cls(dict(c), {layer: math.sqrt(v / whole) for layer, v in squares.items()})

    @classmethod
    def shared_out(cls, C: float, x: Params, like: Params) -> LayerBounds:
        """Return bounds that share out ``C`` by the layers' norms in a point ``x`` that everybody has."""
        whole = x.norm() or 1.0
        return cls.of({layer: C * max(norm / whole, LEAST) for layer, norm in x.norms().items()}, like)

    def scaled(self, v: Params) -> Params:
        """Return the layers in units of their bounds: those within have norm 1 together at most."""
        return times(v, {k: self.a[k] / self.c[k] for k in v})

    def clipped(self, v: Params) -> Params:
        """Return the layers scaled and clipped."""
        u = self.scaled(v)
        return Params({k: Params({k: t}).clipped(self.a[k])[k] for k, t in u.items()}).as_released(v.released)

    def unscaled(self, u: Params) -> Params:
        """Return scaled layers at their own size again, which is post-processing."""
        return times(u, {k: self.c[k] / self.a[k] for k in u})


def times(v: Params, scales: Mapping[str, float]) -> Params:
    """Return each layer times its own number, which has to be public for the mark to mean anything."""
    return Params({k: scales[k] * t for k, t in v.items()}).as_released(v.released)
