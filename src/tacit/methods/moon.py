"""MOON (Li et al. 2021, Algorithm 1): clients' representations are drawn to the shared model's.

Local loss: cross-entropy + mu l_con, with the cosine similarity sim of what the last layer sees,
    l_con = -log( e^(sim(z, z_glob)/tau) / (e^(sim(z, z_glob)/tau) + e^(sim(z, z_prev)/tau)) ),
z of the model in training, z_glob of the shared one, z_prev of the client's own one of its last
round, or of the shared one in its first. mu = 0 is FedAvg.
Difference from the paper: no projection head is put in front of the last layer; the network is the
experiment's.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.core import Client, Cohort, Params, Reply, check, load_params, task
from tacit.local.prototypes import features_of
from tacit.local.sgd import NOT_A_SUM, SGD, Trains
from tacit.methods.fedavg import State, Update


@dataclass(frozen=True)
class Moon(Trains):
    goals = ("classes",)
    averages = True
    without_clip = "updates are sent without noise, and moon has no mode with any"
    mu: float = 1.0  # weight of the contrastive term; 0 is FedAvg
    tau: float = 0.5  # temperature of the contrastive term

    def __post_init__(self) -> None:
        self.sgd.refuse_clip(NOT_A_SUM)
        super().__post_init__()
        check.number("mu", self.mu, at_least=0)
        check.number("tau", self.tau, above=0)

    def init(self, x0: Params) -> State:
        return State(x0)

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        for t in range(s.round, self.rounds):
            call = train(x=s.x, mu=self.mu, tau=self.tau, sgd=self.sgd)
            replies = cohort.ask(call, self.participants(cohort, t))
            s = State(x=s.x + cohort.mean((r.dx, r.n) for r in replies), round=t + 1)
            yield s


def contrast(z: Tensor, z_glob: Tensor, z_prev: Tensor, tau: float) -> Tensor:
    """Return l_con, the mean over a batch."""
    near = F.cosine_similarity(z, z_glob) / tau
    far = F.cosine_similarity(z, z_prev) / tau
    return F.softplus(far - near).mean()


@task
def train(me: Client, x: Params, mu: float, tau: float, sgd: SGD) -> Reply[Update]:
    shared, before = (as_network(me.model, w) for w in (x, me.kept.get("y", x)))

    def loss(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
        own = F.cross_entropy(model(inputs), labels)
        with torch.no_grad():
            z_glob, z_prev = features_of(shared, inputs), features_of(before, inputs)
        return own + mu * contrast(features_of(model, inputs), z_glob, z_prev, tau)

    y, _ = sgd.fit(me, x, loss=loss if mu else None)
    return Reply(Update(dx=y - x, n=me.size), keep={"y": y})


def as_network(model: nn.Module, x: Params) -> nn.Module:
    """Return a copy of a network with these parameters."""
    made = copy.deepcopy(model).eval()
    load_params(made, x)
    return made
