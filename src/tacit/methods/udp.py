"""UDP (Wei et al. 2022, Algorithm 1).

Client-level privacy against the server, one eps for all rounds.

Each client clips its update to C and adds noise; a round's noise follows from what is left of eps
and of the rounds, so that the total is eps however often a client took part (equal shares of mu^2).
`paper`: the clip is the median of the client's own past norms, which nobody made private: the
ledger says inf. `certified`: C is public.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Literal

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
    some,
    task,
)
from tacit.local.sgd import FOR_CLIENTS, SGD
from tacit.methods.dp_fedavg import Update
from tacit.methods.fedavg import State
from tacit.privacy import rules
from tacit.privacy.gdp import gdp_mu
from tacit.privacy.mechanisms import claimed_gaussian, gaussian_update, update_z
from tacit.privacy.rules import lines_of


@dataclass(frozen=True)
class UDP(Method):
    rounds: int = 20  # T, communication rounds
    per_round: int = 0  # clients sampled in each round; 0: everyone
    # certified: with proof; paper: as published, whatever it really spends
    mode: Literal["certified", "paper"] = "certified"
    epsilon: float = 10.0  # what every client spends over all rounds
    clip: float = 1.0  # C, the clipping norm of a client's update
    sgd: SGD = field(default_factory=SGD)  # local training

    def __post_init__(self) -> None:
        check_rounds(self.rounds, self.per_round)
        check_number("epsilon", self.epsilon, above=0)
        check_clip("clip", self.clip)
        self.sgd.refuse_clip(FOR_CLIENTS)

    @property
    def protects(self) -> tuple[Unit, Observer]:
        return ("client", "server")

    def init(self, x0: Params) -> State:
        return State(x0)

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        for t in range(s.round, self.rounds):
            call = train(x=s.x, method=self, left=self.rounds - t, delta=cohort.delta)
            replies = cohort.ask(call, cohort.sample(some(self.per_round), t))
            s = State(x=s.x + mean(r.dx for r in replies), round=t + 1)
            yield s

    def releases(self, sizes: Sizes, times: Times, delta: float) -> list[Release]:
        z = update_z(gdp_mu(self.epsilon, delta) / math.sqrt(self.rounds))
        lines = lines_of(rules.Update("udp update", self.clip, z), sizes, times)
        if self.mode == "paper":
            return [replace(line, event=NonPrivate(why(self.epsilon))) for line in lines]
        return lines

    def claims(self, sizes: Sizes, delta: float) -> list[Claim]:
        return [
            ("published", self.epsilon, "for updates clipped to the median of their norms"),
            (
                "certified",
                math.inf,
                "a median of raw norms depends on the data, so the noise scale reveals them",
            ),
        ]


def why(epsilon: float) -> str:
    return f"claimed eps {epsilon:g}, but the clip is a median of the client's own raw norms"


@task
def train(me: Client, x: Params, method: UDP, left: int, delta: float) -> Reply[Update]:
    y, _ = method.sgd.fit(me, x)
    # what is left of the budget
    mu2: float = me.kept.get("mu2", gdp_mu(method.epsilon, delta) ** 2)
    mu = math.sqrt(mu2 / left)  # equal shares for the rounds that are left
    kept: dict[str, Any] = {"mu2": mu2 - mu**2}
    if method.mode == "paper":
        norms = [*me.kept.get("norms", []), (y - x).norm()]
        C = median(norms)
        dx = claimed_gaussian(
            me, "udp update", (y - x).clipped(C), sd=C / mu, why=why(method.epsilon)
        )
        return Reply(Update(dx), keep={**kept, "norms": norms})
    dx = gaussian_update(me, "udp update", y - x, clip=method.clip, z=update_z(mu))
    return Reply(Update(dx), keep=kept)
