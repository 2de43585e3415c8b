"""`tacit privacy FOLDER`: what a run or a site's store has spent, every file verified; --repair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from tacit import privacy
from tacit.apps.books import NAME as BOOKS
from tacit.apps.books import Books
from tacit.apps.repair import repair_store
from tacit.cli.flags import parse
from tacit.core import BadInput, Ledger, Owner, check_number
from tacit.experiment.repair import repair_run
from tacit.experiment.rundir import RunDir
from tacit.privacy import show_epsilon


@dataclass(frozen=True)
class SpentFlags:
    """Flags of ``tacit privacy FOLDER``."""

    # a run directory, or the --store of a site
    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FOLDER")]
    repair: bool = False  # mend what is damaged, so that it never says less than it did
    delta: float = 1e-5  # for a store: the delta of what all runs together have spent


def spent_command(args: Sequence[str]) -> None:
    """Say what was spent, or mend the files that say it."""
    about = "What a run or a site has spent, with every file verified."
    given = parse(SpentFlags, args, prog="tacit privacy FOLDER", about=about)
    check_number("delta", given.delta, above=0, below=1)
    if RunDir(given.folder).begun:
        if given.repair:
            repair_run(given.folder, print)
        _of_run(RunDir.open(given.folder))
    elif is_store(given.folder):
        _store(given)
    else:
        raise BadInput(f"'{given.folder}': neither a run directory nor the store of a site")


def _store(given: SpentFlags) -> None:
    """Mend a store if that is wanted, while no site uses it, and say what it has spent."""
    lock = RunDir(given.folder)
    if given.repair:
        lock.lock()
    try:
        if given.repair:
            repair_store(given.folder, print)
        _of_store(Books(given.folder), given.delta)
    finally:
        lock.unlock()


def is_store(folder: Path) -> bool:
    """Tell whether this is the memory of a site."""
    books = Books(folder)
    return (folder / BOOKS).exists() or bool(books.found() | books.copied())


def _of_run(directory: RunDir) -> None:
    directory.verify()
    setting = directory.experiment().setting
    for what, spent in privacy.overview(directory.ledger(), delta=setting.delta).items():
        unit, _, observer = what.partition("/")
        print(f"one {unit} against {observer}: eps {show_epsilon(spent)}, delta {setting.delta:g}")


def _of_store(books: Books, delta: float) -> None:
    every = Ledger()
    for name, ledger in books.ledgers():
        run = name.partition("/")[0]
        own = [
            replace(line, owner=_owner(line.owner), what=f"{line.what}@{run}") for line in ledger
        ]
        every.add(own)
        print(f"run {run[:8]}: eps {_against_server(Ledger(own), delta)}")
    print(
        f"all runs: eps {_against_server(every, delta)} for one example against the server, ",
        end="",
    )
    print(f"delta {delta:g}")


def _owner(owner: str) -> str:
    """Return whose line it is, whatever number the site had in a run."""
    return replace(Owner.read(owner), client="site").id


def _against_server(ledger: Ledger, delta: float) -> str:
    if not len(ledger):
        return "0"
    spent = privacy.epsilon(ledger, unit="example", observer="server", delta=delta)
    return show_epsilon(spent)
