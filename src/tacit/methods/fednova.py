"""FedNova (Wang et al. 2020, equation 10).

Normalised averaging, so that clients with more steps do not pull more.

x <- x - tau_eff * sum_i p_i d_i with d_i = (x - y_i) / ||a_i||_1 and tau_eff = sum_i p_i ||a_i||_1.
With local momentum, ||a_i||_1 counts each gradient as often as it acts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tacit.core import (
    Client,
    Cohort,
    Params,
    Reply,
    task,
    weighted_sum,
)
from tacit.local.sgd import SGD, Trains
from tacit.methods.fedavg import State, Update


@dataclass(frozen=True)
class FedNova(Trains[State]):
    by_size = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sgd.refuse_adam("updates are compared by how many gradients they add up")

    def init(self, x0: Params) -> State:
        return State(x0)

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        for t in range(s.round, self.rounds):
            replies = cohort.ask(train(x=s.x, sgd=self.sgd), self.participants(cohort, t))
            n = sum(r.n for r in replies)
            # it follows from the size, so that nobody need be believed
            a = [self.sgd.reach(self.sgd.steps_on(r.n)) for r in replies]
            tau_eff = sum(r.n * a_i for r, a_i in zip(replies, a, strict=True)) / n
            weights = [r.n / n * (tau_eff / a_i) for r, a_i in zip(replies, a, strict=True)]
            dx = weighted_sum(zip((r.dx for r in replies), weights, strict=True))
            s = State(x=s.x + dx, round=t + 1)
            yield s


@task
def train(me: Client, x: Params, sgd: SGD) -> Reply[Update]:
    y, _ = sgd.fit(me, x)
    return Reply(Update(dx=y - x, n=me.size))
