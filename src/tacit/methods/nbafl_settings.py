"""NbAFL's settings, the rule that follows from them, and its paper's noise and claims."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal, Self

from tacit.core import Claim, ClientId, Method, Sizes, Times, check
from tacit.local.sgd import SGD
from tacit.methods.ldp_fl_claims import performance_loss
from tacit.privacy import rules
from tacit.privacy.gdp import gdp_mu

NOT_OF_WEIGHTS = "2C/m is not the sensitivity of trained weights"


@dataclass(frozen=True)
class Settings(Method):
    """What can be set, and how clients send because of it."""

    protects = ("client", "server")
    averages = True
    rounds: int = 20  # T, communication rounds
    per_round: int = 0  # clients sampled in each round; 0: everyone
    # certified: with proof; paper: as published, whatever it really spends
    mode: Literal["certified", "paper"] = "certified"
    epsilon: float = 4.0  # what every client spends over all rounds
    clip: float = 10.0  # C, the clipping norm: of the weights (paper), of the update (certified)
    L: int = 1  # exposures of a client's uploads that the published formula counts
    mu: float = 0.01  # weight of the proximal term
    m: int = 0  # paper: examples of the smallest client; 0: found out before the first round
    sgd: SGD = field(default_factory=SGD)  # local training

    def __post_init__(self) -> None:
        check.rounds(self.rounds, self.per_round)
        check.number("epsilon", self.epsilon, above=0)
        check.clip("clip", self.clip)
        check.number("L", self.L, at_least=1, whole=True)
        check.number("mu", self.mu, at_least=0)
        check.number("m", self.m, at_least=0, whole=True)
        self.sgd.refuse_clip()

    @property
    def prefers_features(self) -> bool:
        return self.mode == "certified"

    def solved(self, sizes: Sizes, times: Times, delta: float) -> Self:
        smallest = self.mode == "paper" and not self.m
        return replace(self, m=min(sizes.values())) if smallest else self

    def rule(
        self, client: ClientId, n: int, K: int, delta: float
    ) -> rules.AsPublished | rules.Update:
        if self.mode == "paper":
            why = f"claimed eps {self.epsilon:g}, but {NOT_OF_WEIGHTS}"
            return rules.AsPublished(
                "nbafl weights", self.uplink(self.m or n, delta), why, clip=self.clip
            )
        mu = gdp_mu(self.epsilon, delta) / math.sqrt(K)
        return rules.Update.costing(mu, "nbafl update", self.clip)

    def claims(self, sizes: Sizes, delta: float) -> list[Claim]:
        return [
            (
                "published",
                self.epsilon,
                f"one exposure (L = {self.L}) of weights clipped to C, sensitivity 2C/m",
            ),
            (
                "certified",
                math.inf,
                f"{NOT_OF_WEIGHTS}, and every round is an exposure",
            ),
        ]

    def performance_loss(self, t: int, sizes: Sizes, delta: float) -> float:
        q, r = (self.per_round or len(sizes)) / len(sizes), self.epsilon / (c(delta) * self.L)
        return q * performance_loss([r] * len(sizes), t, q)  # r: 2C/m over the uplink's noise

    def uplink(self, m: int, delta: float) -> float:
        """The published noise of a client with m examples."""
        return c(delta) * self.L * 2 * self.clip / (m * self.epsilon)

    def downlink(self, m: int, K: int, N: int, delta: float) -> float:
        """The published noise of the server, where that of K of N clients is not enough."""
        b = self.rounds_counted(K, N)
        more = (self.rounds / b) ** 2 - self.L**2 * K if b else 0.0
        return 2 * c(delta) * self.clip * math.sqrt(max(0.0, more)) / (m * K * self.epsilon)

    def rounds_counted(self, K: int, N: int) -> float:
        """The published b: sampling K of N clients makes T rounds cheaper. 0: undefined."""
        each = self.epsilon / self.rounds
        inside = 1 - N / K + N / K * math.exp(-each)
        return -math.log(inside) / each if inside > 0 else 0.0


def c(delta: float) -> float:
    return math.sqrt(2 * math.log(1.25 / delta))
