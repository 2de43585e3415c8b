"""DP-SCAFFOLD (Noble et al. 2022, Algorithm 1): SCAFFOLD whose local steps are DP-SGD.

`certified`: the clients' variates are made of the same noised gradients, so they cost nothing more
and may leave the client; the shared model and the variates go up as in `scaffold`, whose task this
is. Given `sgd.epsilon`, the noise is solved. `paper`: as in the authors' code, each tensor of each
example's gradient is clipped to the median norm in its batch, which is of fixed size, and gets
noise 2 sigma C/B with sigma = `sgd.z`. A clip that follows the data bounds nothing: the ledger says
inf. Left out: the warm start of the variates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from tacit.core import (
    Accounted,
    BadInput,
    Claim,
    Client,
    ClientId,
    Cohort,
    NotPrivate,
    Params,
    Reply,
    Sizes,
    some,
    task,
)
from tacit.local.median_clip import noisy_steps
from tacit.local.sgd import SGD, Trains
from tacit.methods.scaffold import Scaffold, State, Update, stepped
from tacit.privacy.claimed import other_of
from tacit.privacy.mechanisms import ClaimedSteps
from tacit.privacy.rules import Open

NAME = "dp_scaffold steps"
WHY = "the clip is the median of the batch's own norms, which bounds no example's part"


@dataclass(frozen=True)
class DPScaffold(Trains):
    server_lr: float = 1.0  # the server's step along the mean update
    # certified: with proof; paper: as published, whatever it really spends
    mode: Literal["certified", "paper"] = "certified"
    # local DP-SGD; in paper mode z is the paper's sigma, and clip means nothing
    sgd: SGD = field(default_factory=lambda: SGD(batch=64, clip=1.0, z=1.0))

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.sgd.clip:
            raise BadInput(f"sgd.clip = {self.sgd.clip}: dp_scaffold needs a clip above 0")
        if self.mode == "paper" and not self.sgd.z:
            raise BadInput(f"sgd.z = {self.sgd.z}: must be above 0 in mode = 'paper'")
        if self.mode == "paper" and (given := self.epsilon or self.sgd.epsilon):
            name = "epsilon" if self.epsilon else "sgd.epsilon"
            raise NotPrivate(f"{name} = {given:g}: means nothing in mode = 'paper'")
        self.sgd.refuse_adam("a control variate is the mean gradient of the steps")

    @property
    def per_example(self) -> bool:
        return self.mode == "certified"  # as published, each example goes through by itself

    def init(self, x0: Params) -> State:
        return State(x0, c=x0.zeros())

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        if self.mode == "certified":
            same = Scaffold(self.rounds, self.per_round, self.sgd, self.server_lr)
            yield from same.run(cohort, s)
            return
        N = len(cohort.everyone)
        for t in range(s.round, self.rounds):
            replies = cohort.ask(
                train(x=s.x, c=s.c, sgd=self.sgd), cohort.sample(some(self.per_round), t)
            )
            s = stepped(cohort, s, replies, self.server_lr, N)
            yield s

    def rule(self, client: ClientId, n: int, K: int, delta: float) -> Accounted:
        return Open(NAME, WHY) if self.mode == "paper" else super().rule(client, n, K, delta)

    def claims(self, sizes: Sizes, delta: float) -> list[Claim]:
        if self.mode == "certified":
            return []
        spent = self.claimed(self.rounds, sizes, delta)
        formula = "sqrt(2 q T ln(1/delta)) / sigma, as CUAG-PFL's paper counts it"
        published = [(f"published, round {self.rounds}", spent[1], formula)] if spent else []
        return [*published, ("certified", math.inf, WHY)]

    def claimed(self, t: int, sizes: Sizes, delta: float) -> tuple[float, float] | None:
        q = (self.per_round or len(sizes)) / max(1, len(sizes))
        z = self.sgd.z
        return (z, other_of(z, t, q, delta=delta)) if self.mode == "paper" else None


@task
def train(me: Client, x: Params, c: Params, sgd: SGD) -> Reply[Update]:
    c_i: Params = me.kept.get("c", c.zeros())
    drift = c - c_i
    release = ClaimedSteps(me, NAME, WHY)
    plain = replace(sgd, clip=0.0, z=0.0, steps=sgd.steps_on(me.size))
    y, K = plain.fit(
        me,
        x,
        grad=lambda g, y: g + drift,
        gradients=lambda weights: noisy_steps(me, weights, plain, sgd.z, release),
    )
    y = y.as_released()  # as far as the paper goes
    c_plus = (x - y) / (sgd.reach(K) * sgd.lr_in(me.round)) - drift
    return Reply(Update(dy=y - x, dc=c_plus - c_i), keep={"c": c_plus})
