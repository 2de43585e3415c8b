"""A line of metrics.jsonl: what each value must be so that a report can count with it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, TypeGuard

from tacit.core import Json
from tacit.experiment.metrics import WORDS
from tacit.experiment.rundir import restore

MOST = 1e15  # of a loss, of bytes, seconds and rounds; sums and charts stay finite


def plain_json(text: str) -> Any:
    """Return what JSON says; text that is nested without end is as wrong as any other."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def line_of(text: str) -> tuple[Json, list[str]]:
    """Return the line of a round, and the names of values that were left out as they make no sense.

    Raises:
        ValueError: if it is none, or lacks what every version wrote
    """
    line = restore(plain_json(text))
    if not isinstance(line, dict) or not all(key in line for key in NEEDED):
        raise ValueError("not the line of a round")
    wrong = [key for key, fits in KINDS.items() if key in line and not fits(line[key])]
    if any(key in NEEDED for key in wrong):
        raise ValueError("not the line of a round")
    return {key: value for key, value in line.items() if key not in wrong}, wrong


def number(value: object) -> TypeGuard[float]:
    """Tell whether a value is a number that a float can hold."""
    if isinstance(value, bool):
        return False
    return isinstance(value, float) or (isinstance(value, int) and abs(value) <= MOST)


def _share(value: object) -> bool:
    """Tell whether a value is between 0 and 1, or not known."""
    return value is None or (number(value) and (math.isnan(value) or 0 <= value <= 1))


def _amount(value: object) -> bool:
    return value is None or (number(value) and 0 <= value <= MOST)


def _loss(value: object) -> bool:
    return value is None or (number(value) and not MOST < abs(value) < math.inf)


def _epsilon(value: object) -> bool:
    return number(value) and value >= 0  # infinity is one, NaN is none


def _counts(value: object) -> bool:
    """Tell whether a value is a square table of whole numbers."""
    return isinstance(value, list) and all(
        isinstance(row, list)
        and len(row) == len(value)
        and all(isinstance(n, int) and _amount(n) for n in row)
        for row in value
    )


def _all(kind: type, fits: Callable[[object], bool]) -> Callable[[object], bool]:
    """Return a test of a list, or of a table by name, whose values all pass a test."""

    def each(value: object) -> bool:
        inside = list(value.values()) if isinstance(value, dict) else value
        return isinstance(value, kind) and isinstance(inside, list) and all(map(fits, inside))

    return each


def _is(kind: type) -> Callable[[object], bool]:
    return lambda value: isinstance(value, kind)


NEEDED = ("round", "accuracy", "epsilon")  # every version wrote them
KINDS: dict[str, Callable[[object], bool]] = {
    "round": lambda value: isinstance(value, int) and value is not True and _amount(value),
    "epsilon": _all(dict, _epsilon),
    "spent": _epsilon,
    "loss": _loss,
    "mse": _amount,
    "mae": _all(dict, _amount),
    "per_label": _all(dict, _share),
    **dict.fromkeys(WORDS, _share),
    "personal": _is(bool),
    "protects": _is(str),
    "failed": _is(dict),
    "per_class": _all(list, _share),
    "per_client": _all(dict, _share),
    "own_data": _all(dict, _share),
    "confusion": _counts,
    **dict.fromkeys(("bytes_up", "bytes_up_each", "bytes_down", "seconds"), _amount),
}
