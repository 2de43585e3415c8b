"""PATE (Papernot et al. 2017, 2018).

Teachers vote on public images, noise decides close calls, a student learns.

The teachers are the large clients. `vote`: one teacher each; the server counts the votes and adds
noise (LNMax, GNMax), which protects a whole client from everybody but the server. `sub-teachers`:
every large client divides its data among `sub` teachers and adds noise to their counts itself,
which protects an example from the server too. All queries are accounted together, whatever the
votes are. Difference from the papers: the student learns from the labelled images only.
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
    Method,
    Params,
    Protects,
    Release,
    Reply,
    Sample,
    Sizes,
    Times,
    check,
    task,
)
from tacit.data.examples import Examples
from tacit.local import teachers
from tacit.local.sgd import SGD
from tacit.methods.fedavg import train
from tacit.methods.moments import size
from tacit.privacy.rules import NoisyCounts, NoisyWinners, once


def winners(
    by: teachers.Voting, cohort: Cohort, x: Params, large: Sequence[ClientId], images: Tensor
) -> Tensor:
    """Ask the large clients for their votes on images; return the pseudo-labels."""
    S = Sample(tuple(large), 0, Everyone())
    rule = by.rule(cohort.delta, len(images))
    if isinstance(rule, NoisyWinners):
        raw = cohort.ask(vote(x=x, sgd=by.teacher, images=images), S)
        counts = np.sum([r.counts.numpy() for r in raw], axis=0)
        return torch.from_numpy(rule.send(cohort, raw, counts))
    call = sub_vote(
        x=x, sgd=by.teacher, images=images, sub=by.sub, scale=rule.scale, kind=rule.kind
    )
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
class PATE(Method):
    needs_public: ClassVar[bool] = True
    can_follow: ClassVar[bool] = False
    # large clients, which teach; 0: those nearer in size to the largest client than to the smallest
    m: int = 0
    queries: int = 0  # public images that are voted on; 0: all
    vote_noise: Literal["gaussian", "laplace"] = "gaussian"  # noise on the counts of votes
    sub: int = 50  # sub-teachers of each large client
    # training of a teacher
    teacher: SGD = field(default_factory=lambda: SGD(lr=0.1, epochs=20, batch=16))
    rounds: int = 20  # rounds of the student's training
    epsilon: float = 8.0  # what every large client spends on all queries
    # who adds the noise: each large client, or the server
    labels: Literal["sub-teachers", "vote"] = "sub-teachers"
    sgd: SGD = field(default_factory=SGD)  # the student's training in a round

    def __post_init__(self) -> None:
        check.number("m", self.m, at_least=0, whole=True)
        check.number("epsilon", self.epsilon, above=0)
        check.rounds(self.rounds, 0)
        self.sgd.refuse_clip(teachers.SOLVED)
        _ = self.voting  # which checks the others

    @property
    def voting(self) -> teachers.Voting:
        """How public images get their labels."""
        how = (self.labels, self.epsilon, self.queries, self.vote_noise, self.sub)
        return teachers.Voting(*how, self.teacher)

    def init(self, x0: Params) -> State:
        return State(x0)

    @property
    def protects(self) -> Protects:
        return ("client", "clients") if self.labels == "vote" else ("example", "server")

    def groups(self, sizes: Sizes) -> dict[str, list[ClientId]]:
        large = teachers.large_clients(sizes, self.m)
        return {"large": large, "other": [i for i in sizes if i not in large]}

    def grouped(self, s: State) -> dict[str, list[ClientId]]:
        return self.groups(s.sizes)

    def measured(self, s: State) -> dict[str, float]:
        return {"pseudo-labels": s.right}

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        public = teachers.public_images(cohort, self.queries)
        if s.labels is None:
            sizes = teachers.known_sizes(cohort, size())
            labels = winners(self.voting, cohort, s.x, self.groups(sizes)["large"], public.x)
            right = teachers.share_right(labels, public)
            s = replace(s, sizes=sizes, labels=labels, right=right)
            yield s
        assert s.labels is not None
        for t in range(s.round, self.rounds):
            update = cohort.own(train(x=s.x, sgd=self.sgd), Examples(public.x, s.labels), t)
            s = replace(s, x=s.x + update.dx, round=t + 1)
            yield s

    def releases(self, sizes: Sizes, times: Times, delta: float) -> list[Release]:
        return once(self.voting.rule(delta), sizes, self.groups(sizes)["large"])


@task
def vote(me: Client, x: Params, sgd: SGD, images: Tensor) -> Reply[teachers.Votes]:
    return Reply(teachers.Votes(torch.from_numpy(teachers.ballots(me, x, sgd, images))))


@task
def sub_vote(
    me: Client, x: Params, sgd: SGD, images: Tensor, sub: int, scale: float, kind: str
) -> Reply[teachers.NoisyVotes]:
    counts = teachers.sub_ballots(me, x, sgd, images, sub)
    noisy = NoisyCounts("votes of sub-teachers", len(images), scale, kind).send(me, counts)
    return Reply(teachers.NoisyVotes(noisy.map(torch.from_numpy)))
