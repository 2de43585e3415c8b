"""PATE (Papernot et al. 2017, 2018).

Teachers vote on public images, noise decides close calls, a student learns.

The teachers are the large clients. `vote`: one teacher each; the server counts the votes and adds
noise (LNMax, GNMax), which protects a whole client from everybody but the server. `sub-teachers`:
every large client divides its data among `sub` teachers and adds noise to their counts itself,
which protects an example from the server too. All queries are accounted together, whatever the
votes are (data-independent): L2 sensitivity sqrt 2, L1 sensitivity 2. Difference from the papers:
the student learns from the labelled images only, without a GAN for the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from tacit.core import (
    Client,
    ClientId,
    Cohort,
    Everyone,
    Observer,
    Params,
    Release,
    Released,
    Reply,
    Sample,
    Sizes,
    Times,
    Unit,
    check_number,
    check_rounds,
    task,
)
from tacit.data.examples import Examples
from tacit.local.sgd import SGD
from tacit.local.teachers import Teaching, ballots, sub_ballots
from tacit.methods.fedavg import train
from tacit.methods.moments import size
from tacit.privacy.calibrate import vote_noise_for
from tacit.privacy.mechanisms import noisy_counts, noisy_votes


def known_sizes(cohort: Cohort) -> dict[ClientId, int]:
    """Ask everybody how much data there are, which is public."""
    replies = cohort.ask(size(), cohort.sample(Everyone(), 0))
    return {i: r.n for i, r in zip(replies.clients, replies, strict=True)}


def winners(
    by: Teaching, cohort: Cohort, x: Params, large: Sequence[ClientId], how: str, epsilon: float
) -> Tensor:
    """Ask the large clients for their votes; return the pseudo-labels."""
    images, S = by.asked(cohort).x, Sample(tuple(large), 0, Everyone())
    scale = vote_noise_for(epsilon, len(images), by.vote_noise, delta=cohort.delta)
    if how == "vote":
        raw = cohort.ask(vote(x=x, sgd=by.teacher, images=images), S)
        counts = np.sum([r.counts.numpy() for r in raw], axis=0)
        return torch.from_numpy(noisy_votes(cohort, raw, counts, scale=scale, kind=by.vote_noise))
    call = sub_vote(x=x, sgd=by.teacher, images=images, sub=by.sub, scale=scale, kind=by.vote_noise)
    noisy = [r.counts.value.numpy() for r in cohort.ask(call, S)]
    return torch.from_numpy(np.sum(noisy, axis=0).argmax(1))


@dataclass(frozen=True)
class State:
    x: Params
    sizes: dict[str, int] = field(default_factory=dict)  # of the clients that are known
    labels: Tensor | None = None  # of the public images that were voted on
    right: float = 0.0  # share of labels that are right, for the report
    round: int = 0


@dataclass(frozen=True)
class PATE(Teaching):
    can_follow: ClassVar[bool] = False
    rounds: int = 20  # rounds of the student's training
    epsilon: float = 8.0  # what every large client spends on all queries
    # who adds the noise: each large client, or the server
    labels: Literal["sub-teachers", "vote"] = "sub-teachers"
    sgd: SGD = field(default_factory=SGD)  # the student's training in a round

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rounds(self.rounds, 0)
        check_number("epsilon", self.epsilon, above=0)

    @property
    def protects(self) -> tuple[Unit, Observer]:
        return ("client", "clients") if self.labels == "vote" else ("example", "server")

    def groups(self, sizes: Sizes) -> dict[str, list[ClientId]]:
        large = self.large(sizes)
        return {"large": large, "other": [i for i in sizes if i not in large]}

    def grouped(self, s: State) -> dict[str, list[ClientId]]:
        return self.groups(s.sizes)

    def measured(self, s: State) -> dict[str, float]:
        return {"pseudo-labels": s.right}

    def init(self, x0: Params) -> State:
        return State(x0)

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        public = self.asked(cohort)
        if s.labels is None:
            sizes = known_sizes(cohort)
            labels = winners(self, cohort, s.x, self.large(sizes), self.labels, self.epsilon)
            s = replace(
                s, sizes=sizes, labels=labels, right=float((labels == public.y).double().mean())
            )
            yield s
        assert s.labels is not None
        for t in range(s.round, self.rounds):
            update = cohort.own(train(x=s.x, sgd=self.sgd), Examples(public.x, s.labels), t)
            s = replace(s, x=s.x + update.dx, round=t + 1)
            yield s

    def releases(self, sizes: Sizes, times: Times, delta: float) -> list[Release]:
        return self.vote_lines(self.large(sizes), self.labels, self.epsilon, delta)


@dataclass(frozen=True)
class Votes:
    counts: Tensor


@task
def vote(me: Client, x: Params, sgd: SGD, images: Tensor) -> Reply[Votes]:
    return Reply(Votes(torch.from_numpy(ballots(me, x, sgd, images))))


@dataclass(frozen=True)
class NoisyVotes:
    counts: Released[Tensor]


@task
def sub_vote(
    me: Client, x: Params, sgd: SGD, images: Tensor, sub: int, scale: float, kind: str
) -> Reply[NoisyVotes]:
    counts = sub_ballots(me, x, sgd, images, sub)
    noisy = noisy_counts(me, "votes of sub-teachers", counts, scale=scale, kind=kind)
    return Reply(NoisyVotes(noisy.map(torch.from_numpy)))
