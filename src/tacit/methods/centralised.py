"""Centralised training: all data in one place. Not federated and not private.

The ceiling for the others.

Noise that a split adds to clients' inputs, and private label orders, are left out: the pooled data
are the originals.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Self

from tacit.core import (
    Accounted,
    ClientId,
    Cohort,
    Everyone,
    Known,
    Method,
    Params,
    Sizes,
    Times,
    check,
)
from tacit.core.data import GOALS
from tacit.local.sgd import SGD
from tacit.methods.fedavg import State, train


@dataclass(frozen=True)
class Centralised(Method[State]):
    pooled = True
    goals = GOALS
    can_follow = False  # it needs all data
    rounds: int = 20  # one round is ``sgd.epochs`` passes over all data
    # training; auto is chosen by rules with a clip, an epsilon and a linear model of features
    sgd: SGD = field(default_factory=lambda: SGD(lr="auto", epochs="auto", batch="auto"))
    # with sgd.clip: what an example spends over all rounds; 0: as sgd.z or sgd.epsilon say
    epsilon: float = 0.0

    def __post_init__(self) -> None:
        check.number("rounds", self.rounds, at_least=0)
        self.sgd.check_epsilon(self.epsilon)

    @property
    def per_example(self) -> bool:
        return self.sgd.clip > 0

    @property
    def prefers_features(self) -> bool:
        return self.sgd.solves(self.epsilon)

    def tuned(self, known: Known) -> Self:
        """Choose what nobody has said of training."""
        return replace(self, sgd=self.sgd.tuned(known, self.rounds, self.epsilon))

    def solved(self, sizes: Sizes, times: Times, delta: float) -> Self:
        return replace(self, sgd=self.sgd.solved(sizes, times, delta, epsilon=self.epsilon))

    def rule(self, client: ClientId, n: int, K: int, delta: float) -> Accounted:
        return self.sgd if self.sgd.clip else super().rule(client, n, K, delta)

    def init(self, x0: Params) -> State:
        return State(x0)

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        for t in range(s.round, self.rounds):
            (reply,) = cohort.ask(
                train(x=s.x, sgd=self.sgd), cohort.sample(Everyone(), t), need=1.0
            )
            s = State(x=s.x + reply.dx, round=t + 1)
            yield s
