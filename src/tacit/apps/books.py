"""The books of a site: where the ledger of every run stands, kept a second time, and copies of all.

A ledger and the mark beside it show when a line was lost or changed. That both were removed, or put
back to an earlier time, shows here. Only a store that is put back as a whole cannot be told from
one that was never used since.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tacit.codec import write_atomically
from tacit.core import ClientId, Damaged, Ledger
from tacit.engines.sealed import Mark, read_sealed, write_sealed
from tacit.engines.store import LEDGER, ClientStore

NAME = "books.json"
PLACE = "books of a site"
COPIES = "copies"
TERMS = "terms.json"


@dataclass(frozen=True)
class Terms:
    """What a site's owner has set when it last joined, for whoever reads the store."""

    name: str = ""
    budget: float = math.inf  # epsilon of all runs together, for one example against the server
    delta: float = 1e-5


def write_budget(folder: Path, terms: Terms) -> None:
    """Note the owner's terms in the store; they are kept by the process, not by this file."""
    budget = None if terms.budget == math.inf else terms.budget
    write_sealed(folder / TERMS, TERMS, {**asdict(terms), "budget": budget}, durable=False)


def read_budget(folder: Path) -> Terms:
    """Return the owner's terms, or the usual ones where none were noted."""
    raw = read_sealed(folder / TERMS, TERMS) or {}
    budget = raw.get("budget")
    known = {k: raw[k] for k in ("name", "delta") if k in raw}
    return Terms(**known, budget=math.inf if budget is None else float(budget))


class Books:
    """The ledgers in a site's store, by run and client number, such as ``3f.../1``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self) -> None:
        """Open the books of a new store; those of one that was used must be there."""
        if self._read() is None:
            self._write({})

    def verify(self) -> None:
        """Refuse a store in which any ledger is not as it was written."""
        self.open()
        for _ in self.ledgers():
            pass

    def ledgers(self) -> Iterator[tuple[str, Ledger]]:
        """Yield every ledger of the store by run and client, or refuse what does not verify."""
        marks = self.marks()
        for name in sorted(marks.keys() | self.found()):
            yield name, self._verified(name, marks.get(name))

    def check(self, run: str, client: ClientId) -> None:
        """Refuse to go on where the ledger of a run does not verify."""
        name = f"{run}/{client}"
        self._verified(name, self.marks().get(name))

    def note(self, run: str, client: ClientId) -> None:
        """Keep a copy of a ledger that was written, and where it stands."""
        self._keep(run, client, self.marks())

    def adopt(self, run: str, client: ClientId) -> None:
        """The same for a ledger that was repaired, whatever the books were before."""
        marks: dict[str, Mark] = {}
        with contextlib.suppress(Damaged):
            marks = self.marks()
        self._keep(run, client, marks)

    def _keep(self, run: str, client: ClientId, marks: dict[str, Mark]) -> None:
        store = ClientStore(self.folder / run / client)
        name = f"{run}/{client}"
        if found := store.log.marks_kept():
            self.copy_of(name).parent.mkdir(exist_ok=True)
            write_atomically(self.copy_of(name), store.log.file.read_bytes())
            self._write({**marks, name: found[0]})

    def marks(self) -> dict[str, Mark]:
        """Return where the ledgers stood when they were last written."""
        return self._read() or {}

    def copied(self) -> set[str]:
        """Return the ledgers that there are copies of."""
        files = (self.folder / COPIES).glob("*.jsonl")
        return {"/".join(file.stem.rsplit("-", 1)) for file in files}

    def found(self) -> set[str]:
        """Return the ledgers that there are, whatever the books say."""
        files = [*self.folder.glob(f"*/*/{LEDGER}"), *self.folder.glob("*/*/ledger.mark")]
        return {f"{file.parent.parent.name}/{file.parent.name}" for file in files}

    def copy_of(self, name: str) -> Path:
        """Return where the copy of a ledger is."""
        return self.folder / COPIES / f"{name.replace('/', '-')}.jsonl"

    def _verified(self, name: str, mark: Mark | None) -> Ledger:
        store = ClientStore(self.folder / name)
        try:
            ledger = store.ledger()
            store.log.check(mark or Mark())
        except Damaged as e:
            raise Damaged(f"{e}{self._way_back}") from None
        return ledger

    @property
    def _way_back(self) -> str:
        return f"; `tacit privacy {self.folder} --repair` saves what can be saved"

    def _read(self) -> dict[str, Mark] | None:
        """Return where ledgers stand; None: a new store."""
        try:
            raw = read_sealed(self.folder / NAME, PLACE)
        except Damaged as e:
            raise Damaged(f"{e}{self._way_back}") from None
        if raw is not None:
            return {name: Mark.of(mark) for name, mark in raw["ledgers"].items()}
        if self.found() or (self.folder / COPIES).exists():
            raise Damaged(
                f"'{self.folder}': no {NAME}; a store of an earlier version, or damaged; "
                f"`tacit privacy {self.folder} --repair` takes it over"
            )
        return None

    def _write(self, marks: dict[str, Mark]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        value = {"ledgers": {name: asdict(mark) for name, mark in marks.items()}}
        write_sealed(self.folder / NAME, PLACE, value, durable=False)
