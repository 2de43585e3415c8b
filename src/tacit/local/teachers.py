"""Teachers: who they are, and what a client's data say about public images.

By one model, or several on its parts.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from tacit.core import BadInput, Client, ClientId, Cohort, Method, Params, Release, check_number
from tacit.data.examples import Examples
from tacit.local.sgd import SGD, network, scores
from tacit.privacy.calibrate import vote_noise_for
from tacit.privacy.mechanisms import vote_line

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Teaching(Method):
    """How a public set gets pseudo-labels."""

    needs_public: ClassVar[bool] = True
    # large clients, which teach; 0: those nearer in size to the largest client than to the smallest
    m: int = 0
    queries: int = 0  # public images that are voted on; 0: all
    vote_noise: Literal["gaussian", "laplace"] = "gaussian"  # noise on the counts of votes
    sub: int = 50  # sub-teachers of each large client
    # training of a teacher
    teacher: SGD = field(default_factory=lambda: SGD(lr=0.1, epochs=20, batch=16))

    def __post_init__(self) -> None:
        check_number("m", self.m, at_least=0, whole=True)
        check_number("queries", self.queries, at_least=0, whole=True)
        check_number("sub", self.sub, at_least=1, whole=True)
        for name, sgd in (("teacher", self.teacher), ("sgd", getattr(self, "sgd", self.teacher))):
            sgd.refuse_clip("must be 0; the noise is solved from the epsilons", name)

    def large(self, sizes: Mapping[ClientId, int]) -> list[ClientId]:
        """Return the large clients: sizes are public, and nothing else decides."""
        if self.m > len(sizes):
            raise BadInput(f"m = {self.m}: must be at most {len(sizes)}, the number of clients")
        middle = (min(sizes.values()) + max(sizes.values())) / 2
        first = sorted(sizes, key=lambda i: -sizes[i])  # stable: of equal ones, the first
        return sorted(first[: self.m] if self.m else [i for i in sizes if sizes[i] >= middle])

    def asked(self, cohort: Cohort) -> Examples:
        """Return the public images that get a label; their true labels are for the report only."""
        if cohort.public is None:
            raise BadInput("split: there is no public set; a split such as sizes:kd-mnist has one")
        public = Examples(cohort.public.x, cohort.public.y)
        return public.take(torch.arange(min(self.queries or len(public), len(public))))

    def vote_lines(
        self, large: Sequence[ClientId], how: str, epsilon: float, delta: float
    ) -> list[Release]:
        """Return what the ledger will say of the large clients' votes."""
        # however many there are, together they cost epsilon
        queries, kind = max(self.queries, 1), self.vote_noise
        scale = vote_noise_for(epsilon, queries, kind, delta=delta)
        return [vote_line(i, how, queries, scale=scale, kind=kind) for i in large]


def ballots(me: Client, x: Params, sgd: SGD, images: Tensor) -> Array:
    """Train a teacher from ``x`` and return its votes, a row of zeros and a one for each image."""
    y, _ = sgd.fit(me, x)
    shown = scores(network(me, y), me.data.showing(images))
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
    """Return how many of a client's sub-teachers, each trained on a part of its data, are for each class."""
    own, rngs = me.data.examples, me.rng.spawn(many)
    total = np.zeros((len(images), me.classes))
    for rows, rng in zip(parts(me, many), rngs, strict=True):
        part = me.data.holding(own, rows)
        # a network of its own: one could keep something of the batches of another sub-teacher
        alone = replace(me, data=part, rng=rng, model=copy.deepcopy(me.model))
        with own_chance(rng, me.data.device):
            total += ballots(alone, x, sgd, images)
    return total


@contextmanager
def own_chance(rng: np.random.Generator, device: str) -> Iterator[None]:
    """Let torch draw from a stream of its own for a while.

    How much one sub-teacher draws depends on its part of the data. From one stream for all, one
    example more would shift the dropout masks of all sub-teachers that come after.
    """
    cuda = [torch.cuda.current_device()] if device == "cuda" else []
    with torch.random.fork_rng(cuda):
        torch.default_generator.manual_seed(seed := int(rng.integers(2**63)))
        if cuda:
            torch.cuda.manual_seed(seed)
        yield
