"""What a client must remember between rounds, as files: the page cache is its memory, the disk is where it spills."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tacit import codec
from tacit.core import BadInput, Event, NonPrivate, Nothing, Release

EVENTS: dict[str, type[Event]] = {cls.__name__: cls for cls in (NonPrivate, Nothing)}


class ClientStore:
    """One client's folder: a file for each version of its kept state, and its own ledger.

    A version is named by the ask that made it. A reply's state lies here from the moment the work is done, but it
    counts only when the server names it as accepted, so a lost reply or a killed server changes nothing.
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

    def record(self, lines: Iterable[Release]) -> list[Release]:
        """Write releases to this client's ledger, each once, and return the whole ledger."""
        file = self.folder / "ledger.jsonl"
        known = read_ledger(file)
        new = [line for line in lines if line not in known]
        self.folder.mkdir(parents=True, exist_ok=True)
        append_ledger(file, new)
        return known + new


def append_ledger(file: Path, lines: Iterable[Release]) -> None:
    """Add lines to a ledger file; they are on their way to the disk before this returns."""
    text = "".join(json.dumps(to_json(line)) + "\n" for line in lines)
    if text:
        with file.open("a") as f:
            f.write(text)


def read_ledger(file: Path) -> list[Release]:
    """Read a ledger file; a last line cut short by a kill never left this process, so it is dropped."""
    if not file.exists():
        return []
    try:
        text = file.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            codec.write_atomically(file, whole.encode())
        return [from_json(json.loads(line)) for line in whole.splitlines()]
    except (ValueError, KeyError, TypeError) as e:
        raise BadInput(f"{file}: not a ledger ({type(e).__name__}: {e})") from None


def to_json(line: Release) -> dict[str, Any]:
    """Return a ledger line as plain values, its event named."""
    return {**asdict(line), "event": {"kind": type(line.event).__name__, **asdict(line.event)}}


def from_json(line: dict[str, Any]) -> Release:
    """Rebuild a ledger line."""
    event = dict(line["event"])
    return Release(**{**line, "event": EVENTS[event.pop("kind")](**event)})
