"""Bounds of single layers that together are one bound.

What a Gaussian release of a whole update needs to know.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from tacit.core import Params, in_clip_range

LEAST = 0.01  # of the whole: the bound of a layer with hardly any weight
WITHIN = "within bounds"  # the name that the layers' bits go by, beside the layers
BITS = 0.25  # of the squared norm, where the bits go along
RATE = 0.2  # by which the bounds follow, as in Andrew et al. 2021


@dataclass(frozen=True)
class LayerBounds:
    """Public bounds c_l of the layers, and norms a_l with sum a_l^2 = 1 that they are scaled to.

    Guarantee: whatever the layers were, scaled by a_l / c_l and clipped to a_l they have norm 1
    together at most, so zeroing a client out moves a sum of them by at most 1, and two clients' are
    at most 2 apart. The bounds must not depend on their data. Noise of standard deviation z comes
    back as z c_l / a_l in layer l; a_l^2 ~ c_l sqrt(d_l), d_l numbers in the layer, makes that
    least, z^2 (sum_l c_l sqrt(d_l))^2 in all, which is at most the noise for one clip at
    sqrt(sum_l c_l^2).
    """

    c: dict[str, float]
    a: dict[str, float]

    @classmethod
    def of(cls, c: Mapping[str, float], like: Params) -> LayerBounds:
        """Return the best scales for bounds of layers that are as large as in ``like``."""
        squares = {layer: c[layer] * math.sqrt(v.numel()) for layer, v in like.items()}
        whole = sum(squares.values())
        return cls(dict(c), {layer: math.sqrt(v / whole) for layer, v in squares.items()})

    def scaled(self, v: Params) -> Params:
        """Return the layers in units of their bounds: those within have norm 1 together at most."""
        return times(v, {k: self.a[k] / self.c[k] for k in v})

    def clipped(self, v: Params) -> Params:
        """Return the layers scaled and clipped."""
        u = self.scaled(v)
        return Params({k: Params({k: t}).clipped(self.a[k])[k] for k, t in u.items()}).as_released(
            v.released
        )

    def unscaled(self, u: Params) -> Params:
        """Return scaled layers at their own size again, which is post-processing."""
        return times(u, {k: self.c[k] / self.a[k] for k in u})

    def with_bits(self, v: Params) -> Params:
        """Return the clipped layers and, for each, whether it was within its bound.

        1 or -1, scaled.

        All together have norm 1 at most, so bits and layers are one release; a client that is
        absent counts as 0.
        """
        bits = torch.tensor(
            [1.0 if norm <= self.c[layer] else -1.0 for layer, norm in v.norms().items()]
        )
        u = math.sqrt(1 - BITS) * self.clipped(v)
        return Params({**u, WITHIN: math.sqrt(BITS / len(v)) * bits}).as_released(v.released)

    def followed(self, u: Params) -> tuple[Params, dict[str, float]]:
        """Return the layers of a noisy mean of :meth:`with_bits`, unscaled, and the next bounds.

        These move towards the median of the norms (Andrew et al. 2021, Algorithm 1, layer by
        layer).
        """
        layers = Params({k: v for k, v in u.items() if k != WITHIN}).as_released(u.released)
        # of clients within, less one half
        share = (u[WITHIN] / math.sqrt(BITS / len(layers)) / 2).tolist()
        c = {
            k: in_clip_range(self.c[k] * math.exp(-RATE * more))
            for k, more in zip(layers, share, strict=True)
        }
        return self.unscaled(layers / math.sqrt(1 - BITS)), c


def shared_out(C: float, x: Params) -> dict[str, float]:
    """Return bounds that share out ``C`` by the layers' norms in a public point ``x``."""
    whole = x.norm() or 1.0
    return {layer: C * max(norm / whole, LEAST) for layer, norm in x.norms().items()}


def times(v: Params, scales: Mapping[str, float]) -> Params:
    """Return each layer times its own number, which has to be public."""
    return Params({k: scales[k] * t for k, t in v.items()}).as_released(v.released)
