"""PATE (Papernot et al. 2017, 2018): teachers vote on public images, noise decides close calls, a student learns.

The teachers are the large clients. `vote`: one teacher each; the server counts the votes and adds noise (LNMax, GNMax),
which protects a whole client from everybody but the server. `sub-teachers`: every large client divides its data among
`sub` teachers and adds noise to their counts itself, which protects an example from the server too. All queries are
accounted together, whatever the votes are (data-independent): L2 sensitivity sqrt 2, L1 sensitivity 2.
Difference from the papers: the student learns from the labelled images only, without a GAN for the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from tacit.core import (
    BadInput,
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
    Unit,
    check_number,
    check_rounds,
    task,
)
from tacit.data.examples import Examples
from tacit.local.sgd import SGD
from tacit.local.teachers import ballots, sub_ballots
from tacit.methods.fedavg import train
from tacit.methods.moments import size
from tacit.privacy.calibrate import laplace_for, noise_for
from tacit.privacy.mechanisms import noisy_counts, noisy_votes, vote_event

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Teaching:
    """How a public set gets pseudo-labels."""

    needs_public: ClassVar[bool] = True
    m: int = 0  # large clients, which teach; 0: those nearer in size to the largest client than to the smallest
    queries: int = 0  # public images that are voted on; 0: all
    vote_noise: Literal["gaussian", "laplace"] = "gaussian"  # on the counts of votes
    sub: int = 50  # sub-teachers of each large client
    teacher: SGD = field(default_factory=lambda: SGD(lr=0.1, epochs=20, batch=16))  # training of a teacher

    def __post_init__(self) -> None:
        check_number("m", self.m, at_least=0, whole=True)
        check_number("queries", self.queries, at_least=0, whole=True)
        check_number("sub", self.sub, at_least=1, whole=True)
        for name, sgd in (("teacher", self.teacher), ("sgd", getattr(self, "sgd", self.teacher))):
            if sgd.clip:
                raise BadInput(f"{name}.clip = {sgd.clip}: must be 0; the noise is solved from the epsilons")

    def large(self, sizes: Mapping[ClientId, int]) -> list[ClientId]:
        """Return the large clients: sizes are public, and nothing else decides."""
        if self.m > len(sizes):
            raise BadInput(f"m = {self.m}: must be at most {len(sizes)}, the number of clients")
        middle = (min(sizes.values()) + max(sizes.values())) / 2
        first = sorted(sizes, key=lambda i: -sizes[i])  # stable: of equal ones, the first
        return sorted(first[: self.m] if self.m else [i for i in sizes if sizes[i] >= middle])

    def scale(self, epsilon: float, queries: int, delta: float) -> float:
        """Return the noise on each count with which all queries cost a voter epsilon."""
        if self.vote_noise == "gaussian":
            return math.sqrt(2) * noise_for(epsilon, queries, delta=delta)
        return 2 * laplace_for(epsilon, queries, delta=delta)

    def asked(self, cohort: Cohort) -> Examples:
        """Return the public images that get a label; their true labels are for the report only."""
        if cohort.public is None:
            raise BadInput("split: there is no public set; a split such as sizes:kd-mnist has one")
        public: Examples = cohort.public
        return public.take(torch.arange(min(self.queries or len(public), len(public))))

    def winners(self, cohort: Cohort, x: Params, large: Sequence[ClientId], how: str, epsilon: float) -> Tensor:
        """Ask the large clients for their votes; return the pseudo-labels."""
        images, S = self.asked(cohort).x, Sample(tuple(large), 0, Everyone())
        scale = self.scale(epsilon, len(images), cohort.delta)
        if how == "vote":
            raw = cohort.ask(vote(x=x, sgd=self.teacher, images=images), S)
            counts = np.sum([r.counts.numpy() for r in raw], axis=0)
            return torch.from_numpy(noisy_votes(cohort, raw, counts, scale=scale, kind=self.vote_noise))
        call = sub_vote(x=x, sgd=self.teacher, images=images, sub=self.sub, scale=scale, kind=self.vote_noise)
        noisy = [r.counts.value.numpy() for r in cohort.ask(call, S)]
        return torch.from_numpy(np.sum(noisy, axis=0).argmax(1))

    def vote_line(self, client: ClientId, how: str, epsilon: float, queries: int, delta: float) -> Release:
        """Return what the ledger will say of a large client's votes."""
        event, when = vote_event(self.scale(epsilon, queries, delta), self.vote_noise), ((0, 0),)
        if how == "vote":
            return Release("votes", "client", client, "clients", event, when, queries, relation="either")
        return Release("votes", "example", client, "server", event, when, queries)


def known_sizes(cohort: Cohort) -> dict[ClientId, int]:
    """Ask everybody how much data there are, which is public."""
    replies = cohort.ask(size(), cohort.sample(Everyone(), 0))
    return {i: r.n for i, r in zip(replies.clients, replies, strict=True)}


@dataclass(frozen=True)
class State:
    x: Params
    sizes: dict[str, int] = field(default_factory=dict)  # of the clients that are known
    labels: Tensor | None = None  # of the public images that were voted on
    right: float = 0.0  # share of labels that are right, for the report
    round: int = 0


@dataclass(frozen=True)
class PATE(Teaching):
    rounds: int = 20  # of the student's training
    epsilon: float = 8.0  # of every large client, for all queries
    labels: Literal["sub-teachers", "vote"] = "sub-teachers"  # who adds the noise: each large client, or the server
    sgd: SGD = field(default_factory=SGD)  # the student's training in a round

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rounds(self.rounds, 0)
        check_number("epsilon", self.epsilon, above=0)

    @property
    def protects(self) -> tuple[Unit, Observer]:
        return ("client", "clients") if self.labels == "vote" else ("example", "server")

    def groups(self, sizes: Mapping[ClientId, int]) -> dict[str, list[ClientId]]:
        large = self.large(sizes)
        return {"large": large, "other": [i for i in sizes if i not in large]}

    def measured(self, s: State) -> dict[str, float]:
        return {"pseudo-labels": s.right}

    def init(self, x0: Params) -> State:
        return State(x0)

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        public = self.asked(cohort)
        if s.labels is None:
            sizes = known_sizes(cohort)
            labels = self.winners(cohort, s.x, self.large(sizes), self.labels, self.epsilon)
            s = replace(s, sizes=sizes, labels=labels, right=float((labels == public.y).double().mean()))
            yield s
        assert s.labels is not None
        for t in range(s.round, self.rounds):
            update = cohort.own(train(x=s.x, sgd=self.sgd), Examples(public.x, s.labels), t)
            s = replace(s, x=s.x + update.dx, round=t + 1)
            yield s

    def releases(self, sizes: Mapping[str, int], times: Mapping[str, int], delta: float) -> list[Release]:
        queries = max(self.queries, 1)  # however many there are, together they cost epsilon
        return [self.vote_line(i, self.labels, self.epsilon, queries, delta) for i in self.large(sizes)]


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
def sub_vote(me: Client, x: Params, sgd: SGD, images: Tensor, sub: int, scale: float, kind: str) -> Reply[NoisyVotes]:
    counts = sub_ballots(me, x, sgd, images, sub)
    noisy = noisy_counts(me, "votes of sub-teachers", counts, scale=scale, kind=kind)
    return Reply(NoisyVotes(noisy.map(torch.from_numpy)))
