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
from typing import ClassVar, Literal

import torch
from torch import Tensor

from tacit.core import (
    Client,
    Cohort,
    Everyone,
    Method,
    Params,
    Predictor,
    PublicInt,
    Release,
    Reply,
    Sample,
    Sizes,
    Times,
    check,
    task,
)
from tacit.data.examples import Examples
from tacit.local.sgd import scores as all_scores
from tacit.local.teachers import Size
from tacit.privacy.gdp import gdp_mu
from tacit.privacy.rules import once
from tacit.synthesis.classifiers import made_of, predictor
from tacit.synthesis.features import encoder_of, in_order
from tacit.synthesis.moments import Terms, encoded, release

ENOUGH = 1000  # records of a class, on average, from which on it has a covariance of its own


@dataclass(frozen=True)
class State:
    x: Params  # the classifier, once there is one
    round: int = 0


@dataclass(frozen=True)
class Moments(Method):
    answers = "shared"
    can_follow: ClassVar[bool] = False
    wants_features: ClassVar[bool] = True
    epsilon: float = 1.0  # what the release costs one example
    # auto: qda, with few records lda
    head: Literal["auto", "qda", "lda", "logistic", "mlp"] = "auto"
    share: float = 0.2  # share of the budget for counts and means
    s: float = 0.5  # weight of a record's count beside its features
    R: float = 0.5  # bound on a record's distance from its class mean

    def __post_init__(self) -> None:
        check.number("epsilon", self.epsilon, above=0)
        check.number("share", self.share, above=0, below=1)
        check.clip("s", self.s)
        check.clip("R", self.R)

    @property
    def rounds(self) -> int:
        return 1

    def init(self, x0: Params) -> State:
        return State(Params({}))

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        if s.round == 0:
            yield State(self.classifier(cohort, cohort.sample(Everyone(), 0)), 1)

    def terms(self, delta: float) -> Terms:
        return Terms(gdp_mu(self.epsilon, delta), self.share, self.s, self.R)

    def classifier(self, cohort: Cohort, S: Sample) -> Params:
        """Ask these clients for their moments; return the classifier that they amount to."""
        sizes = cohort.ask(size(), S)
        replies = cohort.ask(moments(how=self, delta=cohort.delta, n=sum(r.n for r in sizes)), S)
        sent = [r.moments for r in replies]
        terms = self.terms(cohort.delta)
        return made_of(sent, terms, self.head, bool(replies[0].ordered), cohort.rng("head"))

    def labels(self, cohort: Cohort, S: Sample, images: Tensor) -> Tensor:
        """Ask these clients for their moments; return what they make public images to be."""
        unlabelled = Examples(images, torch.zeros(len(images), dtype=torch.int64))
        return cohort.own(label(x=self.classifier(cohort, S)), unlabelled, 0).y

    def predictor(self, me: Client, s: State) -> Predictor:
        return predictor(me, s.x)

    def releases(self, sizes: Sizes, times: Times, delta: float) -> list[Release]:
        return once(self.terms(delta), sizes, sizes)


@task
def size(me: Client) -> Reply[Size]:
    return Reply(Size(me.size))


@dataclass(frozen=True)
class Sent:
    moments: Params
    ordered: PublicInt


@task
def moments(me: Client, how: Moments, delta: float, n: int) -> Reply[Sent]:
    F, y = encoded(me.data, encoder_of(me.data))
    few = how.head == "auto" and n < ENOUGH * me.classes
    found = release(me, F, y, me.classes, how.terms(delta), shared=few or how.head == "lda")
    return Reply(Sent(found, PublicInt(in_order(me.data))))


@dataclass(frozen=True)
class Labels:
    y: Tensor


@task(at="server")
def label(me: Client, x: Params) -> Reply[Labels]:
    """Label examples that the server may see."""
    return Reply(Labels(all_scores(predictor(me, x), me.data).argmax(1)))
