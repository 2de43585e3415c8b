"""GFL (Cheng et al. 2023), generative federated learning.

A server that also trains, on private synthetic data.

Offline, client k chooses a random label distribution P_k, fits a generator under differential
privacy and uploads exactly n_k P_k[i] samples of every label i (CutData). Online, the server
averages the clients' models, brings the pool's labels up to date, takes as many samples of each
class as the rarest has (IIDify), and trains the average on them for E_s exp(-tau (t - 1)) epochs.
`mode = paper`: clients train openly and send fresh labels y_k = w_k(S_k) for their samples, and the
rarest class is one of *all*, as printed: where one is missing, the server does not train.
`certified`: labels are the generator's condition; clients train by DP-SGD or, by default, not at
all; samples of which the *global* model is sure that they are something else are left out. What the
server does costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from tacit.core import Client, Cohort, Params, Reply, task
from tacit.data.examples import Examples, union
from tacit.local.sgd import SGD, answers
from tacit.methods.fedavg import train
from tacit.methods.gfl_settings import Settings
from tacit.synthesis import labels
from tacit.synthesis.pool import Share, next_shares

SURE = 0.9  # probability above which the global model may throw a sample out


@dataclass(frozen=True)
class State:
    x: Params
    pool: dict[str, Examples] = field(default_factory=dict)  # S_k by client
    asked: int = 0  # clients asked for samples so far
    round: int = 0


@dataclass(frozen=True)
class GFL(Settings):
    averages = True

    def init(self, x0: Params) -> State:
        return State(x0)

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        while s.asked < len(cohort.everyone):
            got, asked = next_shares(cohort, offline(how=self, delta=cohort.delta), s.asked)
            s = replace(s, pool=s.pool | got, asked=asked)
            yield s
        for t in range(s.round, self.rounds):
            x, fresh = self.clients_update(cohort, s, t)
            pool = {k: Examples(S.x, fresh.get(k, S.y)) for k, S in s.pool.items()}
            x = self.server_update(cohort, x, union(list(pool.values())), t)
            s = replace(s, x=x, pool=pool, round=t + 1)
            yield s

    def synthetic(self, s: State) -> list[Examples]:
        return list(s.pool.values())

    def clients_update(
        self, cohort: Cohort, s: State, t: int
    ) -> tuple[Params, Mapping[str, Tensor]]:
        """Return the average of the sampled clients' models and, in paper mode, their labels."""
        if self.work == "none":
            return s.x, {}
        S = self.participants(cohort, t)
        if self.mode == "certified":
            replies = cohort.ask(train(x=s.x, sgd=self.sgd), S)
            return s.x + cohort.mean((r.dx, r.n) for r in replies), {}
        labelled = cohort.ask(train_and_label(x=s.x, sgd=self.sgd), S)
        fresh = {k: r.y for k, r in zip(labelled.clients, labelled, strict=True) if k in s.pool}
        return s.x + cohort.mean((r.dx, r.n) for r in labelled), fresh

    def server_update(self, cohort: Cohort, x: Params, pool: Examples, t: int) -> Params:
        E = self.epochs_in(t)
        if self.mode == "certified" and t:
            pool = pool.take(cohort.own(believable(x=x), pool, t).rows)
        classes = cohort.own(known(), pool, t).classes if self.mode == "paper" else 0
        balanced = pool.take(labels.iidify(pool.y, cohort.rng("iidify", t), classes))
        open_sgd = replace(self.sgd, clip=0.0, z=0.0, epsilon=0.0)
        if E == 0 or not len(balanced):
            return x
        return cohort.own(train_for(x=x, sgd=open_sgd, E=E), balanced, t).x


@task
def offline(me: Client, how: GFL, delta: float) -> Reply[Share]:
    fitted = how.fit(me, delta)
    held = labels.alike(me.classes)
    if fitted.counts is not None and how.mode == "certified":
        held = fitted.counts.map(lambda counts: (counts > 0).astype(float))
    y = held.map(lambda classes: labels.random_labels(classes, how.n_k, me.rng))
    S = Share(fitted.draw(y, me.rng), y)
    return Reply(S, keep={"S": S.x.value} if how.mode == "paper" else None)


@dataclass(frozen=True)
class Labelled:
    dx: Params
    n: int
    y: Tensor


@task
def train_and_label(me: Client, x: Params, sgd: SGD) -> Reply[Labelled]:
    w, _ = sgd.fit(me, x)
    if "S" not in me.kept:  # its samples never reached the server
        return Reply(Labelled(w - x, me.size, torch.zeros(0, dtype=torch.int64)))
    S = me.data.showing(me.kept["S"])
    return Reply(Labelled(w - x, me.size, answers(me, w, S).argmax(1)))


@dataclass(frozen=True)
class Trained:
    x: Params


@dataclass(frozen=True)
class Rows:
    rows: Tensor


@dataclass(frozen=True)
class Known:
    classes: int


@task(at="server")
def known(me: Client) -> Reply[Known]:
    return Reply(Known(me.classes))


@task(at="server")
def train_for(me: Client, x: Params, sgd: SGD, E: float) -> Reply[Trained]:
    return Reply(Trained(sgd.fit_for(me, x, E)))


@task(at="server")
def believable(me: Client, x: Params) -> Reply[Rows]:
    """Return the samples of which the model is not sure that they are something else."""
    p = answers(me, x, me.data).softmax(1)
    top = p.max(1)
    doubtful = (top.indices != me.data.examples.y) & (top.values >= SURE)
    return Reply(Rows(torch.nonzero(~doubtful).flatten()))
