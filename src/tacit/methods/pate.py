"""PATE (Papernot et al. 2017, 2018).

Teachers vote on public images, noise decides close calls, a student learns.

The teachers are the large clients. `vote`: one teacher each; the server counts the votes and adds
noise (LNMax, GNMax), which protects a whole client from everybody but the server. `sub-teachers`:
every large client divides its data among `sub` teachers and adds noise to their counts itself,
which protects an example from the server too. All queries are accounted together, whatever the
votes are. Difference from the papers: the student learns from the labelled images only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from tacit.core import Client, ClientId, Cohort, Params, Reply, Sample, task
from tacit.data.examples import Examples
from tacit.local import teachers
from tacit.local.sgd import SGD
from tacit.methods.fedavg import train
from tacit.methods.moments import size
from tacit.methods.pate_settings import Settings
from tacit.privacy import rules


def winners(
    by: teachers.Voting, cohort: Cohort, x: Params, large: Sample, images: Tensor
) -> Tensor:
    """Ask the large clients for their votes on images; return the pseudo-labels."""
    rule = by.rule(cohort.delta, len(images))
    if isinstance(rule, rules.NoisyWinners):
        raw = cohort.ask(vote(x=x, sgd=by.teacher, images=images), large)
        counts = np.sum([r.counts.numpy() for r in raw], axis=0)
        return torch.from_numpy(rule.send(cohort, raw, counts))
    call = sub_vote(
        x=x, sgd=by.teacher, images=images, sub=by.sub, scale=rule.scale, kind=rule.kind
    )
    noisy = [r.counts.value.numpy() for r in cohort.ask(call, large)]
    return torch.from_numpy(np.sum(noisy, axis=0).argmax(1))


@dataclass(frozen=True)
class State:
    x: Params
    sizes: dict[str, int] = field(default_factory=dict)  # of the clients that are known
    labels: Tensor | None = None  # of the public images that were voted on
    right: float = 0.0  # share of labels that are right, for the report
    round: int = 0


@dataclass(frozen=True)
class PATE(Settings):
    def init(self, x0: Params) -> State:
        return State(x0)

    def grouped(self, s: State) -> dict[str, list[ClientId]]:
        return self.groups(s.sizes)

    def measured(self, s: State) -> dict[str, float]:
        return {"pseudo-labels": s.right}

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        public = teachers.public_images(cohort, self.queries)
        if s.labels is None:
            sizes = teachers.known_sizes(cohort, size())
            large = Sample.of(self.groups(sizes)["large"])
            labels = winners(self.voting, cohort, s.x, large, public.x)
            right = teachers.share_right(labels, public)
            s = replace(s, sizes=sizes, labels=labels, right=right)
            yield s
        assert s.labels is not None
        for t in range(s.round, self.rounds):
            update = cohort.own(train(x=s.x, sgd=self.sgd), Examples(public.x, s.labels), t)
            s = replace(s, x=s.x + update.dx, round=t + 1)
            yield s


@task
def vote(me: Client, x: Params, sgd: SGD, images: Tensor) -> Reply[teachers.Votes]:
    return Reply(teachers.Votes(torch.from_numpy(teachers.ballots(me, x, sgd, images))))


@task
def sub_vote(
    me: Client, x: Params, sgd: SGD, images: Tensor, sub: int, scale: float, kind: str
) -> Reply[teachers.NoisyVotes]:
    counts = teachers.sub_ballots(me, x, sgd, images, sub)
    noisy = rules.NoisyCounts(teachers.VOTES, len(images), scale, kind).send(me, counts)
    return Reply(teachers.NoisyVotes(noisy.map(torch.from_numpy)))
