"""More rounds for a run, where that breaks no promise."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields, replace

from tacit.core import BadInput, Method, NonPrivate, Release, check
from tacit.methods.spec import name_of


def extended(method: Method, rounds: int, predict: Callable[[Method], Iterable[Release]]) -> Method:
    """Return a method with more rounds.

    Refused where its noise was chosen for the rounds that it has: where the same method with more
    rounds would have released something else from the beginning, or cannot be had. ``predict``
    returns the lines that a method will write.
    """
    if "rounds" not in {f.name for f in fields(method)}:
        raise BadInput(f"rounds = {rounds}: {name_of(method)} has no rounds to add")
    check.number("rounds", rounds, at_least=method.rounds, whole=True)
    longer = replace(method, **{"rounds": rounds})
    if rounds > method.rounds and not _goes_on(predict(method), longer, predict):
        raise BadInput(
            f"rounds = {rounds}: the noise of this run was chosen for {method.rounds} rounds in "
            "all; more of them would spend more than it promised"
        )
    return longer


def _goes_on(
    before: Iterable[Release], longer: Method, predict: Callable[[Method], Iterable[Release]]
) -> bool:
    """Tell whether a longer method would have released, in each round, what was released before."""
    known = _apart_from_rounds(before)
    if any(_claims(line) for line in known):
        return False
    try:
        return known <= _apart_from_rounds(predict(longer))
    except BadInput:  # noise that was solved for an epsilon contradicts it now
        return False


def _apart_from_rounds(lines: Iterable[Release]) -> set[Release]:
    return {replace(line, rounds=()) for line in lines if line.total() > 0}


def _claims(line: Release) -> bool:
    """Tell whether noise follows a paper's epsilon for all rounds, which the ledger cannot show."""
    return isinstance(line.event, NonPrivate) and line.event.why.startswith("claimed eps")
