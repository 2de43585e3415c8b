"""A way back for damaged ledgers that never lowers what they say."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tacit.core import FEDERATION, Damaged, Ledger, NonPrivate, Owner, Release, TacitError
from tacit.engines.sealed import Log, Mark, reaches, whole_lines
from tacit.engines.store import from_json, to_lines

WHY = "a ledger was damaged, and what it said is not known"


@dataclass(frozen=True)
class Salvaged:
    """What became of a ledger."""

    lines: list[str]
    whole: bool  # nothing is missing; else a line says that epsilon is not known

    def write(self, log: Log, marks: Iterable[Mark]) -> None:
        """Put it in the place of what was damaged, and make it count as newer than that."""
        every = [Mark(), *marks]
        writes, aside = max(m.writes for m in every), max(m.aside for m in every)
        log.restore(self.lines, writes=writes, aside=aside)


def salvage(
    log: Log, copies: Sequence[Path], marks: Sequence[Mark], owners: Sequence[str]
) -> Salvaged:
    """Return the ledger from whichever copy the newest mark vouches for.

    Where there is none, all that can be read counts, and a line that makes epsilon infinite.

    Args:
        log: the ledger, as it is
        copies: of it
        marks: whatever is known of where it stood
        owners: who pays for what cannot be known
    """
    texts = [lines_in(file) for file in (log.file, *copies)]
    newest = max(marks, key=lambda m: m.writes, default=None)
    for lines in texts:
        if newest is not None and reaches(newest, log.place, lines):
            return Salvaged(lines, True)
    found = Ledger(line for lines in texts for line in readable(lines))
    found.add(unknown(owner) for owner in owners)
    return Salvaged(to_lines(found), False)


def taken_over(file: Path) -> Salvaged | None:
    """Return a ledger that no mark was ever made for, as it stands; None: it cannot be read."""
    lines = lines_in(file)
    whole = len(list(readable(lines))) == len(lines) > 0
    return Salvaged(lines, True) if whole else None


def lines_in(file: Path) -> list[str]:
    """Return the lines of a file; none where it cannot be read."""
    with contextlib.suppress(Damaged):
        return whole_lines(file)[0]
    return []


def readable(lines: Iterable[str]) -> Iterator[Release]:
    """Yield those lines that are releases."""
    for line in lines:
        with contextlib.suppress(
            ValueError, KeyError, TypeError, AttributeError, TacitError, RecursionError
        ):
            yield from_json(json.loads(line))


def unknown(owner: str) -> Release:
    """Return the line for what cannot be known: epsilon is infinite."""
    return Release("repair", "example", owner, "server", NonPrivate(WHY), ((0, 0),))


def marks_of(log: Log) -> list[Mark]:
    """Return the marks beside a log, if they can be read."""
    with contextlib.suppress(Damaged):
        return log.marks_kept()
    return []


def pays(client: str | None) -> list[str]:
    """Return the owners of a client's ledger, or of the server's."""
    return [FEDERATION] if client is None else [Owner(client).id, Owner(client, tests=True).id]
