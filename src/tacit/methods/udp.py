"""UDP (Wei et al. 2022, Algorithm 1): client-level privacy against the server, one eps in all.

`paper`: local SGD whose gradients are clipped to C example by example, then noise of
(2 eta C/|D|) sqrt(2 q T ln(1/delta)) / eps on the update. That is the sensitivity of one full-batch
step to one example, not of a client's training to all its data: the ledger says inf.
`certified`, ours: each client clips its update to C and adds noise; a round's noise follows from
what is left of eps and of the rounds, so that the total is eps however often a client took part
(equal shares of mu^2). Left out: the discounting of rounds (CRD), for which the server would need
test data.
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
    Release,
    Reply,
    Sizes,
    check,
    some,
    task,
)
from tacit.local.sgd import FOR_CLIENTS, SGD
from tacit.methods.dp_fedavg import Update as Sent
from tacit.methods.fedavg import State
from tacit.privacy.claimed import other_of
from tacit.privacy.gdp import gdp_mu
from tacit.privacy.mechanisms import update_z
from tacit.privacy.rules import AsPublished, Update, in_turn


@dataclass(frozen=True)
class UDP(Method):
    protects = ("client", "server")
    averages = True
    rounds: int = 20  # T, communication rounds
    per_round: int = 0  # clients sampled in each round; 0: everyone
    # certified: with proof; paper: as published, whatever it really spends
    mode: Literal["certified", "paper"] = "certified"
    epsilon: float = 10.0  # what every client spends over all rounds
    clip: float = 1.0  # C, clipping norm: of the update (certified), of each gradient (paper)
    sgd: SGD = field(default_factory=SGD)  # local training

    def __post_init__(self) -> None:
        check.rounds(self.rounds, self.per_round)
        check.number("epsilon", self.epsilon, above=0)
        check.clip("clip", self.clip)
        self.sgd.refuse_clip(FOR_CLIENTS)
        if self.mode == "paper":
            self.sgd.refuse_adam("the noise is for steps along gradients")

    @property
    def per_example(self) -> bool:
        return self.mode == "paper"

    def init(self, x0: Params) -> State:
        return State(x0)

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        N = len(cohort.everyone)
        q = (self.per_round or N) / N
        for t in range(s.round, self.rounds):
            call = train(x=s.x, method=self, left=self.rounds - t, q=q, delta=cohort.delta)
            replies = cohort.ask(call, cohort.sample(some(self.per_round), t))
            s = State(x=s.x + cohort.mean(r.dx for r in replies), round=t + 1)
            yield s

    def rule(
        self, client: ClientId, n: int, K: int, delta: float, q: float = 1.0
    ) -> AsPublished | EqualShares:
        """Return how a client sends; q, the share of clients in a round, is for the paper only."""
        if self.mode == "paper":
            why = f"claimed eps {self.epsilon:g}, but {NOT_OF_TRAINING}"
            return AsPublished("udp update", self.sigma(n, q, delta), why)
        return EqualShares(self.clip, gdp_mu(self.epsilon, delta) ** 2, self.rounds)

    def sigma(self, D: int, q: float, delta: float) -> float:
        """Return the published noise of a client with D examples."""
        return 2 * self.sgd.lr * self.clip / D * other_of(self.epsilon, self.rounds, q, delta=delta)

    def claims(self, sizes: Sizes, delta: float) -> list[Claim]:
        formula = "sd (2 eta C/|D|) sqrt(2 q T ln(1/delta)) / eps on every update"
        return [("published", self.epsilon, formula), ("certified", math.inf, NOT_OF_TRAINING)]

    def claimed(self, t: int, sizes: Sizes, delta: float) -> tuple[float, float] | None:
        q = (self.per_round or len(sizes)) / len(sizes)
        z = other_of(self.epsilon, t, q, delta=delta)  # of a run that ends there
        return (z, self.epsilon) if self.mode == "paper" else None


NOT_OF_TRAINING = (
    "2 eta C/|D| bounds one full-batch step when one example changes, not a client's training"
)


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

    def now(self) -> Update:
        """Return the rule of a round."""
        return Update("udp update", self.clip, update_z(self.mu))

    def lines(self, owner: ClientId, n: int, times: int) -> list[Release]:
        """Return the lines of a client's rounds, if they are the last ones.

        No other rounds cost more: whoever comes later has more left for each of them.
        """
        shares = [replace(self, left=times)]
        while len(shares) < times:
            shares.append(shares[-1].next())
        return in_turn((share.now() for share in shares), owner, n)


@task
def train(me: Client, x: Params, method: UDP, left: int, q: float, delta: float) -> Reply[Sent]:
    rule = method.rule(me.id, me.size, left, delta, q)
    if isinstance(rule, AsPublished):
        y, _ = method.sgd.fit(me, x, bound=method.clip)
        return Reply(Sent(rule.send(me, y - x)))
    y, _ = method.sgd.fit(me, x)
    share = replace(rule, mu2=me.kept.get("mu2", rule.mu2), left=left)
    return Reply(Sent(share.now().send(me, y - x)), keep={"mu2": share.next().mu2})
