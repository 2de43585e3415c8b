"""FedMix (Yoon et al. 2021, Algorithm 2): mixup with other clients' mean batches, to first order.

Once, every client shares the means (x_bar, y_bar) of groups of M of its examples. Local loss
(Proposition 1), with the derivative of l(f(x), y) taken at (1 - lam) x:
    (1 - lam) l(f((1 - lam) x), y) + lam l(f((1 - lam) x), y_bar) + lam <dl/dx, x_bar>
Differences from the paper: a client may draw its own means too, as the server does not say whose
they are. Code that differentiates the scaled first term instead has lam (1 - lam) before the last
one; the two agree to first order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.core import (
    Client,
    ClientId,
    Cohort,
    Everyone,
    Method,
    Params,
    Reply,
    Unnoised,
    check,
    task,
)
from tacit.local.sgd import NOT_A_SUM, SGD
from tacit.methods.fedavg import Update


@dataclass(frozen=True)
class Means:
    x_bar: Tensor  # (k, ...) mean inputs
    y_bar: Tensor  # (k, classes) mean one-hot labels


@dataclass(frozen=True)
class State:
    x: Params
    means: Means | None = None  # None until every client has shared its means
    round: int = 0


@dataclass(frozen=True)
class FedMix(Method[State]):
    averages = True
    rounds: int = 20  # communication rounds
    per_round: int = 0  # clients sampled in each round; 0: everyone
    lam: float = 0.1  # share of the other clients' means in each example; 0 is FedAvg
    M: int = 32  # examples behind each shared mean
    sgd: SGD = field(default_factory=SGD)  # local training

    def __post_init__(self) -> None:
        check.rounds(self.rounds, self.per_round)
        check.number("lam", self.lam, at_least=0, below=1)
        check.number("M", self.M, at_least=1, whole=True)
        self.sgd.refuse_clip(NOT_A_SUM)

    def init(self, x0: Params) -> State:
        return State(x0)

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        if s.means is None:
            shared = cohort.ask(share_means(M=self.M), cohort.sample(Everyone(), 0))
            means = Means(
                torch.cat([r.x_bar for r in shared]), torch.cat([r.y_bar for r in shared])
            )
            s = replace(s, means=means)
        assert s.means is not None
        for t in range(s.round, self.rounds):
            call = train(x=s.x, means=s.means, lam=self.lam, sgd=self.sgd)
            replies = cohort.ask(call, self.participants(cohort, t))
            s = replace(s, x=s.x + cohort.mean((r.dx, r.n) for r in replies), round=t + 1)
            yield s

    def first_rule(self, client: ClientId, n: int, delta: float) -> Unnoised:
        return Unnoised.of(self)  # everybody shares its means


@task
def share_means(me: Client, M: int) -> Reply[Means]:
    order = me.rng.permutation(len(me.data))
    groups = [me.data.batch(order[i : i + M]) for i in range(0, len(order), M)]
    classes = me.model(groups[0][0][:1]).shape[1]
    return Reply(
        Means(
            x_bar=torch.stack([x.mean(0) for x, _ in groups]),
            y_bar=torch.stack([F.one_hot(y, classes).float().mean(0) for _, y in groups]),
        )
    )


@task
def train(me: Client, x: Params, means: Means, lam: float, sgd: SGD) -> Reply[Update]:
    (draw,) = me.rng.spawn(1)  # its own stream: the batches stay those of FedAvg

    def loss(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
        j = int(draw.integers(len(means.x_bar)))
        x_bar = means.x_bar[j].to(inputs.device)
        y_bar = means.y_bar[j].to(inputs.device)
        mixed = ((1 - lam) * inputs).requires_grad_()
        scores = model(mixed)
        own = F.cross_entropy(scores, labels)
        other = F.cross_entropy(scores, y_bar.expand(len(labels), -1))
        (dx,) = torch.autograd.grad(own, mixed, create_graph=True)
        return (1 - lam) * own + lam * other + lam * (dx * x_bar).sum()

    y, _ = sgd.fit(me, x, loss=loss)
    return Reply(Update(dx=y - x, n=me.size))
