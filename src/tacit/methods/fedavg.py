"""FedAvg (McMahan et al. 2017, Algorithm 1): local SGD, then the mean weighted by examples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tacit.core import Client, Cohort, Params, Reply, task
from tacit.local.sgd import SGD, Trains


@dataclass(frozen=True)
class State:
    x: Params
    round: int = 0

    def after(self, dx: Params, momentum: float = 0.0) -> State:
        return State(self.x + dx, self.round + 1)


@dataclass(frozen=True)
class Moving(State):
    """A state of a server with momentum: a share of its last step is taken again."""

    v: Params = field(default_factory=Params)  # the last step

    def after(self, dx: Params, momentum: float = 0.0) -> Moving:
        v = momentum * self.v + dx
        return Moving(self.x + v, self.round + 1, v)


@dataclass(frozen=True)
class FedAvg(Trains[State]):
    by_size = True
    averages = True

    def init(self, x0: Params) -> State:
        return State(x0)

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        for t in range(s.round, self.rounds):
            replies = cohort.ask(train(x=s.x, sgd=self.sgd), self.participants(cohort, t))
            s = State(x=s.x + cohort.mean((r.dx, r.n) for r in replies), round=t + 1)
            yield s


@dataclass(frozen=True)
class Update:
    dx: Params
    n: int


@task
def train(me: Client, x: Params, sgd: SGD) -> Reply[Update]:
    y, _ = sgd.fit(me, x)
    return Reply(Update(dx=y - x, n=me.size))
