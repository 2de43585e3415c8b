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
from dataclasses import dataclass, field, replace
from typing import Literal

from tacit.core import (
    Claim,
    Client,
    Cohort,
    Method,
    NonPrivate,
    Observer,
    Params,
    Release,
    Reply,
    Sizes,
    Times,
    Unit,
    check_clip,
    check_number,
    check_rounds,
    mean,
    most_rounds,
    some,
    task,
)
from tacit.local.sgd import FOR_CLIENTS, SGD
from tacit.methods.fedavg import State
from tacit.methods.fedavg import Update as Sent
from tacit.privacy.gdp import gdp_mu
from tacit.privacy.mechanisms import (
    claimed_gaussian,
    gaussian_update,
    public_noise,
    update_z,
)
from tacit.privacy.rules import Update, lines_of


@dataclass(frozen=True)
class NbAFL(Method):
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
            x = s.x + mean(r.dx for r in replies)
            if self.mode == "paper":
                sd = self.downlink(min(r.n for r in replies), len(replies), cohort.delta)
                x = public_noise(cohort, x, sd=sd, t=t)
            s = State(x=x, round=t + 1)
            yield s

    def releases(self, sizes: Sizes, times: Times, delta: float) -> list[Release]:
        z = self.noise(max(times.values()), delta)
        lines = lines_of(Update("nbafl update", self.clip, z), sizes, times)
        if self.mode == "paper":
            return [replace(line, event=NonPrivate(why(self.epsilon))) for line in lines]
        return lines

    def noise(self, K: int, delta: float) -> float:
        """The certified noise multiplier, for K rounds of a client."""
        return update_z(gdp_mu(self.epsilon, delta) / math.sqrt(K))

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
                "2C/m is not the sensitivity of trained weights, and every round is an exposure",
            ),
        ]

    def uplink(self, m: int, delta: float) -> float:
        return c(delta) * self.L * 2 * self.clip / (m * self.epsilon)

    def downlink(self, m: int, N: int, delta: float) -> float:
        if self.rounds <= self.L * math.sqrt(N):
            return 0.0
        return (
            2
            * c(delta)
            * self.clip
            * math.sqrt(self.rounds**2 - self.L**2 * N)
            / (m * N * self.epsilon)
        )


def c(delta: float) -> float:
    return math.sqrt(2 * math.log(1.25 / delta))


def why(epsilon: float) -> str:
    return f"claimed eps {epsilon:g}, but 2C/m is not the sensitivity of trained weights"


@task
def train(me: Client, x: Params, method: NbAFL, K: int, delta: float) -> Reply[Sent]:
    y, _ = method.sgd.fit(me, x, grad=lambda g, y: g + method.mu * (y - x))
    if method.mode == "paper":
        sd = method.uplink(me.size, delta)
        dx = (
            claimed_gaussian(
                me, "nbafl weights", y.clipped(method.clip), sd=sd, why=why(method.epsilon)
            )
            - x
        )
    else:
        z = method.noise(K, delta)
        dx = gaussian_update(me, "nbafl update", y - x, clip=method.clip, z=z)
    return Reply(Sent(dx, me.size))
