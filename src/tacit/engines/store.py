"""What a client must remember between rounds, as files.

The page cache is its memory, the disk is where it spills.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from tacit import codec
from tacit.core import (
    BadInput,
    Event,
    Ledger,
    Noise,
    Observer,
    Release,
    Sampling,
    Stated,
    Unit,
    check_choice,
)

RENAMED = {"add/remove": "zero-out"}
WORDS = {
    "unit": get_args(Unit),
    "observer": get_args(Observer),
    "relation": get_args(Stated),
    "noise": get_args(Noise),
}
LAWS = ("everyone", "poisson", "fixed")
EVENTS: dict[str, type[Any]] = {cls.__name__: cls for cls in get_args(Event)}


class ClientStore:
    """One client's folder: a file for each version of its kept state, and its own ledger.

    A version is named by the ask that made it. A reply's state lies here from the moment the work
    is done, but it counts only when the server names it as accepted, so a lost reply or a killed
    server changes nothing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _file(self, version: str) -> Path:
        if not re.fullmatch(r"[\w.]+@\d+", version):
            raise BadInput(f"message: {version!r} is not the name of an ask")
        return self.folder / f"{version}.safetensors"

    def kept(self, version: str | None) -> Mapping[str, Any]:
        """Return the state of an accepted version; before the first there is none."""
        state: Mapping[str, Any] = {} if version is None else codec.load(self._file(version))
        return state

    def keep(self, version: str, state: Mapping[str, Any]) -> None:
        """Put down the state that a reply would have if it is accepted."""
        self.folder.mkdir(parents=True, exist_ok=True)
        codec.save(dict(state), self._file(version))

    def forget_all_but(self, versions: Iterable[str | None]) -> None:
        """Remove versions that neither the server nor its last checkpoint can ask for again."""
        wanted = {self._file(v) for v in versions if v is not None}
        for file in self.folder.glob("*.safetensors"):
            if file not in wanted:
                file.unlink(missing_ok=True)

    def attempt(self, ask: str, request: str) -> int:
        """Return which of this round's different requests of one name this is, from 0 on."""
        return Draws(self.folder / "requests.json").number(ask, request)

    def ledger(self) -> Ledger:
        """Return everything this client has released."""
        return read_ledger(self.folder / "ledger.jsonl")

    def write_ledger(self, ledger: Ledger) -> None:
        """Replace the ledger by one that goes on."""
        self.folder.mkdir(parents=True, exist_ok=True)
        codec.write_atomically(self.folder / "ledger.jsonl", to_text(ledger).encode())


class Draws:
    """What seeded noise was drawn for in the last rounds, so that it never serves two things.

    It is remembered before anything is drawn: in a file or, where there is none, in memory.
    """

    def __init__(self, file: Path | None = None) -> None:
        self.file = file
        self.known: dict[str, list[str]] = {}

    def number(self, name: str, content: str) -> int:
        """Return which of the different contents under a name, ``what@round``, this is."""
        known = self._read()
        round = _round(name)
        known = {other: seen for other, seen in known.items() if _round(other) >= round - 1}
        seen = known.setdefault(name, [])
        if content not in seen:
            seen.append(content)
            self._write(known)
        return seen.index(content)

    def _read(self) -> dict[str, list[str]]:
        if self.file is None or not self.file.exists():
            return self.known
        try:
            known: dict[str, list[str]] = json.loads(self.file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as e:
            raise BadInput(f"{self.file}: cannot be read ({e})") from None
        return known

    def _write(self, known: dict[str, list[str]]) -> None:
        self.known = known
        if self.file is not None:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            codec.write_atomically(self.file, json.dumps(known).encode())


def _round(name: str) -> int:
    return int(name.rpartition("@")[2])


def read_ledger(file: Path) -> Ledger:
    """Read a ledger file.

    A last line cut short by a kill never left this process, so it is dropped.
    """
    if not file.exists():
        return Ledger()
    try:
        text = file.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            codec.write_atomically(file, whole.encode())
        return Ledger(from_json(json.loads(line)) for line in whole.splitlines())
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise BadInput(f"{file}: not a ledger ({type(e).__name__}: {e})") from None


def to_text(lines: Iterable[Release]) -> str:
    """Return ledger lines as JSON, one per line."""
    return "".join(json.dumps(to_json(line)) + "\n" for line in lines)


def to_json(line: Release) -> dict[str, Any]:
    """Return a ledger line as plain values: its event named, its rounds such as "0-4,7"."""
    rounds = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in line.rounds)
    return {
        **asdict(line),
        "event": {"kind": type(line.event).__name__, **asdict(line.event)},
        "rounds": rounds,
    }


def from_json(line: dict[str, Any]) -> Release:
    """Rebuild a ledger line; one whose words mean nothing to the accountant is refused."""
    event = dict(line["event"])
    line = dict(line)
    # what it was called before sizes were said to be public
    line["relation"] = RENAMED.get(line["relation"], line["relation"])
    for field, known in WORDS.items():
        check_choice(field, line[field], known)
    check_choice("law", line["sampling"]["law"], LAWS)
    ends = [[int(end) for end in part.split("-")] for part in line["rounds"].split(",")]
    plain = {
        "event": EVENTS[event.pop("kind")](**event),
        "rounds": tuple((end[0], end[-1]) for end in ends),
        "sampling": Sampling(**line["sampling"]),
    }
    return Release(**{**line, **plain})
