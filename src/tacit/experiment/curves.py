"""Curves over rounds as a matplotlib figure, and results as a table of HTML, for notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.core import Json
from tacit.experiment.metrics import SQUARED, WORDS

if TYPE_CHECKING:
    from tacit.experiment.result import Run


def over_rounds(
    runs: Mapping[str, Sequence[Run]], title: str = "", metric: str = "accuracy"
) -> Any:
    """Return a figure of a metric over rounds, one line per name with a band of one deviation.

    Of numbers, which have no accuracy, it is the mean squared error.
    """
    from matplotlib.ticker import MaxNLocator

    from tacit.experiment.shown_figure import ShownFigure  # matplotlib takes a while

    if any(SQUARED in r.final for repeats in runs.values() for r in repeats):
        metric = SQUARED
    word, unit = axis_of(metric)
    figure = ShownFigure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.subplots()
    for label, repeats in runs.items():
        curves = [
            {m["round"]: m[metric] for m in r.metrics if m.get(metric) is not None} for r in repeats
        ]
        rounds = sorted(set.intersection(*(set(c) for c in curves)))
        table = unit * np.array([[c[t] for t in rounds] for c in curves])
        middle, spread = table.mean(0), table.std(0)
        # on the clients' own data, so not comparable: dashed
        personal = bool(repeats[0].final.get("personal"))
        (line,) = axes.plot(
            rounds,
            middle,
            label=label + " (own data)" * personal,
            linestyle="--" if personal else "-",
            marker="o" if len(rounds) < 30 else None,
            markersize=3,
        )
        axes.fill_between(
            rounds, middle - spread, middle + spread, color=line.get_color(), alpha=0.2, linewidth=0
        )
    top = 101 if unit == 100 else None
    axes.set(xlabel="round", ylabel=f"test {word}", ylim=(0, top), title=title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure


def axis_of(metric: str) -> tuple[str, int]:
    """Return what an axis is called, and what values are multiplied by: shares are in percent.

    >>> axis_of("accuracy"), axis_of("mse")
    (('accuracy (%)', 100), ('mse', 1))
    """
    return (SQUARED, 1) if metric == SQUARED else (f"{WORDS[metric]} (%)", 100)


def history(lines: Sequence[Json]) -> Any:
    """Return plain values by round: a frame where pandas is installed, else lists by name."""
    flat = [_flat(line) for line in lines]
    names = list(dict.fromkeys(name for line in flat for name in line))
    columns = {name: [line.get(name) for line in flat] for name in names}
    try:
        import pandas as pd
    except ImportError:
        return columns
    return pd.DataFrame(columns)


def _flat(line: Json) -> Json:
    """Return the numbers of a line, those of epsilon one by one."""
    plain = {k: v for k, v in line.items() if not isinstance(v, dict | list)}
    return plain | {f"epsilon {k}": v for k, v in line.get("epsilon", {}).items()}


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]], note: str = "") -> str:
    """Return a table for a notebook; whatever is in it is text."""
    cells = "".join(f"<th>{escape(word)}</th>" for word in head)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    said = f"<p>{escape(note)}</p>" if note else ""
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>{said}"
