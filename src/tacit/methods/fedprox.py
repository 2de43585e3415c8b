"""FedProx (Li et al. 2020, Algorithm 2).

FedAvg with a proximal term that keeps clients near the shared model.

Difference from the paper: every client runs the same number of epochs (no partial work).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tacit.core import Client, Cohort, Params, Reply, check, task
from tacit.local.sgd import SGD, Trains
from tacit.methods.fedavg import State, Update


@dataclass(frozen=True)
class FedProx(Trains[State]):
    by_size = True
    averages = True
    mu: float = 0.01  # weight of the proximal term; 0 is FedAvg

    def __post_init__(self) -> None:
        super().__post_init__()
        check.number("mu", self.mu, at_least=0)

    @property
    def pull(self) -> float:
        return self.mu

    def init(self, x0: Params) -> State:
        return State(x0)

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        for t in range(s.round, self.rounds):
            replies = cohort.ask(
                train(x=s.x, mu=self.mu, sgd=self.sgd), self.participants(cohort, t)
            )
            s = State(x=s.x + cohort.mean((r.dx, r.n) for r in replies), round=t + 1)
            yield s


@task
def train(me: Client, x: Params, mu: float, sgd: SGD) -> Reply[Update]:
    y, _ = sgd.fit(me, x, grad=lambda g, y: g + mu * (y - x))  # gradient of f(y) + mu/2 ||y - x||^2
    return Reply(Update(dx=y - x, n=me.size))
