"""NbAFL (Wei et al. 2020, Algorithm 1): clients clip their weights and add noise.

The server adds noise if needed.

Local training adds mu/2 ||w - x||^2 to the loss. `paper`: uplink noise c L (2C/m) / eps, c = sqrt(2
ln(1.25/delta)), and downlink noise 2 c C sqrt(T^2 - L^2 N) / (m N eps) where T > L sqrt(N). 2C/m
bounds a mean over m records of clipped quantities, not trained weights, so the ledger says inf.
`certified`: the weights' distance from the shared model is clipped to C and gets the noise that
this needs, so no downlink noise is left to add. Difference from the paper: weights w travel as w -
x, which is the same information and stands compression.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from tacit.core import (
    Claim,
    Client,
    ClientId,
    Cohort,
    Method,
    Observer,
    Params,
    Reply,
    Sizes,
    Unit,
    check_clip,
    check_number,
    check_rounds,
    most_rounds,
    some,
    task,
)
from tacit.local.sgd import FOR_CLIENTS, SGD
from tacit.methods.fedavg import State
from tacit.methods.fedavg import Update as Sent
from tacit.privacy.gdp import gdp_mu
from tacit.privacy.mechanisms import public_noise, update_z
from tacit.privacy.rules import AsPublished, Update


@dataclass(frozen=True)
class NbAFL(Method):
    averages = True
    rounds: int = 20  # T, communication rounds
    per_round: int = 0  # clients sampled in each round; 0: everyone
    # certified: with proof; paper: as published, whatever it really spends
    mode: Literal["certified", "paper"] = "certified"
    epsilon: float = 4.0  # what every client spends over all rounds
    clip: float = 10.0  # C, the clipping norm: of the weights (paper), of the update (certified)
    L: int = 1  # exposures of a client's uploads that the published formula counts
    mu: float = 0.01  # weight of the proximal term
    sgd: SGD = field(default_factory=SGD)  # local training

    def __post_init__(self) -> None:
        check_rounds(self.rounds, self.per_round)
        check_number("epsilon", self.epsilon, above=0)
        check_clip("clip", self.clip)
        check_number("L", self.L, at_least=1, whole=True)
        check_number("mu", self.mu, at_least=0)
        self.sgd.refuse_clip(FOR_CLIENTS)

    @property
    def protects(self) -> tuple[Unit, Observer]:
        return ("client", "server")

    def init(self, x0: Params) -> State:
        return State(x0)

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        K = most_rounds(cohort, some(self.per_round), self.rounds)
        for t in range(s.round, self.rounds):
            call = train(x=s.x, method=self, K=K, delta=cohort.delta)
            replies = cohort.ask(call, cohort.sample(some(self.per_round), t))
            x = s.x + cohort.mean(r.dx for r in replies)
            if self.mode == "paper":
                sd = self.downlink(min(r.n for r in replies), len(replies), cohort.delta)
                x = public_noise(cohort, x, sd=sd, t=t)
            s = State(x=x, round=t + 1)
            yield s

    def rule(self, client: ClientId, n: int, K: int, delta: float) -> AsPublished | Update:
        if self.mode == "paper":
            why = f"claimed eps {self.epsilon:g}, but {NOT_OF_WEIGHTS}"
            return AsPublished("nbafl weights", self.uplink(n, delta), why, clip=self.clip)
        z = update_z(gdp_mu(self.epsilon, delta) / math.sqrt(K))
        return Update("nbafl update", self.clip, z)

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

    def uplink(self, m: int, delta: float) -> float:
        """The published noise of a client with m examples."""
        return c(delta) * self.L * 2 * self.clip / (m * self.epsilon)

    def downlink(self, m: int, N: int, delta: float) -> float:
        """The published noise of the server, where the clients' is not enough for T rounds."""
        T = self.rounds
        L = self.L
        if L * math.sqrt(N) >= T:
            return 0.0
        return 2 * c(delta) * self.clip * math.sqrt(T**2 - L**2 * N) / (m * N * self.epsilon)


NOT_OF_WEIGHTS = "2C/m is not the sensitivity of trained weights"


def c(delta: float) -> float:
    return math.sqrt(2 * math.log(1.25 / delta))


@task
def train(me: Client, x: Params, method: NbAFL, K: int, delta: float) -> Reply[Sent]:
    y, _ = method.sgd.fit(me, x, grad=lambda g, y: g + method.mu * (y - x))
    rule = method.rule(me.id, me.size, K, delta)
    dx = rule.send(me, y) - x if method.mode == "paper" else rule.send(me, y - x)
    return Reply(Sent(dx, me.size))
