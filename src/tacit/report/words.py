"""The ledger in plain words: what each observer can learn, about whom, and what was released."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from tacit import privacy
from tacit.core import (
    Gaussian,
    Laplace,
    Ledger,
    NonPrivate,
    Nothing,
    Observer,
    Pure,
    Relation,
    Release,
    Unit,
)
from tacit.core.ledger import FEDERATION, union
from tacit.privacy import rounded_down, rounded_up, show_epsilon
from tacit.report.conclusions import AGAINST
from tacit.report.reading import RunFacts

NAMED = 12  # clients that are named one by one
RELATION: dict[Unit, Relation] = {"example": "zero-out", "client": "replace"}
WHOSE = {"example": "one record of", "client": "all records together of"}
LAWS = {"poisson": "a Poisson sample", "fixed": "a sample of fixed size"}


@dataclass(frozen=True)
class Learnt:
    """What an observer can learn about the data of some clients."""

    observer: Observer
    unit: Unit
    epsilon: float
    clients: tuple[str, ...]
    sentence: str


def learnt(run: RunFacts) -> list[Learnt]:
    """Return what each observer can learn, clients that pay the same together."""
    if not len(run.ledger):
        return []
    return [
        _about(run, observer, unit, epsilon, owners)
        for observer in privacy.OBSERVERS
        for unit in privacy.UNITS
        for epsilon, owners in _owners(run.ledger, unit, observer, run.delta).items()
    ]


def _owners(
    ledger: Ledger, unit: Unit, observer: Observer, delta: float
) -> dict[float, tuple[str, ...]]:
    """Return the owners by what they have spent, the largest first."""
    each = privacy.by_owner(
        ledger, unit=unit, observer=observer, delta=delta, relation=RELATION[unit], quick=True
    )
    found: dict[float, list[str]] = {}
    for owner, epsilon in each.items():
        found.setdefault(epsilon, []).append(owner)
    return {epsilon: tuple(sorted(found[epsilon])) for epsilon in sorted(found, reverse=True)}


def _about(
    run: RunFacts, observer: Observer, unit: Unit, epsilon: float, owners: tuple[str, ...]
) -> Learnt:
    who = AGAINST[observer]
    whom = f"{WHOSE[unit]} {people(run, owners)}"
    if epsilon == 0:
        said = f"{who} can learn nothing about {whom}"
    elif math.isinf(epsilon):
        why = privacy.reason(run.ledger, unit=unit, observer=observer, delta=run.delta)
        said = f"{who} may learn anything about {whom}: {why}"
    else:
        said = f"{who} can learn at most eps {show_epsilon(epsilon)} about {whom}"
    return Learnt(observer, unit, epsilon, owners, said[0].upper() + said[1:])


def people(run: RunFacts, owners: Sequence[str]) -> str:
    """Name clients, or say how many there are."""
    if tuple(owners) == (FEDERATION,):
        return "any client"
    if not run.sites and len(owners) > 3 and _in_a_row(owners):
        return f"each of the clients {owners[0]} to {owners[-1]}"
    names = [_person(run, owner) for owner in owners]
    if len(names) == 1:
        return names[0]
    if len(names) > NAMED:
        return f"each of {len(names)} clients ({names[0]} to {names[-1]})"
    return f"each of {', '.join(names[:-1])} and {names[-1]}"


def _in_a_row(owners: Sequence[str]) -> bool:
    """Tell whether clients have numbers without a gap."""
    if not all(owner.isdecimal() for owner in owners):
        return False
    numbers = [int(owner) for owner in owners]
    return numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def _person(run: RunFacts, owner: str) -> str:
    if owner == FEDERATION:
        return "everybody"
    if owner.startswith("test:"):
        return f"the test data of {run.named(owner.removeprefix('test:'))}"
    return run.named(owner)


@dataclass(frozen=True)
class Line:
    """Lines of the ledger that differ in nothing but whose they are, in words."""

    sentence: str
    owners: tuple[str, ...]
    release: Release


def in_words(run: RunFacts, most: int = 200) -> list[Line]:
    """Return the ledger, a sentence for each kind of line."""
    return [
        Line(_sentence(run, kind, owners_of(alike)), owners_of(alike), kind)
        for kind, alike in kinds(run.ledger)[:most]
    ]


def kinds(lines: Iterable[Release]) -> list[tuple[Release, list[Release]]]:
    """Return lines that differ in nothing but whose they are and when, with all of their rounds."""
    alike: dict[Release, list[Release]] = {}
    for line in lines:
        alike.setdefault(replace(line, owner="", rounds=(), attempt=0), []).append(line)
    return [
        (replace(kind, rounds=reduce(union, (line.rounds for line in each))), each)
        for kind, each in alike.items()
    ]


def owners_of(lines: Iterable[Release]) -> tuple[str, ...]:
    """Return whose lines they are."""
    return tuple(sorted({line.owner for line in lines}))


def _sentence(run: RunFacts, line: Release, owners: tuple[str, ...]) -> str:
    whose = people(run, owners)
    what = f"“{line.what}”"
    seen = f"seen by {AGAINST[line.observer]}"
    times = f"{spoken_rounds(line.rounds)}{f', {line.steps} times each' * (line.steps > 1)}"
    covered = f"; it stands for the raw replies of {line.covers}" if line.covers else ""
    simulated = "; simulated noise, derived from the seed" if line.noise == "seeded" else ""
    return f"{what} of {whose}, {seen}, {times}: {event_in_words(line)}{covered}{simulated}."


def event_in_words(line: Release) -> str:
    """Say what protects a release."""
    event, sampling = line.event, line.sampling
    among = (
        f", on {LAWS.get(sampling.law, sampling.law)} with rate {rounded_up(sampling.q, 4)}"
        if sampling.law != "everyone"
        else ""
    )
    if isinstance(event, Gaussian):
        said = (
            f"Gaussian noise, {rounded_down(event.z, 4)} times the sensitivity for one {line.unit}"
        )
    elif isinstance(event, Laplace):
        said = (
            f"Laplace noise, {rounded_down(event.b, 4)} times the sensitivity for one {line.unit}"
        )
    elif isinstance(event, Pure):
        said = (
            f"pure differential privacy with eps {show_epsilon(event.epsilon)} for one {line.unit}"
        )
    elif isinstance(event, NonPrivate):
        return f"no guarantee ({event.why})"
    else:
        assert isinstance(event, Nothing)
        return "nothing about the data, public numbers only"
    return f"{said} ({line.relation}){among}"


def spoken_rounds(rounds: Iterable[tuple[int, int]]) -> str:
    """Return rounds as text; the ledger counts them from 0.

    >>> spoken_rounds(((0, 4), (7, 7))), spoken_rounds(((0, 0),))
    ('rounds 0 to 4, 7', 'round 0')
    """
    parts = [str(a) if a == b else f"{a} to {b}" for a, b in rounds]
    shown = [*parts[:6], "..."] if len(parts) > 6 else parts
    several = len(parts) > 1 or " " in parts[0]
    return f"round{'s' * several} {', '.join(shown)}"
