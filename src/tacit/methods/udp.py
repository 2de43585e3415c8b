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
from typing import Literal

from tacit.core import (
    Claim,
    Client,
    ClientId,
    Cohort,
    Method,
    Observer,
    Params,
    Release,
    Reply,
    Sizes,
    Unit,
    check_clip,
    check_number,
    check_rounds,
    mean,
    some,
    task,
)
from tacit.local.sgd import FOR_CLIENTS, SGD
from tacit.methods.dp_fedavg import Update as Sent
from tacit.methods.fedavg import State
from tacit.privacy.gdp import gdp_mu
from tacit.privacy.mechanisms import update_z
from tacit.privacy.rules import AsPublished, Update, in_turn


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

    def rule(self, client: ClientId, n: int, K: int, delta: float) -> EqualShares:
        mu2 = gdp_mu(self.epsilon, delta) ** 2
        return EqualShares(self.mode, self.epsilon, self.clip, mu2, self.rounds)

    def claims(self, sizes: Sizes, delta: float) -> list[Claim]:
        return [
            ("published", self.epsilon, "for updates clipped to the median of their norms"),
            (
                "certified",
                math.inf,
                "a median of raw norms depends on the data, so the noise scale reveals them",
            ),
        ]


@dataclass(frozen=True)
class EqualShares:
    """What is left of a client's mu^2, in equal shares for the rounds that are left."""

    mode: str
    epsilon: float
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

    def now(self, C: float) -> AsPublished | Update:
        """Return the rule of a round, with C as its clipping norm."""
        if self.mode == "paper":
            why = f"claimed eps {self.epsilon:g}, but the clip is a median of the client's own raw norms"
            return AsPublished("udp update", C / self.mu, why, clip=C)
        return Update("udp update", C, update_z(self.mu))

    def lines(self, owner: ClientId, n: int, times: int) -> list[Release]:
        """Return the lines of a client's rounds, if they are the last ones.

        No other rounds cost more: whoever comes later has more left for each of them.
        """
        shares = [replace(self, left=times)]
        while len(shares) < times:
            shares.append(shares[-1].next())
        return in_turn((share.now(self.clip) for share in shares), owner, n)


@task
def train(me: Client, x: Params, method: UDP, left: int, delta: float) -> Reply[Sent]:
    y, _ = method.sgd.fit(me, x)
    whole = method.rule(me.id, me.size, left, delta)
    share = replace(whole, mu2=me.kept.get("mu2", whole.mu2), left=left)
    kept = {"mu2": share.next().mu2}
    if method.mode == "certified":
        return Reply(Sent(share.now(method.clip).send(me, y - x)), keep=kept)
    norms = [*me.kept.get("norms", []), (y - x).norm()]
    dx = share.now(median(norms)).send(me, y - x)
    return Reply(Sent(dx), keep={**kept, "norms": norms})
