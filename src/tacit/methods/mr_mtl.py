"""MR-MTL (Liu et al. 2022, Algorithm 1): each client has its own model, drawn to the mean of all.

Client k trains w_k, which it keeps, on F_k(w_k) + lam/2 ||w_k - w||^2, where w is the mean of the
clients' models of the round before; the server sees w_k - w. lam = 0 is every client alone, a
large lam nearly one model for all. With `sgd.clip` clients train by DP-SGD, which protects an
example from the server: the paper's "silo-specific" privacy, under which it compares best.
Difference from the paper: some clients may sit out a round, and w is then the mean of the others'.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tacit.core import Client, Cohort, Params, Predictor, Reply, check, task
from tacit.local.sgd import SGD, Trains, network
from tacit.methods.fedavg import State, Update


@dataclass(frozen=True)
class MRMTL(Trains):
    goals = ("classes",)
    averages = True
    answers = "personal"
    lam: float = 0.1  # how strongly models are drawn to their mean; 0: every client alone

    def __post_init__(self) -> None:
        super().__post_init__()
        check.number("lam", self.lam, at_least=0)

    def init(self, x0: Params) -> State:
        return State(x0)

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        for t in range(s.round, self.rounds):
            call = train(x=s.x, lam=self.lam, sgd=self.sgd)
            replies = cohort.ask(call, self.participants(cohort, t))
            s = State(x=s.x + cohort.mean((r.dx, r.n) for r in replies), round=t + 1)
            yield s

    def predictor(self, me: Client, s: State) -> Predictor:
        return network(me, me.kept.get("w", s.x))


@task
def train(me: Client, x: Params, lam: float, sgd: SGD) -> Reply[Update]:
    w_k: Params = me.kept.get("w", x)
    w_k, _ = sgd.fit(me, w_k, grad=lambda g, w: g + lam * (w - x))
    return Reply(Update(dx=w_k - x, n=me.size), keep={"w": w_k})
