"""Signs that training cannot work, or has not: one line each, with what to do about it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from tacit.core import Json
from tacit.data.examples import Dataset

LARGE = 100.0  # from which on numbers that a network sees are far from its scale
SCALED = "scale them to about -1..1, or state public ranges in a schema (`tacit data schema`)"


_said: ContextVar[set[str] | None] = ContextVar("said", default=None)


@contextmanager
def each_once() -> Iterator[None]:
    """Say nothing twice meanwhile: several runs are checked together, and again one by one."""
    before = _said.set(set())
    try:
        yield
    finally:
        _said.reset(before)


def warn_of(signs: Sequence[str]) -> None:
    """Say each on a line of its own, to whoever has the data."""
    said = _said.get()
    for sign in signs:
        if said is not None and sign in said:
            continue
        if said is not None:
            said.add(sign)
        print(f"warning: {sign}", file=sys.stderr, flush=True)  # noqa: T201


def of_data(dataset: Dataset) -> list[str]:
    """Return what is odd about data that somebody is about to train on."""
    found = []
    y, x = dataset.train.y, dataset.train.x
    if y.dim() == 1 and len(y) and not y.is_floating_point() and bool((y == y[0]).all()):
        name = dataset.classes[int(y[0])]
        found.append(
            f"all {len(y):,} training records are {name!r}: there is nothing to tell apart; "
            "is it the right label column?"
        )
    top = float(x.abs().max()) if x.is_floating_point() and x.numel() else 0.0
    if top > LARGE:
        found.append(f"inputs reach {top:.3g}, on which networks train badly: {SCALED}")
    return found


def answered(line: Json) -> list[int]:
    """Return the classes that a model has answered with, as far as a line of metrics tells."""
    if table := line.get("confusion"):
        return [c for c in range(len(table)) if any(row[c] for row in table)]
    shares = [(c, s) for c, s in enumerate(line.get("per_class", [])) if s is not None]
    good = [c for c, s in shares if s > 0]
    alone = len(shares) > 1 and len(good) == 1 and dict(shares)[good[0]] == 1
    return good if alone else []  # of others the counts of right and wrong do not tell


def of_answers(line: Json, classes: Sequence[str]) -> list[str]:
    """Return that a model gives the same answer to everything; nothing if it does not."""
    tested = [s for s in line.get("per_class", []) if s is not None]
    found = answered(line)
    if line.get("personal") or len(tested) < 2 or len(found) != 1:
        return []
    name = classes[found[0]] if found[0] < len(classes) else str(found[0])
    return [
        f"the model answers {name!r} to everything: it has learnt nothing else; try another step "
        "size (--sgd.lr), more rounds, less noise, or inputs that are scaled"
    ]


def by_class(line: Json, classes: Sequence[str]) -> str:
    """Return balanced accuracy and the class that fares worst, in words; "": not known."""
    shares = [(s, c) for c, s in enumerate(line.get("per_class", [])) if s is not None]
    if len(shares) < 2:
        return ""
    worst, at = min(shares)
    name = classes[at] if at < len(classes) else str(at)
    mean = line.get("balanced_accuracy", sum(s for s, _ in shares) / len(shares))
    return f"balanced accuracy {100 * mean:.2f}%, worst class {name!r} {100 * worst:.2f}%"
