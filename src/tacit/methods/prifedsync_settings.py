"""PriFedSync's settings, the rule that follows from them, and what its paper claims."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal, Self

from tacit.core import Claim, ClientId, Method, NotPrivate, Sizes, Times, check
from tacit.local.prototypes import Episodes
from tacit.privacy import rules
from tacit.privacy.calibrate import spend
from tacit.privacy.claimed import clt_epsilon
from tacit.privacy.gdp import gdp_mu
from tacit.privacy.mechanisms import update_z


@dataclass(frozen=True)
class Settings(Method):
    """What can be set, and how clients send because of it."""

    protects = ("client", "server")
    averages = True
    answers = "personal"
    rounds: int = 20  # T, communication rounds
    per_round: int = 0  # clients sampled in each round; 0: everyone
    # certified: with proof; paper: as published, whatever it really spends
    mode: Literal["certified", "paper"] = "certified"
    # noise multiplier, where no epsilon is given; 0: no privacy, which is pfldyn
    sigma: float = 0.45
    epsilon: float = 0.0  # certified: solve sigma so that all rounds cost a client this much
    clip: float = 1.0  # C, bound on the update
    alpha: float = 0.1  # weight of the quadratic term
    share: bool = True  # scale the step of g by the share of clients that took part
    local: Episodes = field(default_factory=Episodes)  # local training

    def __post_init__(self) -> None:
        check.rounds(self.rounds, self.per_round)
        check.number("sigma", self.sigma, at_least=0)
        check.number("epsilon", self.epsilon, at_least=0)
        if self.epsilon and self.mode == "paper":
            raise NotPrivate(f"epsilon = {self.epsilon:g}: means nothing in mode = 'paper'")
        check.clip("clip", self.clip)
        check.number("alpha", self.alpha, above=0)

    def solved(self, sizes: Sizes, times: Times, delta: float) -> Self:
        K = max(times.values(), default=0)
        if not self.epsilon or not K:
            return self
        return replace(self, sigma=update_z(gdp_mu(self.epsilon, delta) / math.sqrt(K)))

    def rule(
        self, client: ClientId, n: int, K: int, delta: float
    ) -> rules.Open | rules.AsPublished | rules.Update:
        if not self.sigma:
            return rules.Open("prifedsync update", why(self.sigma))
        if self.mode == "certified":
            return rules.Update("prifedsync update", self.clip, self.sigma)
        sd = 2 * self.clip * self.sigma / self.local.batch
        return rules.AsPublished("prifedsync update", sd, why(self.sigma), clip=self.clip)

    def claims(self, sizes: Sizes, delta: float) -> list[Claim]:
        # CUAG-PFL's setting: 10 of 100 clients, 500 examples each
        q = 0.1 * self.local.rate(500)
        T = 300
        if not self.sigma:
            return [("certified", math.inf, why(self.sigma))]
        first, last = (clt_epsilon(self.sigma, t, q, delta=delta) for t in (1, T))
        return [
            ("published, round 1", first, f"CLT-GDP, one step a round, q = lambda B/|D| = {q:g}"),
            (f"published, round {T}", last, "the same"),
            (
                f"exact, round {T}",
                spend(self.sigma, T, q, delta=delta),
                "PLD of the same model: the CLT is optimistic",
            ),
            ("certified", math.inf, why(self.sigma)),
        ]

    def claimed(self, t: int, sizes: Sizes, delta: float) -> tuple[float, float] | None:
        if self.mode == "certified" or not self.sigma:
            return None
        q = (self.per_round or len(sizes)) / len(sizes) * self.local.rate(min(sizes.values()))
        return self.sigma, clt_epsilon(self.sigma, t, q, delta=delta)


def why(sigma: float) -> str:
    """What the guarantee lacks."""
    if not sigma:
        return "sigma = 0: updates are sent without noise"
    return (
        f"sigma {sigma:g} on 2C/B, which is not the sensitivity of trained weights; "
        "the server knows who took part"
    )
