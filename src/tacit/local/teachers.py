"""Teachers: who they are, and what a client's data say about public images.

By one model, or several on its parts.
"""

from __future__ import annotations

import copy
import hashlib
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from tacit.core import (
    Array,
    BadInput,
    Call,
    Client,
    ClientId,
    Cohort,
    Everyone,
    Params,
    Released,
    check,
)
from tacit.data.examples import Examples
from tacit.local.sgd import SGD, answers
from tacit.privacy.calibrate import vote_noise_for
from tacit.privacy.insides import Memory
from tacit.privacy.rules import NoisyCounts, NoisyWinners

SOLVED = "must be 0; the noise is solved from the epsilons"


VOTES = "votes of sub-teachers"  # in the ledger


@dataclass(frozen=True)
class Voting:
    """How large clients vote on public images, and who adds which noise."""

    how: str  # sub-teachers: each large client adds the noise; vote: the server
    epsilon: float  # what all queries together cost a large client
    queries: int  # public images that are voted on; 0: all
    kind: str  # of the noise: gaussian or laplace
    sub: int  # sub-teachers of each large client
    teacher: SGD  # training of a teacher

    def __post_init__(self) -> None:
        check.number("queries", self.queries, at_least=0, whole=True)
        check.number("sub", self.sub, at_least=1, whole=True)
        self.teacher.refuse_clip(SOLVED, "teacher")

    def rule(self, delta: float, queries: int = 0) -> NoisyCounts | NoisyWinners:
        """Return the rule of the votes.

        Args:
            delta: of the epsilon that they cost
            queries: how many there are; 0: not known yet, and it does not matter, as so many that
                they cost epsilon, or one with less noise, are the same to the accountant
        """
        queries = queries or self.queries or 1
        scale = vote_noise_for(self.epsilon, queries, self.kind, delta=delta)
        if self.how == "vote":
            return NoisyWinners("pate.vote", queries, scale, self.kind)
        return NoisyCounts(VOTES, queries, scale, self.kind)


@dataclass(frozen=True)
class Votes:
    """A teacher's votes, which only the server may see: a row for each image."""

    counts: Tensor


@dataclass(frozen=True)
class NoisyVotes:
    """How many sub-teachers are for each class, with noise: a row for each image."""

    counts: Released[Tensor]


@dataclass(frozen=True)
class Size:
    """How many examples a client has, which is public."""

    n: int


def known_sizes(cohort: Cohort, ask: Call[Size]) -> dict[ClientId, int]:
    """Ask everybody for its size."""
    replies = cohort.ask(ask, cohort.sample(Everyone(), 0))
    return {i: r.n for i, r in zip(replies.clients, replies, strict=True)}


def large_clients(sizes: Mapping[ClientId, int], m: int) -> list[ClientId]:
    """Return the large clients: sizes are public, and nothing else decides.

    Args:
        sizes: of all clients
        m: how many are large; 0: those nearer in size to the largest client than to the smallest
    """
    check.number("m", m, at_least=0, whole=True)
    if m > len(sizes):
        raise BadInput(f"m = {m}: must be at most {len(sizes)}, the number of clients")
    middle = (min(sizes.values()) + max(sizes.values())) / 2
    first = sorted(sizes, key=lambda i: -sizes[i])  # stable: of equal ones, the first
    return sorted(first[:m] if m else [i for i in sizes if sizes[i] >= middle])


def public_images(cohort: Cohort, queries: int) -> Examples:
    """Return the public images that get a label; their true labels are for the report only.

    Args:
        cohort: whose public set it is
        queries: how many of them; 0: all
    """
    if cohort.public is None:
        raise BadInput("split: there is no public set; a split such as sizes:kd-mnist has one")
    public = Examples(cohort.public.x, cohort.public.y)
    return public.take(torch.arange(min(queries or len(public), len(public))))


def share_right(labels: Tensor, public: Examples) -> float:
    """Return the share of pseudo-labels that are right, for the report."""
    return float((labels == public.y).double().mean())


def ballots(me: Client, x: Params, sgd: SGD, images: Tensor) -> Array:
    """Train a teacher from ``x`` and return its votes, a row of zeros and a one for each image."""
    y, _ = sgd.fit(me, x)
    shown = answers(me, y, me.data.showing(images))
    votes: Array = np.eye(me.classes)[shown.argmax(1).numpy()]
    return votes


def parts(me: Client, many: int) -> list[Array]:
    """Divide a client's rows.

    The part that an example goes to depends on nothing but the example itself.

    So no example moves when another one comes or goes, whoever knows the seed.
    """
    x = me.data.examples.x.contiguous().numpy()
    digests = (hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in x)
    part = np.array([int.from_bytes(d, "big") % many for d in digests], dtype=np.int64)
    return [np.flatnonzero(part == k) for k in range(many)]


def sub_ballots(me: Client, x: Params, sgd: SGD, images: Tensor, many: int) -> Array:
    """Return how many of a client's sub-teachers are for each class.

    Each is trained on a part of its data.
    """
    own = me.data.examples
    rngs = me.rng.spawn(many)
    memory = Memory.of(me.model)
    total = np.zeros((len(images), me.classes))
    for rows, rng in zip(parts(me, many), rngs, strict=True):
        part = me.data.holding(own, rows)
        # a network of its own: one could keep something of the batches of another sub-teacher
        alone = replace(me, data=part, rng=rng, model=copy.deepcopy(me.model))
        with own_chance(rng, me.data.device):
            total += ballots(alone, x, sgd, images)
    memory.check(me.model)  # what copies share, such as attributes of a class, is the model's too
    return total


@contextmanager
def own_chance(rng: np.random.Generator, device: str) -> Iterator[None]:
    """Let torch, numpy and Python draw from streams of their own for a while.

    How much one sub-teacher draws depends on its part of the data. From one stream for all, one
    example more would shift the dropout masks of all sub-teachers that come after.
    """
    cuda = [torch.cuda.current_device()] if device == "cuda" else []
    before = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(cuda):
        torch.default_generator.manual_seed(seed := int(rng.integers(2**63)))
        if cuda:
            torch.cuda.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])  # noqa: NPY002
