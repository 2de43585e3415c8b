"""What a client must remember between rounds, as files.

The page cache is its memory, the disk is where it spills.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import get_args

from tacit import codec
from tacit.core import (
    BadInput,
    Damaged,
    Event,
    Json,
    Kept,
    Ledger,
    Noise,
    Observer,
    Release,
    Sampling,
    Stated,
    Unit,
    check,
)
from tacit.engines.sealed import Log, add_sealed, read_sealed

LEDGER = "ledger.jsonl"
RENAMED = {"add/remove": "zero-out"}
WORDS = {
    "unit": get_args(Unit),
    "observer": get_args(Observer),
    "relation": get_args(Stated),
    "noise": get_args(Noise),
}
LAWS = ("everyone", "poisson", "fixed")
BACK = 10  # rounds that a server may go back to its checkpoints at most
EVENTS: dict[str, type] = {cls.__name__: cls for cls in get_args(Event)}


class ClientStore:
    """One client's folder: a file for each version of its kept state, and its own ledger.

    A version is named by the ask that made it. A reply's state lies here from the moment the work
    is done, but it counts only when the server names it as accepted, so a lost reply or a killed
    server changes nothing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.place = f"{folder.parent.name}/{folder.name}"
        self.log = Log(folder / LEDGER, self.place)

    def _file(self, version: str) -> Path:
        if not re.fullmatch(r"[\w.]+@\d+", version):
            raise BadInput(f"message: {version!r} is not the name of an ask")
        return self.folder / f"{version}.safetensors"

    def _place_of(self, version: str) -> str:
        return f"{self.place}/{version}"

    def kept(self, version: str | None) -> Kept:
        """Return the state of an accepted version; before the first there is none."""
        if version is None:
            return {}
        state: Kept = codec.load(self._file(version), place=self._place_of(version))
        return state

    def keep(self, version: str, state: Mapping[str, object]) -> None:
        """Put down the state that a reply would have if it is accepted."""
        self.folder.mkdir(parents=True, exist_ok=True)
        codec.save(dict(state), self._file(version), place=self._place_of(version))

    def forget_all_but(self, versions: Iterable[str | None]) -> None:
        """Remove versions that neither the server nor its checkpoints can ask for again."""
        wanted = {self._file(v) for v in versions if v is not None}
        for file in self.folder.glob("*.safetensors"):
            if file not in wanted:
                file.unlink(missing_ok=True)

    @property
    def _requests(self) -> Draws:
        return Draws(self.folder / "requests.json", self.place)

    def attempt(self, ask: str, request: str) -> int:
        """Return which of this round's different requests of one name this is, from 0 on."""
        requests = self._requests
        requests.check(self.log.known().aside)
        return requests.number(ask, request)

    def ledger(self) -> Ledger:
        """Return everything this client has released; refuse a ledger that does not verify."""
        return from_lines(self.log.read(), self.log.file)

    def write_ledger(self, ledger: Ledger, *, durable: bool = False) -> None:
        """Go on to this ledger: lines as they now stand are added, and joined now and then."""
        known = self.log.lines()
        if not known:
            self.folder.mkdir(parents=True, exist_ok=True)
        lines = to_lines(ledger)
        new = [line for line in lines if line not in known]
        aside = self._requests.writes()
        if len(known) + len(new) > 2 * len(lines) + 20:
            self.log.replace(lines, durable=durable, aside=aside)
        elif new or aside != self.log.known().aside:
            self.log.append(new, durable=durable, aside=aside)


class Draws:
    """What seeded noise was drawn for in the last rounds, so that it never serves two things.

    It is remembered before anything is drawn: in a file or, where there is none, in memory.
    """

    def __init__(self, file: Path | None = None, place: str = "") -> None:
        self.file = file
        self.place = place
        self.count = 0
        self.known: dict[str, list[str]] = {}

    def number(self, name: str, content: str) -> int:
        """Return which of the different contents under a name, ``what@round``, this is."""
        self._read()
        round = _round(name)
        seen = self.known.get(name, [])
        if content not in seen:
            recent = {o: v for o, v in self.known.items() if _round(o) >= round - BACK}
            self._write({**recent, name: [*seen, content]})
        return self.known[name].index(content)

    def writes(self) -> int:
        """Return how often this was written."""
        self._read()
        return self.count

    def check(self, writes: int) -> None:
        """Refuse an old copy: one that was written less often than it once was."""
        if self.writes() < writes:
            raise Damaged(f"{self.file}: an old copy, or missing (written {writes} times once)")

    def _read(self) -> None:
        raw = None if self.file is None else read_sealed(self.file, self.place)
        if raw is not None:
            if "known" not in raw:
                raise Damaged(f"{self.file}: another document of the same place")
            self.count, self.known = raw["writes"], raw["known"]

    def _write(self, known: dict[str, list[str]]) -> None:
        self.count, self.known = self.count + 1, known
        if self.file is not None:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            value = {"writes": self.count, "known": known}
            add_sealed(self.file, self.place, value)


def _round(name: str) -> int:
    return int(name.rpartition("@")[2])


def read_ledger(file: Path) -> Ledger:
    """Read a ledger file whatever vouches for it.

    A last line cut short by a kill never left this process, so it is dropped.
    """
    if not file.exists():
        return Ledger()
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as e:
        raise _no_ledger(file, e) from None
    whole = text[: text.rfind("\n") + 1]
    found = from_lines(whole.splitlines(), file)
    if whole != text:
        codec.write_atomically(file, whole.encode())
    return found


def from_lines(lines: Sequence[str], file: Path) -> Ledger:
    """Return the ledger that the lines of a file are."""
    try:
        return Ledger(_read_line(line) for line in lines)
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise _no_ledger(file, e) from None


@lru_cache(1 << 12)
def _read_line(line: str) -> Release:
    """Return the release that a line is; most are read again in every round."""
    return from_json(json.loads(line))


def _no_ledger(file: Path, e: Exception) -> BadInput:
    return BadInput(f"{file}: not a ledger ({type(e).__name__}: {e})")


def to_lines(lines: Iterable[Release]) -> list[str]:
    """Return ledger lines as JSON."""
    return [json.dumps(to_json(line)) for line in lines]


def to_text(lines: Iterable[Release]) -> str:
    """Return ledger lines as JSON, one per line."""
    return "".join(f"{line}\n" for line in to_lines(lines))


def to_json(line: Release) -> Json:
    """Return a ledger line as plain values: its event named, its rounds such as "0-4,7"."""
    rounds = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in line.rounds)
    return {
        **vars(line),
        "event": {"kind": type(line.event).__name__, **vars(line.event)},
        "rounds": rounds,
        "sampling": dict(vars(line.sampling)),
    }


def from_json(line: Json) -> Release:
    """Rebuild a ledger line; one whose words mean nothing to the accountant is refused."""
    event = dict(line["event"])
    line = dict(line)
    _check_kinds(line, event)
    # what it was called before sizes were said to be public
    line["relation"] = RENAMED.get(line["relation"], line["relation"])
    for field, known in WORDS.items():
        check.choice(field, line[field], known)
    check.choice("law", line["sampling"]["law"], LAWS)
    ends = [[int(end) for end in part.split("-")] for part in line["rounds"].split(",")]
    plain = {
        "event": EVENTS[event.pop("kind")](**event),
        "rounds": tuple((end[0], end[-1]) for end in ends),
        "sampling": Sampling(**line["sampling"]),
    }
    return Release(**{**line, **plain})


def _check_kinds(line: Json, event: Json) -> None:
    """Refuse values of another kind than a release has: nobody could count with them."""
    texts = [line["what"], line["owner"], event.get("why", "")]
    texts += [line["covers"]] if line.get("covers") is not None else []
    whole = [line.get("steps", 1), line.get("attempt", 0)]
    numbers = [line["sampling"]["q"], *(v for k, v in event.items() if k not in ("kind", "why"))]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("what, owner, covers and why are text")
    if any(type(n) is not int or n < 0 for n in whole):
        raise TypeError("steps and attempt are whole numbers, not below 0")
    # a whole number can be too large for arithmetic
    if any(type(n) is not float and not (type(n) is int and abs(n) < 2**1000) for n in numbers):
        raise TypeError("q and what an event has are numbers")
