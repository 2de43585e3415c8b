"""FedAvgM (Hsu et al. 2019, section 4.3): FedAvg with momentum at the server.

v <- beta v + mean update, x <- x + server_lr v. beta = 0 and server_lr = 1 are FedAvg.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tacit.core import Cohort, Params, check
from tacit.local.sgd import Trains
from tacit.methods.fedavg import Moving, train


@dataclass(frozen=True)
class FedAvgM(Trains):
    by_size = True
    averages = True
    beta: float = 0.9  # the server's momentum: share of its last step that is taken again
    server_lr: float = 1.0  # the server's step size

    def __post_init__(self) -> None:
        super().__post_init__()
        check.number("beta", self.beta, at_least=0, below=1)
        check.number("server_lr", self.server_lr, above=0)

    def init(self, x0: Params) -> Moving:
        return Moving(x0, v=x0.zeros())

    def run(self, cohort: Cohort, s: Moving) -> Iterator[Moving]:
        for t in range(s.round, self.rounds):
            replies = cohort.ask(train(x=s.x, sgd=self.sgd), self.participants(cohort, t))
            s = s.after(self.server_lr * cohort.mean((r.dx, r.n) for r in replies), self.beta)
            yield s
