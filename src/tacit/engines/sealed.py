"""Files that show when anybody but their owner has changed them: documents, and logs of lines.

A document carries a checksum of itself and of its place. A log has a mark beside it, which says how
many lines there are and holds the end of a chain over them; whoever keeps a second copy of the mark
elsewhere sees when both were put back to an earlier time, or removed. Checksums tell accidents, not
an owner who forges: they have no key.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tacit import codec
from tacit.core import Damaged, Json

TRIES = 3  # of a reader while another process writes
MOST = 1 << 13  # bytes of documents one after the other, of which the last counts


def digest(*parts: str | bytes) -> str:
    """Return a checksum of several parts, each with its length."""
    h = hashlib.blake2b(digest_size=16)
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        h.update(len(raw).to_bytes(8, "little"))
        h.update(raw)
    return h.hexdigest()


def write_sealed(file: Path, place: str, value: Mapping[str, object], *, durable: bool) -> None:
    """Write a document of plain values, with a checksum of it and of its place."""
    codec.write_atomically(file, _document(place, value), durable=durable)


def add_sealed(file: Path, place: str, value: Mapping[str, object]) -> None:
    """Write a document behind those that are there, now and then in their place: the last counts.

    To give a file's name to another one takes a disk many times as long. A document that was cut
    short by a kill is as if it had not been written.
    """
    with contextlib.suppress(FileNotFoundError), file.open("r+b") as f:
        if 0 < f.seek(0, os.SEEK_END) < MOST:
            f.seek(-1, os.SEEK_END)
            if f.read(1) == b"\n":
                f.write(_document(place, value))
                return
    write_sealed(file, place, value, durable=False)


def _document(place: str, value: Mapping[str, object]) -> bytes:
    return json.dumps({**value, "check": _check(place, value)}).encode() + b"\n"


def read_sealed(file: Path, place: str) -> Json | None:
    """Read the last document that was written for this place; None: there is none."""
    try:
        *before, rest = file.read_bytes().split(b"\n")
        value: Json = json.loads(before[-1] if before else rest)
        check = value.pop("check")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise Damaged(f"{file}: damaged ({type(e).__name__})") from None
    if check != _check(place, value):
        raise Damaged(f"{file}: damaged, or not of this place (its checksum is not its own)")
    return value


def _check(place: str, value: Mapping[str, object]) -> str:
    return digest(place, json.dumps(value, sort_keys=True))


@dataclass(frozen=True)
class Mark:
    """Where a log stands."""

    writes: int = 0  # how often it was written
    lines: int = 0
    seal: str = ""  # the end of the chain over so many lines
    aside: int = 0  # how often what lies beside it was written, as its owner counts

    @classmethod
    def of(cls, raw: Json) -> Mark:
        """Return a mark from plain values."""
        return cls(raw["writes"], raw["lines"], raw["seal"], raw["aside"])


class Log:
    """A file of lines, and its mark. One process writes, others may read meanwhile."""

    def __init__(self, file: Path, place: str) -> None:
        self.file = file
        self.place = place
        self.mark_file = file.with_suffix(".mark")
        self.mark: Mark | None = None  # as of the last reading or writing
        self._lines: list[str] = []
        self._whole = True  # no line was cut short by a kill
        self._late = False  # lines were added that a power failure might take

    def read(self) -> list[str]:
        """Return the lines, or refuse what the mark does not vouch for.

        Lines after those of the mark were being written when the writer was killed: nothing has
        been done on their account, but they stay. One that was cut short is left out.
        """
        for _ in range(TRIES):
            before = self._mark_on_disk()
            lines, self._whole = whole_lines(self.file)
            marks = _marks_in(before)
            chain = chained(self.place, lines)
            fits = [m for m in marks if chain[m.lines : m.lines + 1] == [m.seal]]
            if fits or (before is None and not lines):
                last = fits[-1] if fits else Mark()
                self.mark = Mark(last.writes, len(lines), chain[-1], last.aside)
                self._lines = lines
                return lines
            if before == self._mark_on_disk():
                break
        raise Damaged(f"{self.file}: {_wrong(marks, lines)}")

    def _mark_on_disk(self) -> Json | None:
        raw = read_sealed(self.mark_file, self.place)
        if raw is not None and "lines" not in raw:
            raise Damaged(f"{self.mark_file}: another document of the same place")
        return raw

    def known(self) -> Mark:
        """Return where the log stands, reading it if need be."""
        if self.mark is None:
            self.read()
        assert self.mark is not None
        return self.mark

    def lines(self) -> list[str]:
        """Return the lines, reading them unless this object has just done so."""
        return self._lines if self.mark is not None else self.read()

    def marks_kept(self) -> list[Mark]:
        """Return the mark on disk, and that of what was about to replace it, if there are any."""
        return _marks_in(self._mark_on_disk())

    def append(self, lines: Sequence[str], *, durable: bool, aside: int | None = None) -> None:
        """Add lines; durable: they outlast a power failure from the moment that this returns.

        The mark need not: lines after it are read, too.
        """
        old = self.known()
        aside = old.aside if aside is None else aside
        if not self._whole or not self.mark_file.exists():
            self.replace([*self._lines, *lines], durable=durable, aside=aside)
            return
        with self.file.open("a", encoding="utf-8") as f:
            f.writelines(f"{line}\n" for line in lines)
            self._late = not durable
            if durable:
                f.flush()
                os.fsync(f.fileno())
        self._lines = [*self._lines, *lines]
        seal = chained(self.place, lines, old.seal)[-1]
        self._set(Mark(old.writes + 1, old.lines + len(lines), seal, aside), durable=False)

    def sync(self) -> None:
        """See to it that lines outlast a power failure that were added without care for that."""
        if self._late:
            with self.file.open("rb") as f:
                os.fsync(f.fileno())
        self._late = False

    def replace(self, lines: Sequence[str], *, durable: bool, aside: int | None = None) -> None:
        """Write all lines anew. A kill on the way leaves the old ones or the new ones."""
        old = self.known()
        aside = old.aside if aside is None else aside
        new = Mark(old.writes + 1, len(lines), chained(self.place, lines)[-1], aside)
        intent = {**vars(old), "next": vars(new)}
        write_sealed(self.mark_file, self.place, intent, durable=durable)
        text = "".join(f"{line}\n" for line in lines)
        codec.write_atomically(self.file, text.encode(), durable=durable)
        self._whole, self._lines = True, list(lines)
        self._late = not durable
        self._set(new, durable=durable)

    def restore(self, lines: Sequence[str], *, writes: int, aside: int = 0) -> None:
        """Write lines that somebody vouches for in place of what the mark says."""
        self.mark, self._lines = Mark(writes, 0, chained(self.place, [])[0], aside), []
        self.replace(lines, durable=True)

    def _set(self, mark: Mark, *, durable: bool) -> None:
        if durable:
            write_sealed(self.mark_file, self.place, vars(mark), durable=True)
        else:
            add_sealed(self.mark_file, self.place, vars(mark))
        self.mark = mark

    def check(self, copy: Mark) -> None:
        """Refuse a log that stands before a mark that was kept elsewhere, or beside it."""
        here = self.known()
        if here.writes < copy.writes:
            raise Damaged(
                f"{self.file}: an old copy (written {here.writes} times, once {copy.writes})"
            )
        if here.writes == copy.writes and here.lines < copy.lines:
            raise Damaged(f"{self.file}: {here.lines} lines, once {copy.lines}")


def _marks_in(raw: Json | None) -> list[Mark]:
    return [Mark.of(m) for m in (raw, (raw or {}).get("next")) if m]


def reaches(mark: Mark, place: str, lines: Sequence[str]) -> bool:
    """Tell whether lines go as far as a mark, and are what it says."""
    chain = chained(place, lines[: mark.lines])
    return len(chain) == mark.lines + 1 and chain[-1] == mark.seal


def _wrong(marks: Sequence[Mark], lines: Sequence[str]) -> str:
    """Say what is wrong with a log that its mark does not vouch for."""
    if not marks:
        return "nothing vouches for its lines (its .mark is missing)"
    if len(lines) < (wanted := marks[0].lines):
        return f"{len(lines)} of {wanted} lines are there"
    return "not as it was written"


def chained(place: str, lines: Iterable[str], seal: str = "") -> list[str]:
    """Return the chain over lines: its beginning, and where it is after each of them."""
    chain = [seal or digest(place)]
    for line in lines:
        chain.append(digest(chain[-1], line))
    return chain


def whole_lines(file: Path) -> tuple[list[str], bool]:
    """Return the lines of a file without one that was cut short, and whether there was none."""
    try:
        text = file.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return [], True
    except (OSError, UnicodeDecodeError) as e:
        raise Damaged(f"{file}: cannot be read ({type(e).__name__})") from None
    *lines, rest = text.split("\n")
    return lines, not rest
