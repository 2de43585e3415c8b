"""One set of settings for every place that needs synthetic data.

Which generator, in which mode, at what cost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

import numpy as np
from torch import Tensor

from tacit.core import Accounted, Array, BadInput, Client, Keywords, Released, check
from tacit.privacy.rules import Together
from tacit.synthesis.budget import Mode
from tacit.synthesis.gan import GAN, GANSettings, Watch
from tacit.synthesis.labels import held, histogram, histogram_rule
from tacit.synthesis.moments import Moments

KIND = {"certified": "moments", "paper": "gan"}  # the generator of each mode


class Generator(Protocol):
    """Makes an example for each label."""

    def draw(self, labels: Tensor, rng: np.random.Generator) -> Tensor: ...


@dataclass(frozen=True)
class Fitted:
    """What mechanisms have made of one client's data: whatever follows from it costs nothing more.

    Only of released labels does it make examples that are released: labels that were counted in the
    data would carry the counts along.
    """

    generator: Generator
    counts: Released[Array] | None  # class counts; None: nothing of that kind was released

    def draw(self, labels: Released[Tensor], rng: np.random.Generator) -> Released[Tensor]:
        """Return an example for each label."""
        return labels.map(lambda y: self.generator.draw(y, rng))


@dataclass(frozen=True)
class Source:
    """Where synthetic examples come from."""

    COST: ClassVar[dict[str, float]] = {"certified": 1.0, "paper": 50.0}  # of each mode's generator
    mode: Mode = "certified"  # paper: as published, whatever it really spends
    # auto: moments if certified, else the paper's GAN
    generator: Literal["auto", "moments", "gan"] = "auto"
    # what the samples cost a client, labels included; auto: 1; in paper mode 50, of gfl 0.1
    pool_epsilon: float | Literal["auto"] = "auto"
    label_epsilon: float = 0.05  # the part of it that the GAN's class histogram (or PLS) costs
    gan: GANSettings = field(default_factory=GANSettings)
    moments: Moments = field(default_factory=Moments)

    def __post_init__(self) -> None:
        check.number("pool_epsilon", self.cost, above=0)
        check.number("label_epsilon", self.label_epsilon, above=0)
        if isinstance(self.gan, GAN):
            raise BadInput(
                "gan = GAN(...): must be GANSettings(...); its mode is that of the method"
            )
        if self.mode == "paper" and self.generator == "moments":
            raise BadInput(
                "generator = 'moments': the paper has none; allowed with mode = paper: gan"
            )
        if self.kind == "gan" and self.labels_cost >= self.cost:
            raise BadInput(
                f"label_epsilon = {self.label_epsilon:g}: "
                f"must be below pool_epsilon = {self.cost:g}"
            )

    @property
    def kind(self) -> str:
        """The generator that runs."""
        return KIND[self.mode] if self.generator == "auto" else self.generator

    @property
    def in_feature_space(self) -> bool:
        """Whether samples of public features are as good as those of images: certified moments."""
        return self.mode == "certified" and self.kind == "moments"

    @property
    def cost(self) -> float:
        """The epsilon of the synthetic examples, for each client."""
        return self.COST[self.mode] if self.pool_epsilon == "auto" else self.pool_epsilon

    @property
    def gan_cost(self) -> float:
        """The part of it that a GAN's training has."""
        return self.cost - self.labels_cost

    @property
    def labels_cost(self) -> float:
        """And the part of labels."""
        return self.label_epsilon

    def fit(self, me: Client, delta: float, watch: Watch | None = None) -> Fitted:
        """Fit the generator to a client's data, with the class counts that are released for it.

        Its cost is in the ledger. The paper's GAN needs no counts, so it gets none: whoever wants
        labels has to release them by a mechanism, such as PLS.
        """
        if self.kind == "moments":
            moments = self.moments.fit(me, classes=me.classes, epsilon=self.cost, delta=delta)
            return Fitted(moments, Released(moments.counts))  # they follow from the noisy sums
        counts = None if self.mode == "paper" else self._histogram(me)
        gan = self.gan.in_mode(self.mode)
        known = None if counts is None else counts.value
        how: Keywords = {"epsilon": self.gan_cost, "delta": delta, "watch": watch}
        return Fitted(gan.fit(me, classes=me.classes, counts=known, **how), counts)

    def _histogram(self, me: Client) -> Released[Array]:
        """Release a client's class counts, and leave out those that are only noise."""
        noisy = histogram(me, classes=me.classes, epsilon=self.label_epsilon)
        return noisy.map(lambda counts: held(counts, 2**0.5 / self.label_epsilon))

    def pool_rule(self, delta: float) -> Accounted:
        """Return the rule of :meth:`fit`.

        Args:
            delta: of the epsilon that this costs
        """
        if self.kind == "moments":
            return self.moments.terms(self.cost, delta)
        training = self.gan.in_mode(self.mode).rule(self.gan_cost, delta)
        if self.mode == "paper":
            return training
        return Together((histogram_rule(self.label_epsilon), training))
