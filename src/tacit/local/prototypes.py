"""Prototypes: a client's classes as points in the feature space of a shared network (Snell et al.

2017).

Features are what the network's last layer, the one before the softmax, gets to see. An example
belongs to the nearest class mean. The network learns by episodes: from one batch the class means,
on another the cross-entropy of softmax(-squared distance to them), with a gradient through both.
Classes that the first batch does not have are left out, and so are examples of the second that
belong to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit.core import Client, Params, Predictor, check, load_params, params_of, public
from tacit.local.sgd import Correction, check_once, network
from tacit.privacy.insides import Memory
from tacit.privacy.mechanisms import clip_rows
from tacit.privacy.perexample import clipped_sum
from tacit.privacy.rules import Noised, NoisySteps, Together

CHUNK = 500  # examples that go through the network at a time where no gradient is needed
Rows = NDArray[np.int64]
Embed = Callable[[nn.Module, Tensor], Tensor]


@dataclass(frozen=True)
class Prototypes:
    """A point for each class, and which classes there are."""

    points: Tensor  # (classes, features)
    known: Tensor  # (classes,)

    def scores(self, features: Tensor) -> Tensor:
        """Return minus the squared distance to each class.

        A class that is not there is infinitely far.
        """
        gaps = (
            features.square().sum(1, keepdim=True)
            - 2 * features @ self.points.t()
            + self.points.square().sum(1)
        )
        return (-gaps).masked_fill(~self.known, -torch.inf)

    def losses(self, features: Tensor, labels: Tensor) -> Tensor:
        """Return the cross-entropy of each example.

        One of a class that is not there counts for nothing.
        """
        each = F.cross_entropy(self.scores(features), labels, reduction="none")
        return torch.where(self.known[labels], each, 0.0)


def class_sums(features: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return the sum of the features of each class, and the number of its examples."""
    member = F.one_hot(labels, classes).to(features)
    return member.t() @ features, member.sum(0)


def prototypes(features: Tensor, labels: Tensor, classes: int) -> Prototypes:
    """Return the mean features of each class."""
    sums, counts = class_sums(features, labels, classes)
    return Prototypes(sums / counts.clamp(min=1).unsqueeze(1), counts > 0)


def episode_loss(features: Tensor, labels: Tensor, support: int, classes: int) -> Tensor:
    """Return the mean loss of all but the first ``support`` examples, whose prototypes count."""
    made = prototypes(features[:support], labels[:support], classes)
    rest = labels[support:]
    return made.losses(features[support:], rest).sum() / made.known[rest].sum().clamp(min=1)


def features_of(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return what the network's last layer sees.

    Its output, where that is not linear or nothing else is trained.
    """
    trained = [
        m for m in model.modules() if any(p.requires_grad for p in m.parameters(recurse=False))
    ]
    seen: list[Tensor] = []
    hook = trained[-1].register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    try:
        output: Tensor = model(inputs)
    finally:
        hook.remove()
    inside = len(trained) > 1 and isinstance(trained[-1], nn.Linear)
    return seen[-1].to(output.dtype) if inside else output


def on_sphere(radius: float) -> Embed:
    """Return features scaled to norm ``radius``: no example counts for more than another."""
    return lambda model, inputs: radius * F.normalize(features_of(model, inputs))


def classes_of(me: Client) -> int:
    """Return the number of classes that the network tells apart."""
    return int(me.model(me.data.batch(slice(0, 1))[0]).shape[1])


def embedded(me: Client, embed: Embed) -> tuple[Tensor, Tensor]:
    """Return the embeddings of a client's training data under its network, and the labels."""
    me.model.eval()
    with torch.no_grad():
        parts = [me.data.batch(slice(i, i + CHUNK)) for i in range(0, len(me.data), CHUNK)]
        return torch.cat([embed(me.model, x) for x, _ in parts]), torch.cat([y for _, y in parts])


class Nearest(nn.Module):
    """A network that answers by the nearest prototype, ready to be kept and written down."""

    points: Tensor
    known: Tensor

    def __init__(self, network: nn.Module, made: Prototypes, radius: float | None) -> None:
        super().__init__()
        self.network = network
        self.radius = radius  # of the sphere that features are scaled to; None: they are not
        self.register_buffer("points", made.points)
        self.register_buffer("known", made.known)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return minus the squared distance to the prototype of each class."""
        features = embedding(self.radius)(self.network, inputs)
        return Prototypes(self.points, self.known).scores(features)


def embedding(radius: float | None) -> Embed:
    """Return how examples become points: as the network has it, or on a sphere."""
    return features_of if radius is None else on_sphere(radius)


def nearest(me: Client, x: Params, radius: float | None = None) -> Predictor:
    """Return the client's own predictor with the network ``x``.

    The nearest prototype of all its training data.
    """
    network(me, x)
    made = prototypes(*embedded(me, embedding(radius)), classes_of(me))
    return Nearest(me.model, made, radius).eval()


@dataclass(frozen=True)
class Private:
    """What makes episodes private for each example: noise on the prototypes, and DP-SGD."""

    clip: float  # bound on each example's gradient
    z: float  # noise multiplier of the steps
    z_prototypes: float  # noise multiplier of the prototypes, released once in a round
    radius: float  # norm of the embeddings

    def __post_init__(self) -> None:
        check.clip("clip", self.clip)
        check.clip("radius", self.radius)

    @property
    def prototypes(self) -> Noised:
        """The rule of class sums of embeddings, with class counts: :func:`private_prototypes`."""
        return Noised("prototypes", 2**0.5 * self.radius, self.z_prototypes)


@dataclass(frozen=True)
class Episodes:
    """Local training by prototypes: ``steps`` episodes a round, each with two batches."""

    lr: float = 0.1  # step size in the first round
    steps: int = 25  # P, steps in one round
    batch: int = 50  # B, examples in each of the two batches of a step
    decay: float = 0.997  # factor on the step size from one round to the next
    weight_decay: float = 1e-3  # L2 penalty on every parameter
    # longer gradients are shortened to this, against explosions; not at the example level
    max_norm: float = 10.0

    def __post_init__(self) -> None:
        check.number("local.lr", self.lr, above=0)
        check.number("local.steps", self.steps, at_least=1, whole=True)
        check.number("local.batch", self.batch, at_least=1, whole=True)
        check.number("local.decay", self.decay, above=0, at_most=1)
        check.number("local.weight_decay", self.weight_decay, at_least=0)
        check.clip("local.max_norm", self.max_norm)

    def fit(
        self, me: Client, x: Params, *, grad: Correction, private: Private | None = None
    ) -> Params:
        """Return where ``steps`` steps from ``x`` end.

        ``grad(g, y)`` corrects each gradient g at the point y.

        What is trained privately may leave the client, if ``x`` and the corrections may.
        """
        weights = load_params(me.model.train(), x)
        here = [w.detach() for w in weights]
        free = x.released and private is not None
        lr = self.lr * self.decay**me.round
        for g in self._private(me, weights, private) if private else self._plain(me, weights):
            raw = Params(zip(x, g, strict=True)).as_released(private is not None)
            y = Params(zip(x, here, strict=True)).as_released(free)
            direction = grad(raw, y)
            if private is None:
                direction = direction.clipped(self.max_norm)
            direction = direction + public(self.weight_decay) * y
            free = free and direction.released and y.released
            torch._foreach_add_(here, list(direction.values()), alpha=-lr)
        return params_of(me.model).as_released(free)

    def _plain(self, me: Client, weights: list[nn.Parameter]) -> Iterator[list[Tensor]]:
        classes = classes_of(me)
        for rows in self.pairs(len(me.data), me.rng):
            inputs, labels = me.data.batch(rows)
            loss = episode_loss(features_of(me.model, inputs), labels, len(rows) // 2, classes)
            # the last layer's is zero
            yield list(torch.autograd.grad(loss, weights, materialize_grads=True))

    def pairs(self, n: int, rng: np.random.Generator) -> Iterator[Rows]:
        """Yield the rows of each step's two batches, one after the other.

        Disjoint, and smaller where data are few.
        """
        size = min(self.batch, max(1, n // 2))
        for _ in range(self.steps):
            yield rng.permutation(n)[np.arange(2 * size) % n]

    def _private(
        self, me: Client, weights: list[nn.Parameter], private: Private
    ) -> Iterator[list[Tensor]]:
        """Yield noisy gradients of the loss under prototypes that are released first.

        So no example meets another's.
        """
        check_once(me)
        memory = Memory.of(me.model)
        embed = on_sphere(private.radius)
        made = private_prototypes(me, embed, private)
        me.model.train()
        loss = partial(_losses, made, embed)
        release = self.noisy_steps(private, len(me.data)).begin(me)
        for rows in release.samples(len(me.data)):
            inputs, labels = me.data.batch(rows)
            sums, _ = clipped_sum(me.model, loss, inputs, labels, private.clip)
            noised = release.noised([sums[w] for w in weights])
            yield list(torch._foreach_div(noised, float(self.batch)))
        memory.check(me.model)

    def rate(self, n: int) -> float:
        """Return the share of ``n`` examples that a private step looks at."""
        return min(1.0, self.batch / n)

    def noisy_steps(self, private: Private, n: int) -> NoisySteps:
        """Return the rule of a round's steps on ``n`` examples."""
        return NoisySteps(self.rate(n), private.clip, private.z, self.steps)

    def rule(self, private: Private, n: int) -> Together:
        """Return the rule of a private round on ``n`` examples: prototypes, then steps."""
        return Together((private.prototypes, self.noisy_steps(private, n)))


def _losses(
    made: Prototypes, embed: Embed, model: nn.Module, inputs: Tensor, labels: Tensor
) -> Tensor:
    return made.losses(embed(model, inputs), labels)


def private_prototypes(me: Client, embed: Embed, private: Private) -> Prototypes:
    """Release a client's prototypes.

    One Gaussian release of class sums of embeddings and of class counts.

    An example adds a vector of norm R = ``radius`` to one sum and R to one (scaled) count, so
    zeroing it out moves both together by at most sqrt(2) R. Means, and the choice of classes
    whose count stands out of the noise, are post-processing. Sums are in double precision: their
    rounding is far below the hair by which rows are clipped below the bound.
    """
    R = private.radius
    features, labels = embedded(me, embed)
    sums, counts = class_sums(clip_rows(features.double(), R), labels, classes_of(me))
    rule = replace(private.prototypes, what=f"{me.task} {private.prototypes.what}".strip())
    noisy = rule.send(me, Params(sums=sums, counts=R * counts))
    noisy = Params({k: v.to(features.dtype) for k, v in noisy.items()})
    seen = noisy["counts"] / R
    known = seen > max(1.0, 2 * 2**0.5 * private.z_prototypes)
    return Prototypes(noisy["sums"] / seen.clamp(min=1).unsqueeze(1), known)
