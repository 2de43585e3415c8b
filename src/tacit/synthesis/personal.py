"""A client's own classifier of public features: a Gaussian for each class that it holds.

Fitted to its own records in closed form, alone, or with what others have shared as a prior. It
never leaves the client. Means are weighted by their precisions, covariances by an inverse-Wishart
prior of so many records. Constants were chosen on training rows: docs/methods/cuag.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.core import Client, Params, Predictor
from tacit.synthesis import classifiers, features
from tacit.synthesis import moments as statistics
from tacit.synthesis.moments import Gaussians

SHARED = 12  # records that a shared covariance is worth, in dimensions
OWN = 3  # the same of the covariance of all of a client's own classes
ROUND = 0.6  # the weight of a round one in that
FOLDS = 3  # of a client's records, to see which of two classifiers is better
LEAST = 1e-9  # a variance, where there is none
Fit = Callable[[Tensor, Tensor], Params]  # from features and labels to a classifier

LARGEST, SMALLEST = 1e6, 1e-6  # of a covariance that was sent; the smallest as a share, too


@dataclass(frozen=True)
class Prior:
    """What others have shared about the classes: Gaussians, and how sure their means are."""

    known: Gaussians
    doubt: Tensor  # (classes, k, k) covariances of the noise in the means

    @classmethod
    def of(cls, x: Params) -> Prior:
        """Return what :meth:`params` has written down."""
        n, m, v = (torch.nan_to_num(x[name].double()) for name in ("n", "m", "v"))
        known = Gaussians(n, m, definite(x["S"].double()))
        return cls(known, v.clamp(0.0, LARGEST)[:, None, None] * not_negative(x["E"].double()))

    def fit(self, F: Tensor, y: Tensor) -> Params:
        """Return the classifier of records, given the prior."""
        g = self.known
        weight = float(SHARED * F.shape[1])
        own = _own(F, y, len(g.n))
        for c in held(y):
            n = own.n[c]
            spread = g.S[c] / n
            unsure = spread + g.S[c] / g.n[c].clamp_min(1.0) + self.doubt[c]
            own.m[c] += spread @ torch.linalg.solve(unsure, g.m[c] - own.m[c])
            own.S[c] = (weight * g.S[c] + n * own.S[c]) / (weight + n)
        return classifiers.quadratic(own)


def definite(S: Tensor) -> Tensor:
    """Return covariances as they are where they are some, else the nearest that are.

    Rounding can take that away, and so can a server that lies; whether it matters must not depend
    on the records that are classified.
    """
    if bool(S.isfinite().all()) and not bool(torch.linalg.cholesky_ex(S).info.any()):
        return S
    values, vectors = _spectrum(S)
    least = (SMALLEST * values.amax(-1, keepdim=True)).clamp_min(SMALLEST)
    return _made_of(values.clamp_min(least), vectors)


def not_negative(S: Tensor) -> Tensor:
    """Return a covariance of which nothing is taken off, and which may be none at all."""
    values, vectors = _spectrum(S)
    fine = bool(S.isfinite().all()) and bool((values >= 0).all())
    return S if fine else _made_of(values.clamp_min(0.0), vectors)


def _spectrum(S: Tensor) -> tuple[Tensor, Tensor]:
    S = torch.nan_to_num(S).clamp(-LARGEST, LARGEST)
    values, vectors = torch.linalg.eigh((S + S.mT) / 2)
    return values, vectors


def _made_of(values: Tensor, vectors: Tensor) -> Tensor:
    made: Tensor = (vectors * values[..., None, :]) @ vectors.mT
    return made


def alone(F: Tensor, y: Tensor, classes: int) -> Params:
    """Return the classifier of records with nothing else: the prior is all of them together."""
    own = _own(F, y, classes)
    k = F.shape[1]
    eye = torch.eye(k).double()
    within = torch.einsum("c,cij->ij", own.n / max(1, len(F)), own.S)
    level = (within.trace() / k).clamp_min(LEAST)
    prior = (1 - ROUND) * within + ROUND * level * eye
    weight = float(OWN * k)
    for c in range(classes):
        own.S[c] = (weight * prior + own.n[c] * own.S[c]) / (weight + own.n[c])
    return classifiers.quadratic(own)


def _own(F: Tensor, y: Tensor, classes: int) -> Gaussians:
    """Return the Gaussians of records; a class without any has a round one, and no weight."""
    k = F.shape[1]
    n = torch.bincount(y, minlength=classes).double()
    m = F.new_zeros(classes, k).index_add_(0, y, F) / n.clamp_min(1.0)[:, None]
    S = torch.eye(k).to(F).repeat(classes, 1, 1)
    for c in held(y):
        d = F[y == c] - m[c]
        S[c] = d.T @ d / n[c]
    return Gaussians(n, m, S)


def held(y: Tensor) -> list[int]:
    """Return the classes of which there are records."""
    return [c for c, n in enumerate(torch.bincount(y).tolist()) if n]


def own_features(me: Client) -> tuple[Tensor, Tensor]:
    """Return the features of a client's records, as they are released and classified, and labels.

    Of norm at most 1, in double precision.
    """
    return statistics.usable(*statistics.encoded(me.data, features.encoder_of(me.data)))


def fitted(me: Client, shared: Params | None = None) -> Params:
    """Return a client's classifier: with what is shared, if that is better on its own records.

    Which is decided by cross-validation on its own training records, so nobody learns of it.
    """
    F, y = own_features(me)

    def by_itself(F: Tensor, y: Tensor) -> Params:
        return alone(F, y, me.classes)

    if shared is None or not len(y):
        return by_itself(F, y)
    helped = Prior.of(shared).fit
    return (helped if right(helped, F, y) >= right(by_itself, F, y) else by_itself)(F, y)


def predictor(me: Client, shared: Params | None = None) -> Predictor:
    """Return the function from network inputs to scores that a client answers with."""
    return classifiers.predictor(me, fitted(me, shared))


def right(fit: Fit, F: Tensor, y: Tensor) -> int:
    """Return how many records are classified right by what was fitted to others."""
    fold = torch.zeros_like(y)
    for c in held(y):
        fold[y == c] = torch.arange(int((y == c).sum())) % FOLDS
    total = 0
    for i in range(FOLDS):
        out = fold == i
        if out.any() and not out.all():
            said = classifiers.scores(fit(F[~out], y[~out]), F[out].float()).argmax(1)
            total += int((said == y[out]).sum())
    return total
