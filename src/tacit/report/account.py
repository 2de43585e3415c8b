"""What a site or a run has spent so far, in words and as a page for a data protection officer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape

from tacit import __version__, privacy
from tacit.core import Ledger, Observer, Unit
from tacit.privacy import rounded_down, show_epsilon
from tacit.report.conclusions import AGAINST
from tacit.report.words import event_in_words


@dataclass(frozen=True)
class Account:
    """All releases about somebody's data, run by run, and the budget that they count against."""

    title: str  # whose
    delta: float
    runs: Mapping[str, Ledger]  # by run, one after the other
    budget: float = math.inf  # over all runs, of what follows
    unit: Unit = "example"  # whom the budget protects
    observer: Observer = "server"  # against whom

    @property
    def all(self) -> Ledger:
        """Every line of every run."""
        return Ledger(line for ledger in self.runs.values() for line in ledger)

    @property
    def spent(self) -> float:
        """Epsilon of what the budget is about, of all runs together."""
        return self.costing(self.all)

    def costing(self, ledger: Ledger) -> float:
        """Return the same of some releases; 0 where nothing was asked yet."""
        if not len(ledger):
            return 0.0
        return privacy.epsilon(ledger, unit=self.unit, observer=self.observer, delta=self.delta)


def against_server(ledger: Ledger, delta: float, *, quick: bool = False) -> float:
    """Return epsilon of one example against the server; 0 where nothing was asked yet."""
    if not len(ledger):
        return 0.0
    return privacy.epsilon(ledger, unit="example", observer="server", delta=delta, quick=quick)


def left_in_words(spent: float, budget: float) -> str:
    """Say what is left of a budget."""
    if budget == math.inf:
        return "no budget was set"
    left = max(0.0, budget - spent) if spent < math.inf else 0.0
    return f"budget {budget:g}: {rounded_down(left, 3) if left else '0'} left"


def overview(ledger: Ledger, delta: float) -> list[tuple[str, str]]:
    """Return, for each kind of observer, what it can learn of whom at most."""
    if not len(ledger):
        return []
    found = privacy.overview(ledger, delta=delta)
    rows = []
    for key, spent in found.items():
        unit, _, observer = key.partition("/")
        how = "zeroed out" if unit == "example" else "replaced"
        rows.append((f"one {unit} {how}, against {AGAINST[observer]}", show_epsilon(spent)))
    return rows


def by_run(account: Account) -> tuple[list[str], list[list[str]]]:
    """Return head and rows of a table: what each kind of observer has learnt from each run."""
    each = {run: dict(overview(ledger, account.delta)) for run, ledger in account.runs.items()}
    kinds = list(dict.fromkeys(kind for found in each.values() for kind in found))
    rows = [
        [run, *(found.get(kind, "0") for kind in kinds), str(len(account.runs[run]))]
        for run, found in each.items()
    ]
    return ["run", *(f"epsilon of {kind}" for kind in kinds), "lines of the ledger"], rows


def page(account: Account) -> str:
    """Return the account as one HTML page that fetches nothing."""
    spent = account.spent
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    columns, runs = by_run(account)
    sent = [
        [run, line.what, event_in_words(line)]
        for run, ledger in account.runs.items()
        for line in ledger
    ]
    parts = [
        f"<p>Written by tacit {__version__} on {now}, from the ledger on this machine.</p>",
        "<h2>In short</h2>",
        f"<p>All runs together have spent epsilon <b>{show_epsilon(spent)}</b> at delta "
        f"{account.delta:g}, for one {account.unit} against {AGAINST[account.observer]}; "
        f"{left_in_words(spent, account.budget)}.</p>",
        f"<p>{MEANING}</p>",
        "<h2>By observer</h2>",
        _table(WHO, overview(account.all, account.delta)),
        "<h2>By run</h2>",
        _table(columns, runs),
        "<h2>What was released</h2>",
        _table(["run", "what", "how it was protected"], sent),
    ]
    head = f"<meta charset='utf-8'><title>{escape(account.title)}</title><style>{STYLE}</style>"
    body = f"<h1>Privacy account of {escape(account.title)}</h1>{''.join(parts)}"
    return f"<!doctype html><html lang='en'><head>{head}</head><body>{body}</body></html>\n"


WHO = ["of whom, against whom", "epsilon"]
MEANING = (
    "Epsilon bounds how much more likely anything that was sent can become by one record being "
    "there: at most by the factor e to the power epsilon, but for a chance of delta. Small is "
    "private; around 1 is strong, above 10 is weak, and inf is no guarantee at all."
)
STYLE = (
    "body{font:16px/1.5 sans-serif;max-width:50rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;width:100%}td,th{border:1px solid #999;padding:.3rem .6rem;"
    "text-align:left;vertical-align:top}@media print{body{margin:0}}"
)


def _table(head: list[str], rows: list[tuple[str, str]] | list[list[str]]) -> str:
    if not rows:
        return "<p>Nothing.</p>"
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
