"""The server's side: all that a method may know about the world."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, overload

import numpy as np

from tacit.core.client import Call
from tacit.core.data import Examples
from tacit.core.errors import BadInput
from tacit.core.ledger import Ledger, Noise, Release
from tacit.core.names import AskId, ClientId
from tacit.core.params import Params

T = TypeVar("T")
S = TypeVar("S")


class Law(Protocol):
    """How participants are chosen."""

    def pick(
        self, everyone: Sequence[ClientId], rng: np.random.Generator
    ) -> Sequence[ClientId]: ...


@dataclass(frozen=True)
class Everyone:
    """All clients."""

    def pick(self, everyone: Sequence[ClientId], rng: np.random.Generator) -> Sequence[ClientId]:
        return everyone


@dataclass(frozen=True)
class Fixed:
    """Exactly ``k`` clients, without replacement."""

    k: int

    def pick(self, everyone: Sequence[ClientId], rng: np.random.Generator) -> Sequence[ClientId]:
        if not 1 <= self.k <= len(everyone):
            raise BadInput(
                f"per_round = {self.k}: must be between 1 and {len(everyone)}, "
                "the number of clients"
            )
        return [everyone[int(i)] for i in sorted(rng.choice(len(everyone), self.k, replace=False))]


@dataclass(frozen=True)
class Poisson:
    """Each client independently with probability ``q``."""

    q: float

    def pick(self, everyone: Sequence[ClientId], rng: np.random.Generator) -> Sequence[ClientId]:
        return [everyone[int(i)] for i in np.flatnonzero(rng.random(len(everyone)) < self.q)]


def some(per_round: int) -> Law:
    """Return the law for "``per_round`` clients a round", where 0 means everyone."""
    return Fixed(per_round) if per_round else Everyone()


@dataclass(frozen=True)
class Sample:
    """Who was chosen and by which law; they travel together so that accounting cannot disagree."""

    ids: tuple[ClientId, ...]
    round: int
    law: Law

    @classmethod
    def of(cls, ids: Iterable[ClientId], round: int = 0) -> Sample:
        """Return these clients, all of them: no lot has chosen them."""
        return cls(tuple(ids), round, Everyone())


@dataclass(frozen=True)
class Later(Generic[T]):
    """A reply that is too large to be held: it is read whenever it is looked at."""

    read: Callable[[], T]


class Replies(Sequence[T]):
    """What came back, in client order, plus who failed and why."""

    def __init__(
        self,
        id: AskId,
        sample: Sample,
        got: Mapping[ClientId, T | Later[T]],
        failed: Mapping[ClientId, str],
    ) -> None:
        self.id, self.sample, self.failed = id, sample, dict(failed)
        self.clients = tuple(i for i in sample.ids if i in got)
        self._got = [got[i] for i in self.clients]

    def __len__(self) -> int:
        return len(self._got)

    @overload
    def __getitem__(self, i: int) -> T: ...
    @overload
    def __getitem__(self, i: slice) -> Sequence[T]: ...
    def __getitem__(self, i: int | slice) -> T | Sequence[T]:
        if isinstance(i, slice):
            return [_now(reply) for reply in self._got[i]]
        return _now(self._got[i])


def _now(reply: T | Later[T]) -> T:
    return reply.read() if isinstance(reply, Later) else reply


class Cohort(Protocol):
    """The clients, as a method sees them."""

    @property
    def everyone(self) -> tuple[ClientId, ...]:
        """All clients, whether they take part or not."""
        ...

    @property
    def ledger(self) -> Ledger:
        """Every release so far."""
        ...

    @property
    def noise(self) -> Noise:
        """Where server-side mechanisms draw their randomness."""
        ...

    @property
    def delta(self) -> float:
        """The delta of every (epsilon, delta) in this run."""
        ...

    @property
    def public(self) -> Examples | None:
        """Examples that belong to nobody, or None.

        Their labels are only for reports.
        """
        ...

    def afford(self, line: Release) -> None: ...
    def release(self, line: Release) -> None: ...
    def turn(self, name: AskId, content: str) -> int: ...
    def sample(self, law: Law, round: int) -> Sample: ...
    def ask(self, call: Call[T], of: Sample, *, need: float = 0.5) -> Replies[T]: ...
    def mean(self, parts: Iterable[Params | tuple[Params, float]]) -> Params:
        """Return one update of many: their mean, or what the experiment says in its place."""
        ...

    def own(self, call: Call[T], data: Examples, round: int) -> T: ...
    def rng(self, *path: object) -> np.random.Generator: ...
