"""What was released, about whom, and who saw it. Silence is not privacy.

An empty ledger means infinity.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any, Generic, Literal, TypeVar

T = TypeVar("T")
S = TypeVar("S")

# what two neighbouring data sets differ in: one record, or all of one client
Unit = Literal["example", "client"]
# who looks: the server, the other clients, whoever gets the model
Observer = Literal["server", "clients", "public"]
Relation = Literal["zero-out", "replace"]  # how neighbours differ in that unit
# what a sensitivity holds for; either: for both, as it is
Stated = Literal["zero-out", "replace", "either"]
# where randomness came from; "seeded" is a simulation, "none" was not needed
Noise = Literal["os", "seeded", "none"]

# the owner of what a server-side mechanism releases: everybody pays for it
FEDERATION = "federation"


@dataclass(frozen=True)
class Gaussian:
    """Gaussian noise with a standard deviation of ``z`` times the Euclidean sensitivity."""

    z: float


@dataclass(frozen=True)
class Laplace:
    """Continuous Laplace noise with a scale of ``b`` times the L1 sensitivity."""

    b: float


@dataclass(frozen=True)
class Pure:
    """Any mechanism with pure differential privacy, such as the exponential one."""

    epsilon: float


@dataclass(frozen=True)
class NonPrivate:
    """Something left without a guarantee: epsilon is infinite."""

    why: str


@dataclass(frozen=True)
class Nothing:
    """A reply with no content, or with nothing but public numbers.

    Nothing about the data was released.
    """


# one class per mechanism; the privacy room makes epsilons
Event = Gaussian | Laplace | Pure | NonPrivate | Nothing


@dataclass(frozen=True)
class Sampling:
    """The law by which the units that a release looks at were drawn, and the share of them."""

    law: Literal["everyone", "poisson", "fixed"] = "everyone"
    q: float = 1.0

    @classmethod
    def at(cls, q: float, law: Literal["poisson", "fixed"] = "poisson") -> Sampling:
        """Return the law with rate ``q``; at rate 1 nobody is left out, whatever the law."""
        return cls(law, q) if q < 1 else cls()


Rounds = tuple[tuple[int, int], ...]  # closed intervals, in order, with gaps between them


@dataclass(frozen=True)
class Release:
    """One line of the ledger. It stands for ``steps`` releases in each of its rounds."""

    what: str  # what was released, such as "fedavg.train"
    unit: Unit
    owner: str  # the client whose data it came from, or the federation
    observer: Observer  # the first to see it; what the server sees, others may see
    event: Event
    rounds: Rounds
    steps: int = 1
    sampling: Sampling = Sampling()
    relation: Stated = "zero-out"  # the relation that the event's sensitivity is stated for
    # the task whose raw replies, in the same rounds, this mechanism consumed
    covers: str | None = None
    noise: Noise = "none"
    attempt: int = 0  # more than 0: the same round done again, with new noise

    def said(self) -> Hashable:
        """Return all that a line says but its rounds: lines that say the same are one."""
        said: Hashable = _said(self)
        return said

    def total(self) -> int:
        """Return how many releases this line stands for."""
        return self.steps * sum(last - first + 1 for first, last in self.rounds)


_said = attrgetter(*(f.name for f in fields(Release) if f.name != "rounds"))


def union(a: Rounds, b: Rounds) -> Rounds:
    """Return the rounds in either.

    >>> union(((0, 2), (7, 7)), ((3, 4), (9, 9)))
    ((0, 4), (7, 7), (9, 9))
    """
    if not a and len(b) == 1:  # most lines
        return b
    merged: list[tuple[int, int]] = []
    for first, last in sorted(a + b):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return tuple(merged)


class Ledger:
    """Append-only and run-length coded: lines that differ in their rounds alone are one line."""

    def __init__(self, lines: Iterable[Release] = ()) -> None:
        self._lines: dict[Hashable, Release] = {}  # by what they say without their rounds
        self.add(lines)

    def add(self, lines: Iterable[Release]) -> list[Release]:
        """Write lines, each once: what is known already changes nothing.

        Return the lines as they now stand.
        """
        changed = {}
        for line in lines:
            key = line.said()
            known = self._lines.get(key)
            before = known.rounds if known else ()
            rounds = union(before, line.rounds)
            if rounds != before:
                joined = line if rounds == line.rounds else replace(line, rounds=rounds)
                self._lines[key] = changed[key] = joined
        return list(changed.values())

    def release(self, line: Release) -> None:
        """Write a release that has just happened.

        Fresh noise in a round that is known already is a further one.
        """
        while line.noise == "os" and self._has(line):
            line = replace(line, attempt=line.attempt + 1)
        self.add([line])

    def _has(self, line: Release) -> bool:
        known = self._lines.get(line.said())
        return known is not None and any(
            a <= last and first <= b for a, b in known.rounds for first, last in line.rounds
        )

    def plus(self, *lines: Release) -> Ledger:
        """Return a ledger with further releases; this one stays."""
        more = Ledger()
        more._lines = dict(self._lines)
        for line in lines:
            more.release(line)
        return more

    def covering(self) -> list[Release]:
        """Return the lines of mechanisms that consumed raw replies.

        There are few, whatever the number of clients.
        """
        return [line for line in self if line.covers is not None]

    def __iter__(self) -> Iterator[Release]:
        return iter(self._lines.values())

    def __len__(self) -> int:
        return len(self._lines)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ledger) and self._lines == other._lines


@dataclass(frozen=True)
class Released(Generic[T]):
    """A value that came out of a mechanism."""

    value: T

    def map(self, f: Callable[[T], S]) -> Released[S]:
        """Post-process it, which costs nothing."""
        return Released(f(self.value))


class PublicInt(int):
    """A whole number that is public: the size of a data set by assumption, or said by the server.

    What is made of public numbers alone is public too: ``me.size * sgd.lr``. A plain number may be
    anything, so it makes what it meets plain: say ``public(0.5)`` where a constant is meant.
    """

    def __neg__(self) -> PublicInt:
        return PublicInt(-int(self))

    def __add__(self, other: Any) -> Any:
        return _public(int.__add__(self, other), other)

    def __sub__(self, other: Any) -> Any:
        return _public(int.__sub__(self, other), other)

    def __mul__(self, other: Any) -> Any:
        return _public(int.__mul__(self, other), other)

    def __truediv__(self, other: Any) -> Any:
        return _public(int.__truediv__(self, other), other)


class PublicFloat(float):
    """A number that follows from public ones; the same rules hold as for :class:`PublicInt`."""

    def __neg__(self) -> PublicFloat:
        return PublicFloat(-float(self))

    def __add__(self, other: Any) -> Any:
        return _public(float.__add__(self, other), other)

    def __radd__(self, other: Any) -> Any:
        return _public(float.__radd__(self, other), other)

    def __sub__(self, other: Any) -> Any:
        return _public(float.__sub__(self, other), other)

    def __rsub__(self, other: Any) -> Any:
        return _public(float.__rsub__(self, other), other)

    def __mul__(self, other: Any) -> Any:
        return _public(float.__mul__(self, other), other)

    def __rmul__(self, other: Any) -> Any:
        return _public(float.__rmul__(self, other), other)

    def __truediv__(self, other: Any) -> Any:
        return _public(float.__truediv__(self, other), other)

    def __rtruediv__(self, other: Any) -> Any:
        return _public(float.__rtruediv__(self, other), other)


def is_public(number: object) -> bool:
    """Tell whether a number is known to be public; a plain one is not."""
    return isinstance(number, PublicInt | PublicFloat)


def public(number: float) -> PublicFloat:
    """State that a number is a constant or follows from public ones: a reader can check each use.

    >>> public(0.5) * PublicInt(4), is_public(public(0.5) * 4.0)
    (2.0, False)
    """
    return PublicFloat(number)


def _public(result: Any, other: object) -> Any:
    """Return the result of an operation of a public number, public if the other one is."""
    if not is_public(other) or result is NotImplemented:
        return result
    return PublicInt(result) if isinstance(result, int) else PublicFloat(result)
