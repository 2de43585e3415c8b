"""DA-FL's pre-processing (Tang et al. 2023): a client's samples, their cost, and what is claimed.

In the paper labels come from PLS (algorithm 3, synthesis/labels.py) and images from PSG (algorithm
2, synthesis/gan.py). Certified, the labels follow the class counts that the generator has released.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal

from tacit.core import Accounted, Array, Claim, Client, Released, Sizes, check
from tacit.privacy.calibrate import rdp_spend, spend
from tacit.privacy.rules import Together
from tacit.synthesis.budget import permitted, solved_noise
from tacit.synthesis.choices import USUAL_GAMMA
from tacit.synthesis.gan import LABELS
from tacit.synthesis.labels import pls, pls_rule, spelled_out, wanted
from tacit.synthesis.pool import Share
from tacit.synthesis.source import Fitted, Source


@dataclass(frozen=True)
class Augment(Source):
    """What is shared before the main phase, and what the main phase may see."""

    # samples for each example that a client has; auto: 0.05, or 0.5 where the main phase trains on
    # samples of public features alone
    gamma: float | Literal["auto"] = "auto"
    # auto: synthetic if certified, else open
    main: Literal["auto", "synthetic", "dp-sgd", "open"] = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        check.number("gamma", self.ratio, above=0)

    @property
    def ratio(self) -> float:
        """Samples for each example, as long as nothing is known of the inputs."""
        return USUAL_GAMMA if self.gamma == "auto" else self.gamma

    @property
    def phase(self) -> str:
        """What the main phase does with the real data."""
        own = {"certified": "synthetic", "paper": "open"}
        return own[self.mode] if self.main == "auto" else self.main

    def share(self, me: Client, delta: float) -> Share:
        """Return S_i: about gamma samples for each of a client's examples, with their labels."""
        fitted = self.fit(me, delta)
        y = self._counts(me, fitted).map(spelled_out)
        return Share(fitted.draw(y, me.rng), y)

    def _counts(self, me: Client, fitted: Fitted) -> Released[Array]:
        """Return how many samples of each class there will be."""
        if fitted.counts is None or self.mode == "paper":
            return pls(me, classes=me.classes, gamma=self.ratio, epsilon=self.label_epsilon)
        return fitted.counts.map(lambda counts: wanted(counts, self.ratio))

    def pool_rule(self, delta: float) -> Accounted:
        """Return the rule of a client's samples; the paper's have labels by PLS."""
        fitting = super().pool_rule(delta)
        if self.mode == "certified":
            return fitting
        return Together((pls_rule(self.label_epsilon), fitting))

    def claims(self, sizes: Sizes, delta: float) -> list[Claim]:
        """Return what the paper says that samples cost, and what accountants say.

        Args:
            sizes: of the clients; the one with least data pays most
            delta: of all these epsilons
        """
        n = min(sizes.values())
        q = min(self.gan.batch, n) / n
        T = max(1, round(self.gan.epochs / q))
        published = self.COST["paper"] if self.pool_epsilon == "auto" else self.pool_epsilon
        solved = solved_noise("paper", T, q, published, delta)
        z = solved if self.gan.z == "auto" else self.gan.z
        done = permitted("paper", T, z, q, published, delta)
        counted = rdp_spend(z, done, q, delta=delta) if z else math.inf
        cost = partial(spend, z, T, q, delta=delta)
        stop = f"the paper's accountant, where its budget ends: after epoch {round(done * q)}"
        whole = f"all {self.gan.epochs} epochs, Poisson, zero-out"
        return [
            ("published", published, "as published, for the synthetic images of one client"),
            ("moments", counted, stop),
            ("PLD", cost(), whole),
            ("PLD", cost(relation="replace"), REPLACED),
            ("PLD", cost(law="fixed", relation="replace"), FIXED),
            ("certified", math.inf, f"{LABELS}; {OPEN}"),
        ]


REPLACED = "Poisson, replace-one: the relation of its labels, so that the two may be added"
FIXED = "fixed-size batches, replace-one: what algorithm 2 draws"
OPEN = "models trained on the real data go up without noise"
