"""FedAdam (Reddi et al. 2021, Algorithm 2): the server takes a step of Adam along the mean update.

m <- beta_1 m + (1 - beta_1) d, v <- beta_2 v + (1 - beta_2) d^2, x <- x + eta m / (sqrt v + tau), d
the mean of the updates; v begins at tau^2, and nothing corrects the first steps, as printed.
Difference from the paper: clients weigh by their examples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from tacit.core import Cohort, Params, check
from tacit.local.sgd import Trains
from tacit.methods.fedavg import train


@dataclass(frozen=True)
class State:
    x: Params
    m: Params  # the mean of past updates
    v: Params  # and of their squares
    round: int = 0


@dataclass(frozen=True)
class FedAdam(Trains):
    by_size = True
    averages = True
    server_lr: float = 0.03  # eta, the server's step size
    beta_1: float = 0.9  # how slowly the mean of updates follows
    beta_2: float = 0.99  # how slowly that of their squares follows
    tau: float = 1e-3  # adaptivity: the smaller, the more do step sizes differ

    def __post_init__(self) -> None:
        super().__post_init__()
        check.number("server_lr", self.server_lr, above=0)
        check.number("beta_1", self.beta_1, at_least=0, below=1)
        check.number("beta_2", self.beta_2, at_least=0, below=1)
        check.number("tau", self.tau, above=0)

    def init(self, x0: Params) -> State:
        v = Params({k: torch.full_like(w, self.tau**2) for k, w in x0.items()})
        return State(x0, x0.zeros(), v)

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        for t in range(s.round, self.rounds):
            replies = cohort.ask(train(x=s.x, sgd=self.sgd), self.participants(cohort, t))
            d = cohort.mean((r.dx, r.n) for r in replies)
            m = self.beta_1 * s.m + (1 - self.beta_1) * d
            squares = Params({k: g.square() for k, g in d.items()})
            v = self.beta_2 * s.v + (1 - self.beta_2) * squares
            step = Params({k: m[k] / (v[k].sqrt() + self.tau) for k in m})
            s = State(s.x + self.server_lr * step, m, v, t + 1)
            yield s
