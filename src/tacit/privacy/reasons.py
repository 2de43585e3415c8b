"""Why epsilon is what it is, in one sentence, however many clients and releases there are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tacit.core import Ledger, NonPrivate, Nothing, Observer, Owner, Release, Unit
from tacit.privacy.accounting import bill, bills, most_spent, ruins, visible
from tacit.privacy.bill import finite
from tacit.privacy.rounding import rounded_down, rounded_up

MOST = 300  # characters of a reason
NAME = 40  # and of a client's name in it
SIMULATED = " (simulated: the noise is derived from the seed)"
NUMBER = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?(?:e[-+]?\d+)?)(?!\w)")


def reason(
    ledger: Ledger, *, unit: Unit = "example", observer: Observer = "server", delta: float = 1e-5
) -> str:
    """Return why a unit's epsilon against an observer is what it is, in 300 characters at most.

    Args:
        ledger: What was released.
        unit: Whose epsilon.
        observer: Who looks.
        delta: Decides which client has spent most, where they differ.
    """
    if len(ledger) == 0:
        return "nothing was written to the ledger, and silence is no guarantee"
    covering = ledger.covering()
    lines = [line for line in ledger if visible(line, observer, covering)]
    if broken := [why for line in lines if (why := _broken(line, unit))]:
        return _joined(_ranges(broken), MOST)
    kinds, differ = _kinds(lines)
    if not kinds:
        return "nothing about the data left any client"
    worst = _worst(ledger, lines, unit, observer, delta) if differ else ""
    end = worst + SIMULATED * any(line.noise == "seeded" for line in lines)
    return _joined(kinds, MOST - len(end)) + end


def _broken(line: Release, unit: Unit) -> str:
    """Say why a line alone makes a unit's epsilon infinite; nothing where it does not."""
    if isinstance(line.event, NonPrivate):
        return line.event.why.strip() or f"{line.what} has no guarantee"
    if ruins(line, unit):
        return f"{line.what} protects an example, not a client"
    ((part, _),) = bill([line], unit)
    if isinstance(line.event, Nothing) or finite(part, "zero-out"):
        return ""
    stated = part[2] == "replace"
    return f"{line.what} {'is proved for replacing one only' if stated else 'has no noise'}"


def _kinds(lines: Iterable[Release]) -> tuple[list[str], bool]:
    """Return what was released, one clause a kind, and whether any kind has more than one size."""
    kinds: dict[tuple[str, str, str], list[Release]] = {}
    for line in lines:
        if not isinstance(line.event, Nothing):
            kind = line.what, type(line.event).__name__, line.sampling.law
            kinds.setdefault(kind, []).append(line)
    differ = any(
        len({(line.event, line.sampling) for line in alike}) > 1 for alike in kinds.values()
    )
    return [_clause(*kind, alike) for kind, alike in sorted(kinds.items())], differ


def _clause(what: str, mechanism: str, law: str, alike: Sequence[Release]) -> str:
    """Say how much noise a kind of release has, and on which samples."""
    sizes = ", ".join(
        f"{name} = {_range([vars(line.event)[name] for line in alike], up=name == 'epsilon')}"
        for name in vars(alike[0].event)
    )
    rates = _range([line.sampling.q for line in alike], up=True)
    sampling = "" if law == "everyone" else f" on a {law} sample, q = {rates}"
    return f"{what}: {mechanism}({sizes}){sampling}"


def _range(values: Sequence[float], *, up: bool) -> str:
    """Return the least and the largest, rounded to the side that promises less."""
    rounded = rounded_up if up else rounded_down
    low = rounded(min(values), 4)
    high = rounded(max(values), 4)
    return low if low == high else f"{low} to {high}"


def _worst(
    ledger: Ledger, lines: Sequence[Release], unit: Unit, observer: Observer, delta: float
) -> str:
    """Name the client that has spent most, unless all have spent the same."""
    own: dict[str, list[Release]] = {}
    for line in lines:
        own.setdefault(line.owner, []).append(line)
    if len({bill(mine, unit) for mine in own.values()}) == 1:
        return ""
    name, _ = most_spent(bills(ledger, unit=unit, observer=observer), "zero-out", delta)
    owner = Owner.read(name)
    whose = "test data of client " if owner.tests else "client "
    return f"; most spent by {whose}{_cut(owner.client, NAME)}"


def _ranges(texts: Iterable[str]) -> list[str]:
    """Return texts, those that differ in nothing but numbers as one with their ranges."""
    alike: dict[tuple[str, ...], list[list[str]]] = {}
    for text in sorted(set(texts)):
        parts = NUMBER.split(" ".join(text.split()))
        alike.setdefault(tuple(parts[::2]), []).append(parts[1::2])
    return [_filled(words, numbers) for words, numbers in alike.items()]


def _filled(words: Sequence[str], numbers: Sequence[Sequence[str]]) -> str:
    ends = [(min(each, key=float), max(each, key=float)) for each in zip(*numbers, strict=True)]
    slots = [low if low == high else f"{low} to {high}" for low, high in ends]
    return "".join(part for pair in zip(words, [*slots, ""], strict=True) for part in pair)


def _joined(clauses: Sequence[str], room: int) -> str:
    """Return as many clauses as there is room for, and how many more there are."""
    for shown in range(len(clauses), 0, -1):
        left = len(clauses) - shown
        more = f"; and {left} more" if left else ""
        text = "; ".join(clauses[:shown]) + more
        if len(text) <= room:
            return text
    return _cut(clauses[0], room - len(more)) + more


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else text[: room - 3] + "..."
