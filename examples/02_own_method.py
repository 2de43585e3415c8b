"""FedAdam (Reddi et al. 2021, Algorithm 2): a method of one's own, in one file.

    tacit run 02_own_method.py:FedAdam --split label:2 --server-lr 0.03
    tacit compare fedavg 02_own_method.py:FedAdam --split label:2
    python 02_own_method.py

Clients train as in FedAvg; the server takes their mean update for a gradient and makes a step of
Adam along it. With `--sgd.clip 1 --sgd.z 1` clients train by DP-SGD, and the epsilon is finite.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tacit import SGD, Client, Cohort, Params, Reply, Trains, mean, run, task


@dataclass(frozen=True)
class State:
    x: Params
    m: Params  # the mean of past updates
    v: Params  # and of their squares
    round: int = 0


@dataclass(frozen=True)
class FedAdam(Trains[State]):
    server_lr: float = 0.03  # eta, the server's step size
    beta_1: float = 0.9  # how slowly m follows
    beta_2: float = 0.99  # how slowly v follows
    tau: float = 1e-3  # keeps the step finite

    def init(self, x0: Params) -> State:
        return State(x0, x0.zeros(), x0.zeros())

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        for t in range(s.round, self.rounds):
            replies = cohort.ask(train(x=s.x, sgd=self.sgd), self.participants(cohort, t))
            d = mean((r.dx, r.n) for r in replies)
            m = self.beta_1 * s.m + (1 - self.beta_1) * d
            v = self.beta_2 * s.v + (1 - self.beta_2) * Params(
                {k: g.square() for k, g in d.items()}
            )
            step = Params({k: m[k] / (v[k].sqrt() + self.tau) for k in m})
            s = State(s.x + self.server_lr * step, m, v, t + 1)
            yield s


@dataclass(frozen=True)
class Update:
    dx: Params
    n: int


@task
def train(me: Client, x: Params, sgd: SGD) -> Reply[Update]:
    y, _ = sgd.fit(me, x)
    return Reply(Update(dx=y - x, n=me.size))


if __name__ == "__main__":
    done = run(FedAdam(rounds=10), split="label:2")
    print(f"accuracy {100 * done.accuracy:.1f}%, eps {done.epsilon['example/server']}")
