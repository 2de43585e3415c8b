"""What was released, about whom, and who saw it. Silence is not privacy: an empty ledger means infinity."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

T = TypeVar("T")
S = TypeVar("S")

Unit = Literal["example", "client"]  # what two neighbouring data sets differ in: one record, or all of one client
Observer = Literal["server", "clients", "public"]  # who looks: the server, the other clients, whoever gets the model


@dataclass(frozen=True)
class NonPrivate:
    """Something left without any noise: epsilon is infinite."""

    why: str


@dataclass(frozen=True)
class Nothing:
    """A reply with no content at all: nothing about the data was released."""


Event = NonPrivate | Nothing  # one class per mechanism; the privacy room turns them into epsilon


@dataclass(frozen=True)
class Release:
    """One line of the ledger."""

    what: str  # the ask it belongs to, such as "fedavg.train@3"
    unit: Unit
    owner: str  # the client whose data it came from
    observer: Observer  # the first to see it; what the server sees, others may see
    event: Event
    round: int


class Ledger:
    """Append-only, in order, each line once: a task repeated with the same derived noise is the same release."""

    def __init__(self, lines: Iterable[Release] = ()) -> None:
        self._lines: dict[Release, None] = dict.fromkeys(lines)

    def append(self, line: Release) -> None:
        """Write one line."""
        self._lines[line] = None

    def extend(self, lines: Iterable[Release]) -> list[Release]:
        """Write lines and return those that are new."""
        new = [line for line in dict.fromkeys(lines) if line not in self._lines]
        self._lines.update(dict.fromkeys(new))
        return new

    def __iter__(self) -> Iterator[Release]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ledger) and list(self) == list(other)


@dataclass(frozen=True)
class Released(Generic[T]):
    """A value that came out of a mechanism."""

    value: T

    def map(self, f: Callable[[T], S]) -> Released[S]:
        """Post-process it, which costs nothing."""
        return Released(f(self.value))
