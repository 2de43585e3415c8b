"""`tacit privacy FOLDER`: what a run or a site's store has spent, every file verified; --repair."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from tacit import privacy
from tacit.apps.books import NAME as BOOKS
from tacit.apps.books import Books, read_budget
from tacit.apps.repair import repair_store
from tacit.cli.flags import parse
from tacit.cli.use import write
from tacit.core import BadInput, Ledger, Owner, check
from tacit.experiment.repair import repair_run
from tacit.experiment.rundir import RunDir
from tacit.privacy import show_epsilon
from tacit.report.account import Account, against_server, left_in_words, page


@dataclass(frozen=True)
class SpentFlags:
    """Flags of ``tacit privacy FOLDER``."""

    # a run directory, or the --store of a site
    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FOLDER")]
    repair: bool = False  # mend what is damaged, so that it never says less than it did
    # for a store: the delta of what all runs together have spent; default: as `tacit join` had it
    delta: float | None = None
    # for a store: the epsilon that all runs may spend; default: as `tacit join` had it
    budget: float | None = None
    # also write it as a page, for a data protection officer; such as account.html
    page: Path | None = None


def spent_command(args: Sequence[str]) -> None:
    """Say what was spent, or mend the files that say it."""
    about = "What a run or a site has spent, with every file verified."
    given = parse(SpentFlags, args, prog="tacit privacy FOLDER", about=about)
    if given.delta is not None:
        check.number("delta", given.delta, above=0, below=1)
    if given.budget is not None:
        check.number("budget", given.budget, above=0)
    if RunDir(given.folder).begun:
        if given.repair:
            repair_run(given.folder, print)
        account = _of_run(RunDir.open(given.folder), given)
    elif is_store(given.folder):
        account = _store(given)
    else:
        raise BadInput(f"'{given.folder}': neither a run directory nor the store of a site")
    if given.page is not None:
        write(given.page, page(account).encode())
        print(f"page: {given.page}")


def _store(given: SpentFlags) -> Account:
    """Mend a store if that is wanted, while no site uses it, and say what it has spent."""
    lock = RunDir(given.folder)
    if given.repair:
        lock.lock()
    try:
        if given.repair:
            repair_store(given.folder, print)
        return _of_store(Books(given.folder), given)
    finally:
        lock.unlock()


def is_store(folder: Path) -> bool:
    """Tell whether this is the memory of a site."""
    books = Books(folder)
    return (folder / BOOKS).exists() or bool(books.found() | books.copied())


def _of_run(directory: RunDir, given: SpentFlags) -> Account:
    directory.verify()
    setting = directory.experiment().setting
    ledger = directory.ledger()
    for what, spent in privacy.overview(ledger, delta=setting.delta).items():
        unit, _, observer = what.partition("/")
        print(f"one {unit} against {observer}: eps {show_epsilon(spent)}, delta {setting.delta:g}")
    unit, observer = directory.experiment().method.protects
    runs = {given.folder.name: ledger}
    account = Account(str(given.folder), setting.delta, runs, setting.budget, unit, observer)
    if setting.budget < math.inf:
        print(f"eps {show_epsilon(account.spent)}; {left_in_words(account.spent, setting.budget)}")
    return account


def _of_store(books: Books, given: SpentFlags) -> Account:
    runs: dict[str, Ledger] = {}
    known = read_budget(books.folder)
    for name, ledger in books.ledgers():
        run = name.partition("/")[0]
        own = [
            replace(line, owner=_owner(line.owner), what=f"{line.what}@{run}") for line in ledger
        ]
        runs.setdefault(run[:8], Ledger()).add(own)
    account = Account(
        known.name or str(given.folder),
        known.delta if given.delta is None else given.delta,
        runs,
        known.budget if given.budget is None else given.budget,
    )
    for run, ledger in runs.items():
        spent = show_epsilon(against_server(ledger, account.delta))
        print(f"run {run}: eps {spent}{by_observer(ledger, account.delta)}")
    spent = show_epsilon(account.spent)
    print(f"all runs: eps {spent} for one example against the server, delta {account.delta:g}")
    if account.budget < math.inf:
        print(left_in_words(account.spent, account.budget))
    return account


def by_observer(ledger: Ledger, delta: float) -> str:
    """Return what each observer can learn of an example or a client, on one line."""
    if not len(ledger):
        return ""
    found: dict[str, list[str]] = {}
    for key, spent in privacy.overview(ledger, delta=delta).items():
        unit, _, observer = key.partition("/")
        found.setdefault(unit, []).append(f"{observer} {show_epsilon(spent)}")
    return "".join(f"; one {unit} against {', '.join(each)}" for unit, each in found.items())


def _owner(owner: str) -> str:
    """Return whose line it is, whatever number the site had in a run."""
    return replace(Owner.read(owner), client="site").id
