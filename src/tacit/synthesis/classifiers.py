"""Classifiers made from a Gaussian for each class.

In closed form, or trained on features drawn from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from tacit.core import Client, Params, Predictor, params_of
from tacit.local import sgd
from tacit.privacy.mechanisms import clip_rows
from tacit.synthesis.features import as_they_are, choose, encoder
from tacit.synthesis.moments import Gaussians, Terms, plain, pooled

HEADS = ("qda", "lda", "logistic", "mlp")
# of a trained head: virtual features per class, and its training
DRAWS = 2000
EPOCHS = 20
BATCH = 256
HIDDEN = 128
MIX = 0.5  # the weight of the covariance of all classes
RIDGE = 1.2  # what is left of a spectrum, times this


def made_of(
    replies: Sequence[Params], terms: Terms, head: str, ordered: bool, rng: np.random.Generator
) -> Params:
    """Return the classifier that clients' moments amount to.

    Args:
        replies: what each client has released
        terms: the constants of these releases
        head: qda, lda, logistic or mlp; auto: qda, or lda if there is one covariance for all
        ordered: whether features come in the order of their frequencies
        rng: for a head that is trained
    """
    g = pooled(replies, terms, mix=MIX, ridge=RIDGE, ordered=ordered)
    if head in ("logistic", "mlp"):
        return trained(g, HIDDEN if head == "mlp" else 0, rng)
    one_covariance = len(replies[0]["M"]) == 1
    return linear(g) if one_covariance or head == "lda" else quadratic(g)


@dataclass(frozen=True)
class Scaling:
    """How images were normalised for a network: public constants."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    features: str = ""  # inputs are public features of this name already


class OfFeatures(nn.Module):
    """A classifier of public features, ready to be kept and written down."""

    def __init__(self, x: Params, features: str, shape: tuple[int, ...], scaling: Scaling) -> None:
        super().__init__()
        self.x = x
        self.features = scaling.features or choose(features, shape)
        self.scaling = scaling
        self.encode = as_they_are if scaling.features else encoder(features, shape)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return scores of network inputs, features clipped as in the release."""
        k = self.x["m" if "m" in self.x else "0.weight"].shape[1]
        return scores(self.x, clip_rows(self.encode(plain(inputs, self.scaling)), 1.0)[:, :k])


def predictor(me: Client, x: Params) -> Predictor:
    """Return the function from network inputs to scores."""
    shape, data = tuple(me.test.source.x.shape[1:]), me.test
    scaling = Scaling(tuple(data.mean), tuple(data.std), data.features)
    return OfFeatures(x, "auto", shape, scaling)


def classes_of(me: Client, x: Params) -> Tensor:
    """Return the classes that a classifier takes a client's examples for."""
    return sgd.scores(predictor(me, x), me.data).argmax(1)


def quadratic(g: Gaussians) -> Params:
    """Return quadratic discriminant analysis: W_c is the inverse of the Cholesky factor of S_c."""
    L = torch.linalg.cholesky(g.S)
    W = torch.linalg.solve_triangular(L, torch.eye(g.m.shape[1]).to(L), upper=False)
    b = torch.log(g.n / g.n.sum()) + torch.diagonal(W, dim1=1, dim2=2).log().sum(1)
    return Params(m=g.m.float(), W=W.float(), b=b.float())


def linear(g: Gaussians) -> Params:
    """Return linear discriminant analysis: one covariance for all classes."""
    share = g.n / g.n.sum()
    W = torch.linalg.solve(torch.einsum("c,cij->ij", share, g.S), g.m.T).T
    b = torch.log(share) - (W * g.m).sum(1) / 2
    return Params({"0.weight": W.float(), "0.bias": b.float()})


def trained(g: Gaussians, hidden: int, rng: np.random.Generator) -> Params:
    """Return a network trained on virtual features, the classes by their shares; no hidden units.

    A linear one.
    """
    y = torch.from_numpy(rng.choice(len(g.n), DRAWS * len(g.n), p=(g.n / g.n.sum()).numpy()))
    x = g.draw(y, rng).float()
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(int(rng.integers(2**31)))
        sizes = [x.shape[1], *([hidden] if hidden else []), len(g.n)]
        parts = [m for a, b in pairwise(sizes) for m in (nn.Linear(a, b), nn.ReLU())]
        model = nn.Sequential(*parts[:-1])
        steps = torch.optim.Adam(model.parameters(), lr=0.01 if not hidden else 0.002)
        for _ in range(EPOCHS):
            order = torch.from_numpy(rng.permutation(len(y)))
            for rows in (order[i : i + BATCH] for i in range(0, len(y), BATCH)):
                steps.zero_grad()
                loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
                loss.backward()  # type: ignore[no-untyped-call]
                steps.step()
    return params_of(model)


def scores(x: Params, features: Tensor) -> Tensor:
    """Return (n, classes): log-likelihoods with priors, or what a trained network says."""
    if "m" in x:
        z = (features - x["m"][:, None]) @ x["W"].mT
        return x["b"] - z.square().sum(2).T / 2
    hidden = features @ x["0.weight"].T + x["0.bias"]
    return hidden if "2.weight" not in x else hidden.relu() @ x["2.weight"].T + x["2.bias"]
