"""Tables of results: plain text, Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Literal

import numpy as np

from tacit.experiment.encoding import NONE
from tacit.experiment.metrics import WORDS
from tacit.privacy import show_epsilon

if TYPE_CHECKING:
    from tacit.experiment.compare import Row
    from tacit.experiment.sweep import Point

Form = Literal["text", "md", "latex", "csv"]


def comparison_table(rows: Sequence[Row], form: Form = "text") -> str:
    """Return a comparison as a table: accuracy, privacy and cost, one line per method.

    The shared model's accuracy is on the whole test set; a personal method has none, only the
    clients' own. Epsilon is against the server, for an example zeroed out and for a client
    replaced, and for a client replaced against whoever gets the model.
    """
    shown = any(r.features != NONE for r in rows)
    head = [
        "method",
        *["features"] * shown,
        *_goodness(rows[0]),
        "eps example",
        "eps client",
        "client/public",
        "MB up",
        "seconds",
    ]
    body = [
        [
            r.method,
            *[r.features] * shown,
            *_goodness(r).values(),
            show_epsilon(r.epsilon["example/server"]),
            show_epsilon(r.epsilon["client/server"]),
            show_epsilon(r.epsilon["client/public"]),
            f"{r.megabytes_up:.2f}",
            f"{r.seconds:.1f}",
        ]
        for r in rows
    ]
    return formatted([head, *body], form, ["", *map(stopped, rows)])


def _goodness(row: Row) -> dict[str, str]:
    """Return how good a method is, by the name of the column."""
    if row.errors or row.per_label:
        return _reached(row)
    shown = "-" if row.personal else spread(row.shown)
    return {f"{WORDS[row.metric]} %": shown, "own data %": spread(row.own_data)}


def _reached(row: Row) -> dict[str, str]:
    """Return the same without clients' own data: errors of numbers, or shares that are right."""
    if row.errors:
        return {name: in_units(values) for name, values in row.errors.items()}
    labels = {f"{name} %": spread(values) for name, values in row.per_label.items()}
    return {f"{WORDS[row.metric]} %": spread(row.shown)} | labels


def stopped(row: Row) -> str:
    """Say where a method's runs were stopped, if they were.

    >>> from types import SimpleNamespace as Some
    >>> stopped(Some(stopped=[3, 5], runs=3, rounds=20))
    '2 of 3 runs stopped at round 3 to 5 of 20 (budget)'
    """
    if not row.stopped:
        return ""
    first, last = min(row.stopped), max(row.stopped)
    where = f"{first}" if first == last else f"{first} to {last}"
    some = f"{len(row.stopped)} of {row.runs} runs " if len(row.stopped) < row.runs else ""
    return f"{some}stopped at round {where} of {row.rounds} (budget)"


def sweep_table(rows: Sequence[tuple[Point, Row]], form: Form = "text") -> str:
    """Return a sweep as a table.

    Where, accuracy, what the methods measure of themselves, epsilon of what, zeroed out.
    """
    over, also = (
        list(rows[0][0].values),
        list(dict.fromkeys(k for _, r in rows for k in r.measured)),
    )
    shown = any(r.features != NONE for _, r in rows)
    head = [
        "method",
        *["features"] * shown,
        *over,
        *_reached(rows[0][1]),
        *(f"{k} %" for k in also),
        "eps",
        "for",
        "seconds",
    ]
    body = [
        [
            point.word,
            *[r.features] * shown,
            *(f"{point.values[k]:g}" for k in over),
            *_reached(r).values(),
            *(spread(r.measured.get(k, ())) for k in also),
            show_epsilon(r.spent),
            r.protects,
            f"{r.seconds:.1f}",
        ]
        for point, r in rows
    ]
    return formatted([head, *body], form)


def formatted(table: Sequence[Sequence[str]], form: Form, remarks: Sequence[str] = ()) -> str:
    """Return rows, the first of them the head, as text, Markdown, LaTeX (booktabs) or CSV.

    Remarks are the last column, if there is any.
    """
    if form == "text":
        return aligned(table, remarks)
    noted = any(remarks)
    rows = [[*row, *([said] if noted else [])] for row, said in zip_longest(table, remarks)]
    rows[0][-1:] = ["remark"] if noted else rows[0][-1:]
    return {"md": _markdown, "latex": _latex, "csv": _csv}[form](rows)


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    cells = [[cell.replace("\\", "\\\\").replace("|", "\\|") for cell in row] for row in rows]
    rule = ["---", *["---:"] * (len(rows[0]) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in [cells[0], rule, *cells[1:]])


LATEX = {
    "\\": r"\textbackslash{}",
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
}


def _latex(rows: Sequence[Sequence[str]]) -> str:
    def cell(text: str) -> str:
        return r"$\infty$" if text == "inf" else "".join(LATEX.get(c, c) for c in text)

    head, *body = [" & ".join(map(cell, row)) + r" \\" for row in rows]
    columns = "l" + "r" * (len(rows[0]) - 1)
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule", *body]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def _csv(rows: Sequence[Sequence[str]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue().rstrip("\n")


def aligned(table: Sequence[Sequence[str]], remarks: Sequence[str] = ()) -> str:
    """Return rows as columns of equal width, the first to the left and the others to the right.

    Then remarks.
    """
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    lines = [
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True)),
            ]
        )
        for row in table
    ]
    rule = "-" * len(lines[0])
    lines = (
        [f"{line}  {remark}".rstrip() for line, remark in zip(lines, remarks, strict=True)]
        if remarks
        else lines
    )
    return "\n".join([lines[0], rule, *lines[1:]])


def in_units(values: Sequence[float]) -> str:
    """Return a mean as it is, with the standard deviation where there is more than one value.

    >>> in_units([2.5]), in_units([1.0, 3.0]), in_units([])
    ('2.5', '2 ± 1.4', '-')
    """
    if not values:
        return "-"
    more = f" ± {np.std(values, ddof=1):.2g}" if len(values) > 1 else ""
    return f"{np.mean(values):.4g}{more}"


def spread(values: Sequence[float]) -> str:
    """Return a mean in percent, with the standard deviation where there is more than one value."""
    percent = 100 * np.array(values)
    if np.isnan(percent).all():
        return "-"
    return f"{percent.mean():.1f}" + (f" ± {percent.std(ddof=1):.1f}" if len(values) > 1 else "")
