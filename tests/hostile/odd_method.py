"""A method whose server looks up what clients say, and believes that it is there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tacit.core import Client, Cohort, Params, Reply, some, task
from tacit.local.sgd import SGD
from tacit.methods.fedavg import FedAvg, State

WEIGHTS = (1.0, 2.0)


@dataclass(frozen=True)
class Grouped(FedAvg):
    """FedAvg with weights by groups."""

    stubborn: bool = False  # it fails in the second round, whatever is sent

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        for t in range(s.round, self.rounds):
            sample = cohort.sample(some(self.per_round), t)
            replies = cohort.ask(train(x=s.x, sgd=self.sgd), sample)
            if self.stubborn and t == 1:
                raise ZeroDivisionError("never\x1b[2J works")
            parts = [(r.dx, WEIGHTS[r.group]) for r in replies]
            again = cohort.ask(rate(x=s.x, sgd=self.sgd), sample)
            lr = sum(WEIGHTS[r.group] for r in again) / len(again)
            s = State(x=s.x + lr * cohort.mean(parts), round=t + 1)
            yield s


@dataclass(frozen=True)
class Update:
    dx: Params
    group: int


@dataclass(frozen=True)
class Rate:
    group: int


@task
def train(me: Client, x: Params, sgd: SGD) -> Reply[Update]:
    y, _ = sgd.fit(me, x)
    return Reply(Update(dx=y - x, group=1))


@task
def rate(me: Client, x: Params, sgd: SGD) -> Reply[Rate]:
    return Reply(Rate(group=0))
