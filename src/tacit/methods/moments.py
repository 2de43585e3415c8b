"""DP feature moments: one release by each client, instead of thousands of noisy steps.

No paper of its own.

Each client releases, for every class, the noisy count, mean and covariance of public features of
its records (synthesis/moments.py); the server makes a classifier of them. Related: CCVR (Luo et al.
2021) and FedPFT (Beitollahi et al. 2024) share moments of features without noise, DP-MERF (Harder
et al. 2021) one noisy mean of random features.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.core import Client, Cohort, Params, Predictor, PublicInt, Reply, Sample, task
from tacit.data.examples import Examples
from tacit.local.teachers import Size
from tacit.methods.moments_settings import Settings
from tacit.synthesis import classifiers, features
from tacit.synthesis import moments as statistics

ENOUGH = 1000  # records of a class, on average, from which on it has a covariance of its own


@dataclass(frozen=True)
class State:
    x: Params  # the classifier, once there is one
    round: int = 0


@dataclass(frozen=True)
class Moments(Settings):
    def init(self, x0: Params) -> State:
        return State(Params({}))

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        if s.round == 0:
            yield State(self.classifier(cohort, self.participants(cohort, 0)), 1)

    def classifier(self, cohort: Cohort, S: Sample) -> Params:
        """Ask these clients for their moments; return the classifier that they amount to."""
        sizes = cohort.ask(size(), S)
        replies = cohort.ask(moments(how=self, delta=cohort.delta, n=sum(r.n for r in sizes)), S)
        sent = [r.moments for r in replies]
        ordered = bool(replies[0].ordered)
        terms = self.terms(cohort.delta)
        return classifiers.made_of(sent, terms, self.head, ordered, cohort.rng("head"))

    def labels(self, cohort: Cohort, S: Sample, images: Tensor) -> Tensor:
        """Ask these clients for their moments; return what they make public images to be."""
        unlabelled = Examples(images, torch.zeros(len(images), dtype=torch.int64))
        return cohort.own(label(x=self.classifier(cohort, S)), unlabelled, 0).y

    def predictor(self, me: Client, s: State) -> Predictor:
        return classifiers.predictor(me, s.x)


@task
def size(me: Client) -> Reply[Size]:
    return Reply(Size(me.size))


@dataclass(frozen=True)
class Sent:
    moments: Params
    ordered: PublicInt


@task
def moments(me: Client, how: Moments, delta: float, n: int) -> Reply[Sent]:
    F, y = statistics.encoded(me.data, features.encoder_of(me.data))
    few = how.head == "auto" and n < ENOUGH * me.classes
    shared = few or how.head == "lda"
    odd = features.odd_in_mirror(me.data) if how.mirror else None
    found = statistics.release(me, F, y, me.classes, how.terms(delta), shared=shared, odd=odd)
    return Reply(Sent(found, PublicInt(features.in_order(me.data))))


@dataclass(frozen=True)
class Labels:
    y: Tensor


@task(at="server")
def label(me: Client, x: Params) -> Reply[Labels]:
    """Label examples that the server may see."""
    return Reply(Labels(classifiers.classes_of(me, x)))
