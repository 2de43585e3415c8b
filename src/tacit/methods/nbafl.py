"""NbAFL (Wei et al. 2020, Algorithm 1): clients clip their weights and add noise.

The server adds noise if needed.

Local training adds mu/2 ||w - x||^2 to the loss. `paper`: uplink noise c L (2C/m) / eps, c = sqrt(2
ln(1.25/delta)), m the size of the smallest client; the mean weighs clients by their sizes (p_i);
downlink noise 2 c C sqrt(T^2/b^2 - L^2 K) / (m K eps), b = -(T/eps) ln(1 - N/K + (N/K) e^(-eps/T)),
where K of N clients take part (b = 1 if all do), and none where that is not defined. 2C/m bounds a
mean over m records of clipped quantities, not trained weights, so the ledger says inf. `certified`:
the weights' distance from the shared model is clipped to C and gets the noise that this needs, so
no downlink noise is left to add. Difference from the paper: weights w travel as w - x, which is the
same information and stands compression.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from tacit.core import (
    Claim,
    Client,
    ClientId,
    Cohort,
    Method,
    Params,
    Reply,
    Sizes,
    Times,
    check,
    most_rounds,
    some,
    task,
)
from tacit.local.sgd import FOR_CLIENTS, SGD
from tacit.methods.fedavg import State
from tacit.methods.fedavg import Update as Sent
from tacit.methods.ldp_fl_claims import performance_loss
from tacit.privacy.gdp import gdp_mu
from tacit.privacy.mechanisms import public_noise, update_z
from tacit.privacy.rules import AsPublished, Update


@dataclass(frozen=True)
class NbAFL(Method):
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
        self.sgd.refuse_clip(FOR_CLIENTS)

    def init(self, x0: Params) -> State:
        return State(x0)

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        K = most_rounds(cohort, some(self.per_round), self.rounds)
        for t in range(s.round, self.rounds):
            call = train(x=s.x, method=self, K=K, delta=cohort.delta)
            replies = cohort.ask(call, cohort.sample(some(self.per_round), t))
            if self.mode == "certified":
                x = s.x + cohort.mean(r.dx for r in replies)
            else:
                x = s.x + cohort.mean((r.dx, r.n) for r in replies)  # p_i
                m = self.m or min(r.n for r in replies)
                sd = self.downlink(m, len(replies), len(cohort.everyone), cohort.delta)
                x = public_noise(cohort, x, sd=sd, t=t)
            s = State(x=x, round=t + 1)
            yield s

    def solved(self, sizes: Sizes, times: Times, delta: float) -> NbAFL:
        smallest = self.mode == "paper" and not self.m
        return replace(self, m=min(sizes.values())) if smallest else self

    def rule(self, client: ClientId, n: int, K: int, delta: float) -> AsPublished | Update:
        if self.mode == "paper":
            why = f"claimed eps {self.epsilon:g}, but {NOT_OF_WEIGHTS}"
            return AsPublished(
                "nbafl weights", self.uplink(self.m or n, delta), why, clip=self.clip
            )
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


NOT_OF_WEIGHTS = "2C/m is not the sensitivity of trained weights"


def c(delta: float) -> float:
    return math.sqrt(2 * math.log(1.25 / delta))


@task
def train(me: Client, x: Params, method: NbAFL, K: int, delta: float) -> Reply[Sent]:
    y, _ = method.sgd.fit(me, x, grad=lambda g, y: g + method.mu * (y - x))
    rule = method.rule(me.id, me.size, K, delta)
    dx = rule.send(me, y) - x if method.mode == "paper" else rule.send(me, y - x)
    return Reply(Sent(dx, me.size))
