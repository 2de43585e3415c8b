"""The figures of a report as Vega-Lite specifications, each with the table it is drawn from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tacit.core import Json
from tacit.experiment.metrics import WORDS
from tacit.privacy import show_epsilon
from tacit.report.holdings import Holdings
from tacit.report.reading import RunFacts

Row = list[Any]  # of a table: what stands in a column is known to whoever fills it
POINTS = 1000  # of one curve; longer ones are thinned out evenly
CLIENTS = 100  # shown one by one
METRICS = WORDS | {"accuracy": "test accuracy", "auroc": "AUROC, one against rest"}


def _colour(runs: Sequence[RunFacts]) -> Json:
    """Return how methods are told apart: each has the same colour in all figures."""
    labels = list(dict.fromkeys(run.label for run in runs))
    return {
        "field": "method",
        "type": "nominal",
        "scale": {"domain": labels, "scheme": "tableau10" if len(labels) <= 10 else "tableau20"},
        "legend": {"orient": "bottom", "columns": 2},
    }


@dataclass(frozen=True)
class Figure:
    """One figure: a specification without data, and the data as a table."""

    name: str  # of the files that it is downloaded as
    title: str
    note: str
    columns: list[str]
    rows: list[Row]
    spec: Json

    def plain(self) -> Json:
        """Return what goes into the page."""
        rows = [[_short(value) for value in row] for row in self.rows]
        return {"name": self.name, "columns": self.columns, "rows": rows, "spec": self.spec}


def _short(value: object) -> object:
    """Return a number with as many digits as a picture shows; JSON has no infinity."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else None


def figures(
    runs: Sequence[RunFacts], holdings: Holdings | None = None, metric: str = "accuracy"
) -> list[Figure]:
    """Return all figures that the runs have data for."""
    made = [
        over_rounds(runs, metric),
        loss(runs),
        epsilon(runs),
        trade_off(runs, metric),
        *([who_has_what(holdings)] if holdings else []),
        per_client(runs),
        per_class(runs),
        *confusion(runs),
        traffic(runs),
        failures(runs),
    ]
    return [figure for figure in made if figure.rows]


def over_rounds(runs: Sequence[RunFacts], metric: str) -> Figure:
    """Return the chosen metric over rounds."""
    rows = _curves(runs, lambda line: line.get(metric))
    personal = sorted({run.label for run in runs if run.final.get("personal")})
    own = f" Each client's own model on its own test data: {', '.join(personal)}." * bool(personal)
    word = METRICS[metric]
    return Figure(
        metric,
        f"{word[0].upper()}{word[1:]} over rounds",
        f"One line a run; repeats have the same colour.{own}",
        ["run", "method", "round", metric],
        rows,
        _lines(runs, metric, word, rows, percent=metric != "calibration_error"),
    )


def loss(runs: Sequence[RunFacts]) -> Figure:
    """Return the loss over rounds."""
    rows = _curves(runs, lambda line: line.get("loss"))
    columns = ["run", "method", "round", "loss"]
    numbers = sorted({run.label for run in runs if run.errors})
    of = f" Of numbers the mean squared error, as scaled: {', '.join(numbers)}." * bool(numbers)
    note = f"Mean cross-entropy on test data.{of}"
    return Figure(
        "loss", "Loss over rounds", note, columns, rows, _lines(runs, "loss", "test loss", rows)
    )


def epsilon(runs: Sequence[RunFacts]) -> Figure:
    """Return what was spent over rounds."""
    rows = _curves(runs, lambda line: line.get("spent"))
    without = sorted({run.label for run in runs if math.isinf(run.spent)})
    none = f" Infinite, so not drawn: {', '.join(without)}." * bool(without)
    note = f"Of what each method protects, zeroed out; on the way an upper bound.{none}"
    columns = ["run", "method", "round", "epsilon"]
    spec = _lines(runs, "epsilon", "epsilon", rows)
    return Figure("epsilon", "Epsilon over rounds", note, columns, rows, spec)


def _curves(runs: Sequence[RunFacts], value: Callable[[Json], object]) -> list[Row]:
    """Return a row for each round that has a finite value."""
    rows = []
    for run in runs:
        mine = [
            [run.folder.name, run.label, line["round"], float(v)]
            for line in run.lines
            if isinstance(v := value(line), int | float) and math.isfinite(v)
        ]
        rows += _thinned(mine)
    return rows


def _thinned(rows: list[Row]) -> list[Row]:
    """Return at most so many rows, the first and the last among them."""
    if len(rows) <= POINTS:
        return rows
    return [rows[round(k * (len(rows) - 1) / (POINTS - 1))] for k in range(POINTS)]


def _lines(
    runs: Sequence[RunFacts],
    field: str,
    title: str,
    rows: Sequence[Row],
    *,
    percent: bool = False,
) -> Json:
    longest = max((row[2] for row in rows), default=0)
    scale = {"domain": [0, 1]} if percent else {"zero": field == "epsilon"}
    axis = {"format": "%"} if percent else {}
    return {
        "mark": {"type": "line", "point": longest <= 60, "strokeWidth": 2},
        "encoding": {
            "x": {
                "field": "round",
                "type": "quantitative",
                "axis": {"tickMinStep": 1, "format": "d"},
            },
            "y": {
                "field": field,
                "type": "quantitative",
                "title": title,
                "scale": scale,
                "axis": axis,
            },
            "color": _colour(runs),
            "detail": {"field": "run"},
            "tooltip": [
                {"field": "run"},
                {"field": "round"},
                {"field": field, "type": "quantitative", "format": ".2%" if percent else ".4g"},
            ],
        },
        "height": 260,
    }


def trade_off(runs: Sequence[RunFacts], metric: str) -> Figure:
    """Return privacy against utility, a point for each run."""
    rows = [
        [run.folder.name, run.label, run.spent, show_epsilon(run.spent), run.final.get(metric)]
        for run in runs
        if isinstance(run.final.get(metric), int | float)
    ]
    order = [text for _, text in sorted({(row[2], row[3]) for row in rows})]
    spec = {
        "mark": {"type": "point", "filled": True, "size": 90, "opacity": 0.85},
        "encoding": {
            "x": {
                "field": "epsilon",
                "type": "ordinal",
                "sort": list(dict.fromkeys(order)),
                "title": "epsilon of what the method protects",
                "axis": {"labelAngle": 0},
            },
            "y": {
                "field": metric,
                "type": "quantitative",
                "title": METRICS[metric],
                "scale": {"zero": False},
                "axis": {"format": ".0%"},
            },
            "color": _colour(runs),
            "shape": {"field": "method", "type": "nominal", "legend": None},
            "tooltip": [{"field": "run"}, {"field": "epsilon"}, {"field": metric, "format": ".2%"}],
        },
        "height": 260,
    }
    columns = ["run", "method", "epsilon", metric]
    shown = [[run, label, text, value] for run, label, _, text, value in rows]
    note = "Up and to the left is better; inf is no guarantee. Steps of the axis are not to scale."
    return Figure("trade-off", "Privacy against utility", note, columns, shown, spec)


def who_has_what(holdings: Holdings) -> Figure:
    """Return how many training examples of each class each client holds."""
    rows = [
        [holdings.clients[i], holdings.classes[c], int(holdings.counts[i, c])]
        for i in range(min(len(holdings.clients), CLIENTS))
        for c in range(len(holdings.classes))
    ]
    more = len(holdings.clients) - CLIENTS
    note = f"{holdings.title}." + (f" The first {CLIENTS} of {CLIENTS + more}." if more > 0 else "")
    spec = _heat("client", "class", "examples", holdings.clients[:CLIENTS], holdings.classes)
    return Figure("split", "Who has what", note, ["client", "class", "examples"], rows, spec)


def _heat(
    x: str, y: str, value: str, across: Sequence[str], up: Sequence[str], form: str = ",d"
) -> Json:
    """Return a heat map, its axes in the given order."""
    upright = sum(map(len, across)) <= 40  # letters that have room beside each other
    return {
        "mark": {"type": "rect", "tooltip": True},
        "encoding": {
            "x": {
                "field": x,
                "type": "ordinal",
                "sort": list(across),
                "axis": {"labelAngle": 0 if upright else -90, "labelOverlap": True},
            },
            "y": {
                "field": y,
                "type": "ordinal",
                "sort": list(up),
                "axis": {"labelOverlap": True},
            },
            "color": {
                "field": value,
                "type": "quantitative",
                "scale": {"scheme": "blues"},
                "legend": {"format": form, "orient": "bottom", "gradientLength": 160},
            },
            "tooltip": [{"field": x}, {"field": y}, {"field": value, "format": form}],
        },
        "height": min(420, 24 * max(3, len(up))),
    }


def per_client(runs: Sequence[RunFacts]) -> Figure:
    """Return every client's accuracy on its own test data."""
    rows: list[Row] = [
        [run.label, run.folder.name, run.named(str(client)), float(accuracy)]
        for run in runs
        if isinstance(each := run.final.get("per_client"), dict)
        for client, accuracy in each.items()
        if isinstance(accuracy, int | float)
    ]
    worst = min(rows, key=lambda row: row[3], default=None)
    said = f" Worst: {worst[2]} in {worst[1]}, {100 * worst[3]:.1f} %." if worst else ""
    spec = {
        "mark": {"type": "tick", "thickness": 3, "tooltip": True},
        "encoding": {
            "x": {
                "field": "accuracy",
                "type": "quantitative",
                "axis": {"format": "%"},
                "scale": {"domain": [0, 1]},
            },
            "y": {"field": "method", "type": "nominal", "title": None},
            "color": _colour(runs) | {"legend": None},
            "tooltip": [
                {"field": "client"},
                {"field": "run"},
                {"field": "accuracy", "format": ".2%"},
            ],
        },
        "height": {"step": 28},
    }
    title = "Accuracy of single clients"
    note = f"A mark for each client, on its own test data, when last evaluated.{said}"
    return Figure("clients", title, note, ["method", "run", "client", "accuracy"], rows, spec)


def per_class(runs: Sequence[RunFacts]) -> Figure:
    """Return the accuracy of each class, the mean over repeats."""
    found: dict[tuple[str, str], list[float]] = {}
    classes: dict[str, None] = {}  # in their order
    for run in runs:
        labels = run.final.get("per_label") or {}
        each = list(labels.values()) or run.final.get("per_class") or []
        names = (list(labels) or run.classes(len(each)))[:CLIENTS]
        classes |= dict.fromkeys(names)
        for name, accuracy in zip(names, each, strict=False):
            if accuracy is not None:
                found.setdefault((run.label, name), []).append(float(accuracy))
    rows: list[Row] = [[label, name, float(np.mean(each))] for (label, name), each in found.items()]
    spec = _heat(
        "class",
        "method",
        "accuracy",
        list(classes),
        list(dict.fromkeys(row[0] for row in rows)),
        ".0%",
    )
    note = "When last evaluated, the mean over repeats; darker is better."
    return Figure(
        "classes",
        "Accuracy of each class or label",
        note,
        ["method", "class", "accuracy"],
        rows,
        spec,
    )


def confusion(runs: Sequence[RunFacts], most: int = 6) -> Iterable[Figure]:
    """Yield who is taken for whom, for the first run of each label."""
    seen: set[str] = set()
    for run in runs:
        table = run.final.get("confusion")
        if run.label in seen or not isinstance(table, list) or len(seen) >= most:
            continue
        seen.add(run.label)
        names = run.classes(len(table))
        rows = [
            [names[true], names[said], int(count)]
            for true, row in enumerate(table)
            for said, count in enumerate(row)
        ]
        spec = _heat("predicted", "true class", "examples", names, names)
        note = f"{run.folder.name}: test examples by their class and by what the model says."
        title = f"Confusion matrix of {run.label}"
        columns = ["true class", "predicted", "examples"]
        yield Figure(f"confusion-{len(seen)}", title, note, columns, rows, spec)


def traffic(runs: Sequence[RunFacts]) -> Figure:
    """Return what went up and down in all, the mean over repeats."""
    found: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        for way, key in (("up", "bytes_up"), ("down", "bytes_down")):
            total = sum(line.get(key) or 0 for line in run.lines)
            found.setdefault((run.label, way), []).append(total / 1e6)
    rows = [[label, way, float(np.mean(each))] for (label, way), each in found.items()]
    spec = {
        "mark": {"type": "bar", "tooltip": True},
        "encoding": {
            "x": {"field": "megabytes", "type": "quantitative"},
            "y": {"field": "method", "type": "nominal", "title": None},
            "yOffset": {"field": "direction", "sort": ["up", "down"]},
            "color": {
                "field": "direction",
                "type": "nominal",
                "sort": ["up", "down"],
                "legend": {"orient": "bottom"},
            },
        },
        "height": {"step": 14},
    }
    note = "All messages as they were packed: up from the clients, down from the server."
    columns = ["method", "direction", "megabytes"]
    return Figure("traffic", "Uplink and downlink", note, columns, rows, spec)


def failures(runs: Sequence[RunFacts]) -> Figure:
    """Return how many clients failed in each round, if any did."""
    rows = [
        [run.folder.name, run.label, line["round"], len(failed)]
        for run in runs
        for line in run.lines
        if isinstance(failed := line.get("failed"), dict)
    ]
    spec = {
        "mark": {"type": "bar", "tooltip": True},
        "encoding": {
            "x": {
                "field": "round",
                "type": "quantitative",
                "scale": {"domain": [0, max((run.done for run in runs), default=0) + 1]},
                "axis": {"tickMinStep": 1, "format": "d"},
            },
            "y": {
                "field": "failed",
                "type": "quantitative",
                "axis": {"tickMinStep": 1, "format": "d"},
            },
            "color": _colour(runs),
        },
        "height": 200,
    }
    note = "Clients whose reply did not come, or was refused."
    columns = ["run", "method", "round", "failed"]
    return Figure("failures", "Failures by round", note, columns, rows, spec)
