"""Ditto (Li et al. 2021, Algorithm 1): FedAvg, and beside it a model of each client's own.

Client k trains the shared w as in FedAvg and sends it; and its own v_k, which never leaves it, on
F_k(v_k) + lam/2 ||v_k - w||^2. lam = 0 is every client alone. With `sgd.clip` the shared model is
trained by DP-SGD and the guarantee is about what the server sees; v_k is trained without noise, as
nobody sees it. Difference from the paper: v_k is trained in the rounds in which the client takes
part, as in its Algorithm 1, with the settings of the shared model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tacit.core import Call, Client, Cohort, Params, Predictor, Reply, check, task
from tacit.local.sgd import SGD, Trains, network
from tacit.methods.fedavg import State, Update


@dataclass(frozen=True)
class Ditto(Trains):
    goals = ("classes",)
    averages = True
    answers = "personal"
    lam: float = 0.1  # how strongly a client's own model is drawn to the shared one

    def __post_init__(self) -> None:
        super().__post_init__()
        check.number("lam", self.lam, at_least=0)

    @property
    def pull(self) -> float:
        return self.lam

    def init(self, x0: Params) -> State:
        return State(x0)

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        for t in range(s.round, self.rounds):
            replies = cohort.ask(self.asks(s), self.participants(cohort, t))
            s = State(x=s.x + cohort.mean((r.dx, r.n) for r in replies), round=t + 1)
            yield s

    def asks(self, s: State) -> Call[Update]:
        return train(x=s.x, lam=self.lam, sgd=self.sgd)

    def predictor(self, me: Client, s: State) -> Predictor:
        return network(me, me.kept.get("own", s.x))


@task
def train(me: Client, x: Params, lam: float, sgd: SGD) -> Reply[Update]:
    (own,) = me.rng.spawn(1)  # its own stream: the batches of the shared model stay FedAvg's
    w, _ = sgd.fit(me, x)
    alone = replace(sgd, clip=0.0, z=0.0, epsilon=0.0)
    v_k: Params = me.kept.get("own", x)
    v_k, _ = alone.fit(replace(me, rng=own), v_k, grad=lambda g, v: g + lam * (v - x))
    return Reply(Update(dx=w - x, n=me.size), keep={"own": v_k})
