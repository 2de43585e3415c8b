"""UDP: communication rounds discounting (CRD; Wei et al. 2022), as in the authors' code.

When the clients' mean training loss has not fallen, the T rounds become ceil(beta T). What no round
has spent yet of eps is divided among the rounds that are left: with
1/sigma^2 = eps^2 / (Delta^2 2 q ln(1/delta)) for a run of one round and Delta = 2 eta C/|D|, round
t has sigma_t^2 = (T - t) / (1/sigma^2 - sum_{s<t} 1/sigma_s^2). Once T rounds are over, nobody is
asked any more. The losses leave clients as they are, and the ledger says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from tacit.core import Client, Cohort, Params, Reply, load_params, task
from tacit.local.sgd import mean_loss
from tacit.methods.fedavg import State
from tacit.methods.udp_settings import LOSS, Settings


@dataclass(frozen=True)
class Discounting(State):
    """The model, and what is left of the rounds and of the budget."""

    T: int = 0  # rounds in all, by now
    left: float = 1.0  # share of eps^2 that no round has spent
    loss: float | None = None  # the clients' mean one in the round before

    @property
    def share(self) -> float:
        """What the next round spends of eps^2."""
        return self.left / (self.T - self.round)

    def then(self, x: Params, loss: float, beta: float) -> Discounting:
        """Return what follows a round with such a loss."""
        falls = self.loss is None or loss < self.loss
        T = self.T if falls else math.ceil(beta * self.T)
        return Discounting(x, self.round + 1, T, max(0.0, self.left - self.share), loss)


def discounted(method: Settings, cohort: Cohort, s: Discounting) -> Iterator[Discounting]:
    """Yield the states of all rounds; in those that were discounted nothing happens."""
    N = len(cohort.everyone)
    q = (method.per_round or N) / N
    for t in range(s.round, method.rounds):
        if t >= s.T:
            s = replace(s, round=t + 1)
        else:
            call = train(x=s.x, method=method, share=s.share, q=q, delta=cohort.delta)
            replies = cohort.ask(call, method.participants(cohort, t))
            loss = sum(float(r.loss["loss"]) for r in replies) / len(replies)
            s = s.then(s.x + cohort.mean(r.dx for r in replies), loss, method.discount)
        yield s


@dataclass(frozen=True)
class Told:
    dx: Params
    loss: Params


@task
def train(
    me: Client, x: Params, method: Settings, share: float, q: float, delta: float
) -> Reply[Told]:
    loss = LOSS.send(me, Params(loss=torch.tensor(own_loss(me, x), dtype=torch.float64)))
    y, _ = method.sgd.fit(me, x, bound=method.clip)
    dx = method.published(me.size, q, delta, share).send(me, y - x)
    return Reply(Told(dx, loss))


def own_loss(me: Client, x: Params, at_once: int = 256) -> float:
    """Return the mean loss of the shared model on a client's training data."""
    load_params(me.model.eval(), x)
    total, n = 0.0, len(me.data)
    with torch.no_grad():
        for start in range(0, n, at_once):
            inputs, labels = me.data.batch(slice(start, start + at_once))
            total += float(mean_loss(me.goal)(me.model, inputs, labels)) * len(labels)
    return total / max(n, 1)  # who has no data has no loss
