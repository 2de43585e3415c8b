"""MR-MTL (Liu et al. 2022, Algorithm 1): each client has its own model, drawn to the mean of all.

Client k trains w_k, which it keeps, on F_k(w_k) + lam/2 ||w_k - w||^2, where w is the mean of the
clients' models of the round before; the server sees w_k - w. lam = 0 is every client alone, a
large lam nearly one model for all. With `sgd.clip` clients train by DP-SGD, which protects an
example from the server: the paper's "silo-specific" privacy, under which it compares best.
Difference from the paper: some clients may sit out a round, and w is then the mean of the others'.
"""

from __future__ import annotations

from dataclasses import dataclass

from tacit.core import Call, Client, Params, Reply, task
from tacit.local.sgd import SGD
from tacit.methods.ditto import Drawn
from tacit.methods.fedavg import State, Update


@dataclass(frozen=True)
class MRMTL(Drawn):
    @property
    def pull(self) -> float:
        return self.lam

    def asks(self, s: State) -> Call[Update]:
        return train(x=s.x, lam=self.lam, sgd=self.sgd)


@task
def train(me: Client, x: Params, lam: float, sgd: SGD) -> Reply[Update]:
    w_k: Params = me.kept.get("own", x)
    w_k, _ = sgd.fit(me, w_k, grad=lambda g, w: g + lam * (w - x))
    return Reply(Update(dx=w_k - x, n=me.size), keep={"own": w_k})
