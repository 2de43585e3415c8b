"""What a cell of a paper's table or figure shows of a finished run."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from tacit.core import Json
from tacit.experiment.attacked import attack_on
from tacit.experiment.formulas import FORMULAS
from tacit.experiment.result import Run
from tacit.papers.published import Cell

NOTHING = float("nan")
TIMES = ("seconds", "pre-processing")


def shows(cell: Cell, run: Run) -> bool:
    """Tell whether a run can show what a cell is about: no time where another run did the work."""
    return not (cell.measure in TIMES and run.recalled)


def value_of(cell: Cell, run: Run) -> float:
    """Return what a run gave for a cell; nan: nothing."""
    if cell.measure == "at target":
        return _at_target(cell, run)
    if not run.rounds:  # it diverged in its first one, say
        return NOTHING
    return _OF_RUNS[cell.measure](run)


def by_formula(cell: Cell) -> float:
    """Return the value of a cell that no run is needed for."""
    return FORMULAS[cell.line.formula](**{**cell.line.given, **cell.column.given})


def curve_of(cell: Cell, run: Run) -> list[tuple[int, float]]:
    """Return what a curve over rounds shows, in percent."""
    return [(line["round"], _percent(line, cell.measure)) for line in _evaluated(run)]


def _evaluated(run: Run) -> list[Json]:
    return [line for line in run.metrics if line["accuracy"] is not None]


def _percent(line: Json, measure: str) -> float:
    value = line["own_data"].get("mean") if measure == "own data" else line["accuracy"]
    return NOTHING if value is None else 100 * float(value)


def _last(run: Run, measure: str) -> float:
    return _percent(run.final, measure) if run.final else NOTHING


def _pseudo_labels(run: Run) -> float:
    return 100 * float(run.final["measured"]["pseudo-labels"]) if run.final else NOTHING


def _traffic(run: Run) -> float:
    """Return the GB of one client that takes part in every round, both ways."""
    up, down = (sum(line[key] for line in run.metrics) for key in ("bytes_up", "bytes_down"))
    return run.client_gigabytes_up * (1 + down / up) if up else NOTHING


def seconds_in(run: Run) -> float:
    """Return how long a run's rounds took, all together."""
    return float(sum(line["seconds"] for line in run.metrics))


def _attack(run: Run) -> float:
    return 100 * attack_on(run).advantage if run.final else NOTHING


def _pre_processing(run: Run) -> float:
    """Return the time before the first round in percent of all rounds.

    The first line has both; what the others take tells them apart.
    """
    seconds = [float(line["seconds"]) for line in run.metrics]
    if len(seconds) < 2:
        return NOTHING
    before = max(0.0, seconds[0] - statistics.median(seconds[1:]))
    return 100 * before / (sum(seconds) - before)


def _at_target(cell: Cell, run: Run) -> float:
    """Return the claimed epsilon after the first evaluated round that reaches the target."""
    given: dict[str, Any] = {**cell.line.given, **cell.column.given}
    target = 100 * given.pop("target")
    reached = [line["round"] for line in _evaluated(run) if _percent(line, "own data") >= target]
    return FORMULAS[cell.line.formula](t=reached[0], **given) if reached else NOTHING


_OF_RUNS: dict[str, Callable[[Run], float]] = {
    "accuracy": lambda run: _last(run, "accuracy"),
    "own data": lambda run: _last(run, "own data"),
    "pseudo-labels": _pseudo_labels,
    "uplink": lambda run: run.client_gigabytes_up,
    "traffic": _traffic,
    "seconds": seconds_in,
    "pre-processing": _pre_processing,
    "attack": _attack,
}
