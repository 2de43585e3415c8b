"""Repair of a site's store: what it says it has spent never gets less."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from tacit.apps.books import Books
from tacit.core import Damaged
from tacit.engines.salvage import lines_in, marks_of, pays, salvage, taken_over
from tacit.engines.sealed import Mark
from tacit.engines.store import ClientStore


def repair_store(folder: Path, say: Callable[[str], None]) -> None:
    """Bring every ledger of a store into order, and say what became of each."""
    books = Books(folder)
    known: dict[str, Mark] | None = None
    with contextlib.suppress(Damaged):
        known = books.marks()
    for name in sorted((known or {}).keys() | books.found() | books.copied()):
        _repair(books, name, known, say)


def _repair(
    books: Books, name: str, known: dict[str, Mark] | None, say: Callable[[str], None]
) -> None:
    store = ClientStore(books.folder / name)
    copy = books.copy_of(name)
    mark = (known or {}).get(name)
    marks = [*marks_of(store.log), *([mark] if mark else [])]
    try:
        if not marks:
            raise Damaged("nothing vouches for it")
        store.ledger()
        store.log.check(mark or Mark())
    except Damaged:
        old = taken_over(store.log.file) if known is None and not marks else None
        saved = old or salvage(store.log, [copy], marks, pays(store.folder.name))
        store.folder.mkdir(parents=True, exist_ok=True)
        saved.write(store.log, marks)
        taken = "taken over as it stands" if old else "restored from what vouches for it"
        lost = "not whole: what it has spent is not known, and counts as infinite"
        say(f"{name}: {taken if saved.whole else lost}")
    else:
        say(f"{name}: as it was written, {len(lines_in(store.log.file))} lines")
    books.adopt(*name.split("/"))
