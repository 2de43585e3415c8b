"""SCAFFOLD (Karimireddy et al. 2020, Algorithm 1, option II).

Control variates against client drift.

As in the paper, the mean over clients is not weighted by examples. Difference from it: with
momentum, K becomes the sum of the gradients' weights (FedNova's ||a||_1), so that c_i stays a mean
of gradients; without momentum it is K.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tacit.core import Client, Cohort, Params, Replies, Reply, check, task
from tacit.local.sgd import SGD, Trains


@dataclass(frozen=True)
class State:
    x: Params
    c: Params
    round: int = 0


@dataclass(frozen=True)
class Scaffold(Trains[State]):
    averages = True
    server_lr: float = 1.0  # the server's step along the mean update

    def __post_init__(self) -> None:
        super().__post_init__()
        check.number("server_lr", self.server_lr, above=0)
        self.sgd.refuse_adam("a control variate is the mean gradient of the steps")

    def init(self, x0: Params) -> State:
        return State(x0, c=x0.zeros())

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        N = len(cohort.everyone)
        for t in range(s.round, self.rounds):
            S = self.participants(cohort, t)
            replies = cohort.ask(train(x=s.x, c=s.c, sgd=self.sgd), S)
            s = stepped(cohort, s, replies, self.server_lr, N)
            yield s


@dataclass(frozen=True)
class Update:
    dy: Params
    dc: Params


def stepped(cohort: Cohort, s: State, replies: Replies[Update], lr: float, N: int) -> State:
    """Return the server's next state; N is the number of clients, asked or not."""
    return replace(
        s,
        x=s.x + lr * cohort.mean(r.dy for r in replies),
        c=s.c + (len(replies) / N) * cohort.mean(r.dc for r in replies),
        round=s.round + 1,
    )


@task
def train(me: Client, x: Params, c: Params, sgd: SGD) -> Reply[Update]:
    c_i: Params = me.kept.get("c", c.zeros())
    drift = c - c_i
    y, K = sgd.fit(me, x, grad=lambda g, y: g + drift)
    c_plus = (x - y) / (sgd.reach(K) * sgd.lr_in(me.round)) - drift
    return Reply(Update(dy=y - x, dc=c_plus - c_i), keep={"c": c_plus})
