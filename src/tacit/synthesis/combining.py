"""From clients' private moments to what they all know of the classes.

Everything here is post-processing of releases.

First the moments of everybody's features without classes say where features lie and along which
directions they vary: :class:`View` turns and scales them, so that noise, which is the same in every
direction, does less harm where there is little to see. Then the classes' counts and means along all
directions, and their covariances along the first ones only, which is what keeps messages small.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tacit.core import Params
from tacit.synthesis.moments import Terms, denoised, holders, sum_of, unpack

POWER = 0.25  # directions are divided by their variance to this power; 0.5: all would be alike
REACH = (
    0.9  # size of features in a view, as the root of their mean square; longer ones are cut at 1
)
CUT = 0.9  # bound on the distance from the mean, in the same of the first directions
MIX = 0.4  # the weight of the covariance of all classes
RIDGE = 1.2  # what is left of a spectrum, times this


@dataclass(frozen=True)
class View:
    """Public coordinates: z = (F - centre) turn, with the variance of everybody's features."""

    centre: Tensor  # (k,)
    turn: Tensor  # (k, k)
    variance: Tensor  # (k,) along each coordinate, largest first

    @classmethod
    def of(cls, sent: Sequence[Params], terms: Terms) -> View:
        """Return the view of moments without classes that clients have released."""
        q = torch.stack([r["q"].double()[0] for r in sent]).sum(0)
        M = unpack(torch.stack([r["M"].double()[0] for r in sent]).sum(0))
        n = (q[-1] / terms.s).clamp_min(1.0)
        values, vectors = torch.linalg.eigh(denoised(M, n, len(sent), terms, 1.0))
        values, vectors = values.flip(0), vectors.flip(1)
        scaled = values ** (1 - 2 * POWER)
        size = REACH / scaled.sum().sqrt()
        return cls(q[:-1] / n, size * vectors * values**-POWER, size**2 * scaled)

    @classmethod
    def from_params(cls, x: Params) -> View:
        """Return a view that was sent."""
        return cls(x["centre"].double(), x["turn"].double(), x["variance"].double())

    def params(self) -> Params:
        """Return what clients are sent."""
        return Params(centre=self.centre, turn=self.turn, variance=self.variance).as_released()

    def __call__(self, F: Tensor) -> Tensor:
        """Return features as they are seen from here."""
        return (F - self.centre) @ self.turn

    def radius(self, directions: int) -> float:
        """Return the bound on the distance from a class mean along the first directions."""
        return float(CUT * self.variance[:directions].sum().sqrt())


def directions(k: int, classes: int, rate: float) -> int:
    """Return along how many of k directions covariances may be sent, for a share of the uplink.

    The share is of what all counts, means and covariances would take; what is sent before counts.

    >>> directions(315, 10, 0.28), directions(315, 10, 1.0), directions(4, 3, 0.3)
    (131, 315, 4)
    """
    first = (k + 1) + k * (k + 1) // 2
    left = (rate * classes * first - first) / classes - (k + 1)
    most = (math.isqrt(8 * int(left) + 1) - 1) // 2 if left > 0 else 0
    return k if rate == 1 else min(k, max(most, FEWEST))


FEWEST = 8  # directions, however small a message has to be


@dataclass(frozen=True)
class Means:
    """The classes' counts and means, and whose records they are made of."""

    n: Tensor  # (classes,)
    m: Tensor  # (classes, k)
    use: Tensor  # (clients, classes) of ones and zeros

    @classmethod
    def of(cls, q: Sequence[Tensor], terms: Terms) -> Means:
        """Return those that clients' releases amount to."""
        known = torch.stack([each.double()[:, -1] / terms.s for each in q])
        use = torch.stack([holders(n) for n in known.T], 1)
        total = sum_of(use, [each.double() for each in q])
        n = (total[:, -1] / terms.s).clamp_min(1.0)
        m = total[:, :-1] / n[:, None]
        return cls(n, m / m.norm(dim=1, keepdim=True).clamp_min(1.0), use)


def prior(view: View, means: Means, M: Sequence[Tensor], terms: Terms, kept: int) -> Params:
    """Return the Gaussians of the classes in the space of the features, for clients to start from.

    Args:
        view: the coordinates of what was released
        means: the classes' counts and means
        M: the covariances that clients have released, in the order of ``means.use``
        terms: the constants of these releases
        kept: along how many directions
    """
    terms = replace(terms, R=view.radius(kept))
    parts = means.use.sum(0)
    A = torch.stack([unpack(v) for v in sum_of(means.use, [each.double() for each in M])])
    every = denoised(A.sum(0), means.n.sum(), parts.sum(), terms, RIDGE)
    S = torch.diag(view.variance).repeat(len(A), 1, 1)
    for c, own in enumerate(A):
        one = denoised(own, means.n[c], parts[c], terms, RIDGE)
        S[c, :kept, :kept] = (1 - MIX) * one + MIX * every
    back = torch.linalg.inv(view.turn)
    return Params(
        n=means.n.float(),
        m=(view.centre + means.m @ back).float(),
        S=(back.T @ S @ back).float(),
        v=(parts * (terms.sd_sums / means.n) ** 2).float(),
        E=(back.T @ back).float(),
    ).as_released()
