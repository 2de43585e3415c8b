"""UDP's settings, the rule that follows from them, and what its paper claims."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

from tacit.core import BadInput, Claim, ClientId, Method, Release, Sizes, check
from tacit.local.sgd import SGD
from tacit.privacy import rules
from tacit.privacy.claimed import other_of
from tacit.privacy.gdp import gdp_mu

NOT_OF_TRAINING = (
    "2 eta C/|D| bounds one full-batch step when one example changes, not a client's training"
)
# what clients tell besides, so that rounds can be discounted
LOSS = rules.Open("udp loss", "a client's training loss is sent as it is, without noise")


@dataclass(frozen=True)
class Settings(Method):
    """What can be set, and how clients send because of it."""

    protects = ("client", "server")
    averages = True
    rounds: int = 20  # T, communication rounds
    per_round: int = 0  # clients sampled in each round; 0: everyone
    # certified: with proof; paper: as published, whatever it really spends
    mode: Literal["certified", "paper"] = "certified"
    epsilon: float = 10.0  # what every client spends over all rounds
    clip: float = 1.0  # C, clipping norm: of the update (certified), of each gradient (paper)
    sgd: SGD = field(default_factory=SGD)  # local training
    # paper: beta, by which T shrinks whenever the training loss has not fallen; 1: never
    discount: float = 1.0

    def __post_init__(self) -> None:
        check.rounds(self.rounds, self.per_round)
        check.number("epsilon", self.epsilon, above=0)
        check.clip("clip", self.clip)
        check.number("discount", self.discount, above=0, at_most=1)
        self.sgd.refuse_clip()
        if self.discount < 1 and self.mode == "certified":
            raise BadInput(f"discount = {self.discount:g}: means nothing in mode = 'certified'")
        if self.mode == "paper":
            self.sgd.refuse_adam("the noise is for steps along gradients")

    @property
    def prefers_features(self) -> bool:
        return self.mode == "certified"

    @property
    def per_example(self) -> bool:
        return self.mode == "paper"

    def rule(
        self, client: ClientId, n: int, K: int, delta: float, q: float = 1.0
    ) -> rules.AsPublished | rules.Together | EqualShares:
        """Return how a client sends; q, the share of clients in a round, is for the paper only."""
        if self.mode == "certified":
            return EqualShares(self.clip, gdp_mu(self.epsilon, delta) ** 2, self.rounds)
        update = self.published(n, q, delta)
        return rules.Together((LOSS, update)) if self.discount < 1 else update

    def published(
        self, n: int, q: float, delta: float, share: float | None = None
    ) -> rules.AsPublished:
        """Return how a client sends as published, in a round that spends a share of eps^2."""
        why = f"claimed eps {self.epsilon:g}, but {NOT_OF_TRAINING}"
        return rules.AsPublished("udp update", self.sigma(n, q, delta, share), why)

    def sigma(self, D: int, q: float, delta: float, share: float | None = None) -> float:
        """Return the published noise of a client with D examples; by default T equal shares."""
        moved = 2 * self.sgd.usual_lr * self.clip / D
        if share is None:
            return moved * other_of(self.epsilon, self.rounds, q, delta=delta)
        return moved * other_of(self.epsilon, 1, q, delta=delta) / math.sqrt(share)

    def claims(self, sizes: Sizes, delta: float) -> list[Claim]:
        formula = "sd (2 eta C/|D|) sqrt(2 q T ln(1/delta)) / eps on every update"
        return [("published", self.epsilon, formula), ("certified", math.inf, NOT_OF_TRAINING)]

    def claimed(self, t: int, sizes: Sizes, delta: float) -> tuple[float, float] | None:
        q = (self.per_round or len(sizes)) / len(sizes)
        z = other_of(self.epsilon, t, q, delta=delta)  # of a run that ends there
        return (z, self.epsilon) if self.mode == "paper" else None


@dataclass(frozen=True)
class EqualShares:
    """What is left of a client's mu^2, in equal shares for the rounds that are left."""

    clip: float  # C
    mu2: float  # what is left of the budget
    left: int  # rounds that are left

    @property
    def mu(self) -> float:
        """The share of one round."""
        return math.sqrt(self.mu2 / self.left)

    def next(self) -> EqualShares:
        """Return what is left after a round in which the client took part."""
        return replace(self, mu2=self.mu2 - self.mu**2, left=self.left - 1)

    def now(self) -> rules.Update:
        """Return the rule of a round."""
        return rules.Update.costing(self.mu, "udp update", self.clip)

    def lines(self, owner: ClientId, n: int, times: int) -> list[Release]:
        """Return the lines of a client's rounds, if they are the last ones.

        No other rounds cost more: whoever comes later has more left for each of them.
        """
        shares = [replace(self, left=times)]
        while len(shares) < times:
            shares.append(shares[-1].next())
        return rules.in_turn((share.now() for share in shares), owner, n)
