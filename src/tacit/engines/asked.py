"""What was asked and is missing in a site's ledger: a site can raise its epsilon, never lower it.

The coordinator knows the rule by which a method releases (`Method.releases`), so it knows what a
reply costs, whatever its site says of it. A ledger that says less is made up for by a line of the
coordinator's; a ledger that says more stands as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from tacit.core import ClientId, NonPrivate, Nothing, Release

# what a client's ledger must say if it has answered in these rounds; nothing: no rule is known
Expected = Callable[[ClientId, Collection[int]], Sequence[Release]]


def nothing_expected(client: ClientId, rounds: Collection[int]) -> Sequence[Release]:
    """Know no rule."""
    return ()


def rounds_in(lines: Iterable[Release]) -> set[int]:
    """Return the rounds that lines are about."""
    return {t for line in lines for first, last in line.rounds for t in range(first, last + 1)}


def answered_in(lines: Iterable[Release]) -> set[int]:
    """Return the rounds in which a client has answered, as far as its figure depends on them.

    A line of no privacy for an example makes every figure infinite. It may be about metrics of a
    personal model, which belong to the round that comes next.
    """
    return rounds_in(
        line
        for line in lines
        if not (isinstance(line.event, NonPrivate) and line.unit == "example")
    )


def kind(line: Release) -> tuple[object, ...]:
    """Return what an accountant looks at; why something is not private makes no difference."""
    event = NonPrivate("") if isinstance(line.event, NonPrivate) else line.event
    return line.unit, line.observer, event, line.sampling, line.relation


def missing(expected: Iterable[Release], known: Iterable[Release], round: int) -> list[Release]:
    """Return lines that make up for what is expected and not in a ledger, as of ``round``.

    >>> from tacit.core import Gaussian
    >>> asked = Release("dp-sgd", "example", "1", "server", Gaussian(1.0), ((0, 2),), steps=5)
    >>> claims = [replace(asked, rounds=((0, 0),)), replace(asked, event=Gaussian(50.0))]
    >>> [(line.event, line.total()) for line in missing([asked], claims, 2)]
    [(Gaussian(z=1.0), 10)]
    """
    told = Counter[object]()
    for line in known:
        told[kind(line)] += line.total()
    needed, first = Counter[object](), dict[object, Release]()
    for line in expected:
        if line.rounds and not isinstance(line.event, Nothing):
            needed[kind(line)] += 1 if isinstance(line.event, NonPrivate) else line.total()
            first.setdefault(kind(line), line)
    return [
        replace(
            first[of],
            what=f"{first[of].what}, as it was asked",
            rounds=((round, round),),
            steps=n - told[of],
            attempt=0,
        )
        for of, n in needed.items()
        if told[of] < n and not (isinstance(first[of].event, NonPrivate) and told[of])
    ]


def odd(told: Iterable[Release], expected: Iterable[Release], client: ClientId) -> bool:
    """Tell whether a site's ledger has a mechanism that nobody asked for, where a rule is known."""
    asked = {kind(line) for line in expected}
    free = (NonPrivate, Nothing)
    mine = (line for line in told if line.owner == client and not isinstance(line.event, free))
    return bool(asked) and any(kind(line) not in asked for line in mine)
