"""What a site's answer must be before it counts: types, sizes and ranges of all that is in it.

A site may lie. What it says is held against what its task promises, against what it said of itself
when it joined, and against what the others send. Whatever does not fit costs that site the round.
"""

from __future__ import annotations

import json
import math
import sys
import typing
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from statistics import median_low
from typing import Any

import torch
from torch import Tensor

from tacit.codec import Blob, unpack
from tacit.compress.replies import Small
from tacit.core import (
    BadInput,
    Call,
    ClientId,
    Event,
    Gaussian,
    Json,
    Owner,
    Params,
    Release,
    Released,
    Sampling,
    Task,
    check,
)
from tacit.core.schema import check_value, leaves
from tacit.engines.facts import Facts
from tacit.engines.messages import LONGEST_ANSWER, Answer, Head, check_finite, in_parts
from tacit.engines.store import from_json, to_json

MOST_LINES = 2000  # of one ledger
MOST_STEPS = 10**7  # releases of one line in one round
MOST_WORDS = 300  # characters of what a line is about
LARGEST = 1e15  # of any number that is not a part of an update
MOST_LOSS = 1e6  # of one test example
TIMES = 10.0  # the median norm: what an update may have, where nothing else is said
EVENTS: tuple[type, ...] = typing.get_args(Event)
# what an answer may consist of besides what its task promises
ALWAYS = frozenset({Answer, Release, Sampling, Released, Small, *EVENTS})


def read_answer(blob: Blob, call: Call[object]) -> Any:
    """Rebuild an answer to a call: nothing but what its task sends and the ledger is built."""
    return unpack(blob, longest=LONGEST_ANSWER, only=ALWAYS | sendable(call.task))


@cache
def sendable(task: str) -> frozenset[type]:
    """Return the dataclasses that a task sends; all of its module, where it does not say."""
    promised = promised_by(task)
    if promised is not None:
        return frozenset(_within(promised))
    module = vars(sys.modules[Task.registry[task].fn.__module__])
    return frozenset(c for c in module.values() if isinstance(c, type) and is_dataclass(c))


def _within(kind: object) -> Iterator[type]:
    """Find the dataclasses in a type."""
    if isinstance(kind, type) and is_dataclass(kind):
        yield kind
        for inner in typing.get_type_hints(kind).values():
            yield from _within(inner)
    for arg in typing.get_args(kind):
        yield from _within(arg)


def promised_by(task: str) -> type | None:
    """Return the dataclass that a task says it sends."""
    said = typing.get_type_hints(Task.registry[task].fn).get("return")
    (what,) = typing.get_args(said) or (None,)
    return what if isinstance(what, type) and is_dataclass(what) else None


def check_answer(
    answer: Answer, head: Head, call: Call[object], known: Known | None = None
) -> None:
    """Refuse an answer that is not what the task promises, or not of this site.

    Args:
        answer: what came back, expanded if it was compressed
        head: who was asked, and in which round
        call: what was asked
        known: what the site has said of itself; None: nothing is known
    """
    check_ledger(answer, head, head.round)
    check_sent(answer, head, call, known)


def check_sent(answer: Answer, head: Head, call: Call[object], known: Known | None) -> None:
    """Refuse what a site sends, its ledger apart."""
    promised = promised_by(call.task)
    if promised is not None:
        if type(answer.sent) is not promised:
            raise BadInput(
                f"message: a {type(answer.sent).__name__}: must be a {promised.__name__}"
            )
        check_value(answer.sent, promised, "message")
    check_finite(answer.sent, head)
    for _, name, value in leaves(answer.sent):
        if isinstance(value, int | float) and not isinstance(value, bool):
            check.number(name, value, at_least=-LARGEST, at_most=LARGEST)
    if known is not None:
        known.check(answer.sent, call)


def check_ledger(answer: object, head: Head, last: int) -> list[Release]:
    """Return what a site says that it has released, if that can be so.

    Args:
        answer: what came back
        head: who was asked
        last: the last round that this site may have been asked in
    """
    if not isinstance(answer, Answer) or not isinstance(answer.ledger, list):
        raise BadInput("message: not an answer")
    if not isinstance(answer.keeps, bool):
        raise BadInput("message: keeps is not a truth value")
    check.number("ledger", len(answer.ledger), at_most=MOST_LINES)
    for line in answer.ledger:
        check_line(line, head, last)
    return answer.ledger


def check_line(line: object, head: Head, last: int) -> None:
    """Refuse a ledger line that no honest site has at this time."""
    mine = (head.client, Owner(head.client, tests=True).id)
    if not isinstance(line, Release) or line.owner not in mine:
        raise BadInput("message: a ledger line that is not this site's")
    # with seeded noise, attempts have the number of their task in front
    check.number("attempt", line.attempt, at_least=0, below=2.0**80, whole=True)
    check_value(replace(line, attempt=0), Release, "ledger")
    if line.covers is not None or line.observer != "server":
        raise BadInput("ledger: a line of the server's, from a site")
    check.number("ledger.what", len(line.what), at_most=MOST_WORDS)
    check.number("ledger.steps", line.steps, at_least=1, at_most=MOST_STEPS)
    _check_rounds(line, last)
    check.number("ledger.q", line.sampling.q, above=0, at_most=1)
    for name, value in vars(line.event).items():
        if isinstance(value, int | float) and value != 0:
            check.number(f"ledger.{name}", value, at_least=1 / LARGEST, at_most=LARGEST)
    if line.sampling.law != "everyone" and not isinstance(line.event, Gaussian):
        raise BadInput(f"ledger: no accountant for a subsampled {type(line.event).__name__}")
    _check_readable(line)


def _check_readable(line: Release) -> None:
    """Refuse a line that could be written and not be read again: it would end every resume."""
    try:
        same = from_json(json.loads(json.dumps(to_json(line)))) == line
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise BadInput(f"ledger: a line that cannot be read ({e})") from None
    if not same:
        raise BadInput("ledger: a line that is read as another one")


def _check_rounds(line: Release, now: int) -> None:
    """Refuse rounds that are not in order, or that have not been yet."""
    last = -2
    for a, b in line.rounds:
        if not last + 1 < a <= b <= now:
            raise BadInput(f"ledger: rounds must be in order, from 0 to {now}")
        last = b
    if not line.rounds:
        raise BadInput("ledger: a line of no round")


@dataclass(frozen=True)
class Known:
    """What a site said of itself when it joined, and what it was given since."""

    facts: Facts
    pools: tuple[int, ...] = ()  # how many examples it may have, with those that it was sent

    def check(self, sent: Any, call: Call[object]) -> None:
        """Refuse a number of examples, labels or counts that this site cannot have."""
        values = {f.name: getattr(sent, f.name) for f in fields(sent)}
        if Task.registry[call.task].at == "measure":
            self._check_counts(values)
            return
        n = values.get("n")
        if isinstance(n, int):
            self._check_size(n, exactly=Task.registry[call.task].built_in)
        for value in (v.value if isinstance(v, Released) else v for v in [values.get("y")]):
            if isinstance(value, Tensor):
                self._check_labels(value)

    def _check_size(self, n: int, *, exactly: bool) -> None:
        sizes = self.pools or (self.facts.examples,)
        if (n not in sizes) if exactly else not 0 <= n <= max(sizes):
            said = " or ".join(f"{size:,}" for size in sorted(set(sizes))[-3:])
            raise BadInput(f"n = {n:,}: this site has registered with {said} examples")

    def _check_labels(self, y: Tensor) -> None:
        most = len(self.facts.classes) - 1
        if y.dtype != torch.int64 or y.dim() != 1 or bool(((y < 0) | (y > most)).any()):
            raise BadInput(f"y: labels must be whole numbers from 0 to {most}")

    def _check_counts(self, tally: Json) -> None:
        """Refuse counts of right and wrong that are not of this site's test examples."""
        right, wrong, loss = (tally.get(name) for name in ("right", "wrong", "loss"))
        if not isinstance(right, list) or not isinstance(wrong, list):
            return
        if not len(right) == len(wrong) == len(self.facts.classes):
            raise BadInput(f"counts: must be of {len(self.facts.classes)} classes")
        if loss is None:  # noisy: any whole numbers
            return
        check.number("loss", loss, at_least=0, at_most=MOST_LOSS * max(1, self.facts.tests))
        if min(*right, *wrong) < 0 or sum(right) + sum(wrong) != self.facts.tests:
            raise BadInput(
                f"counts: {sum(right) + sum(wrong):,} in all, but this site has registered with "
                f"{self.facts.tests:,} test examples"
            )


def parts_of(o: object, path: str = "") -> Iterator[tuple[str, Params | Tensor]]:
    """Find all points of parameter space and all tensors in an object, with their places."""
    if isinstance(o, Params | Tensor):
        yield path, o
    elif isinstance(o, Mapping):
        for k, v in o.items():
            yield from parts_of(v, f"{path}.{k}")
    elif isinstance(o, list | tuple):
        for v in o:
            yield from parts_of(v, path)
    elif is_dataclass(o) and not isinstance(o, type):
        for f in fields(o):
            yield from parts_of(getattr(o, f.name), f"{path}.{f.name}".lstrip("."))


def points(o: object) -> Iterator[Params]:
    """Find all points of parameter space in an object."""
    return (part for _, part in parts_of(o) if isinstance(part, Params))


Norms = Mapping[str, float]  # of the updates in an answer, by their place in it


def norms_of(sent: object, call: Call[object]) -> dict[str, float]:
    """Return the norms of updates, which are what has the names of a point that was sent.

    Every other number has a bound of its own.
    """
    known = [x.keys() for x in points(call.args)]
    found: dict[str, float] = {}
    for path, part in parts_of(sent):
        if isinstance(part, Params) and part.keys() in known:
            found[path] = max(found.get(path, 0.0), length(part))
        else:
            _check_size(path, part)
    return found


def length(x: Params) -> float:
    """Return the norm, up to rounding, without a copy of the whole point in double precision."""
    parts = [Params({"": part}).norm() for v in x.values() for part in in_parts(v)]
    return math.hypot(*parts)


def _check_size(path: str, part: Params | Tensor) -> None:
    for v in part.values() if isinstance(part, Params) else [part]:
        if v.is_complex():
            raise BadInput(f"{path}: complex numbers")
        if any(float(some.abs().max()) > LARGEST for some in in_parts(v) if len(some)):
            raise BadInput(f"{path}: a number above {LARGEST:g}")


def too_long(
    norms: Mapping[ClientId, Norms], call: Call[object], bound: float | None
) -> dict[ClientId, str]:
    """Return whose update is too long, and why.

    Args:
        norms: of each site's updates
        call: what was asked
        bound: the largest norm of an update; None: ten times the median of this round's, and never
            less than the norm of the point that was sent
    """
    start = max((length(x) for x in points(call.args)), default=0.0)
    why: dict[ClientId, str] = {}
    for place in sorted({place for each in norms.values() for place in each}):
        there = {i: each[place] for i, each in norms.items() if place in each}
        most = max(TIMES * median_low(there.values()), start) if bound is None else bound
        said = f"{most:.3g}" if bound is not None else f"{most:.3g}, by the median of this round"
        for i, norm in there.items():
            if not norm <= most:
                why[i] = f"{place} has norm {norm:.3g}: must be at most {said}"
    return why


@dataclass(frozen=True)
class Form:
    """What an answer looks like, without its numbers: those of all sites may not fit in memory."""

    shapes: tuple[object, ...]
    misfit: str  # why it is not of the call's shapes, if it is not

    @classmethod
    def of(cls, sent: object, call: Call[object]) -> Form:
        """Return the form of what a site sends."""
        kinds = (kind for place, part in parts_of(sent) for kind in _kinds(place, part))
        return cls(tuple(kinds), _misfit(sent, call))


def misfits(forms: Mapping[ClientId, Form]) -> dict[ClientId, str]:
    """Return whose tensors have not the shapes of most, and why.

    Of as many, those of the call are right.

    Updates are added up, so honest sites send tensors of the same shapes: the model's, or those of
    a compression.
    """
    votes = Counter(form.shapes for form in forms.values())
    right = max(forms, key=lambda i: (votes[forms[i].shapes], not forms[i].misfit, i), default=None)
    wrong = [i for i, f in forms.items() if right is not None and f.shapes != forms[right].shapes]
    return {i: forms[i].misfit or "message: not the shapes that most sites send" for i in wrong}


def _kinds(place: str, part: Params | Tensor) -> Iterator[tuple[object, ...]]:
    """Return what must be alike: the shape of parameters, of other tensors but for how many."""
    if isinstance(part, Tensor):
        yield place, part.dtype, tuple(part.shape[1:]), part.dim()
        return
    for k, v in part.items():
        yield k, tuple(v.shape), v.dtype


def _misfit(sent: object, call: Call[object]) -> str:
    try:
        for got in points(sent):
            for known in points(call.args):
                check_shapes(got, known)
    except BadInput as e:
        return str(e)
    return ""


def check_shapes(got: Params, known: Params) -> None:
    """Refuse tensors that bear the names of known ones without their shape and type."""
    shared = got.keys() & known.keys()
    if shared and got.keys() != known.keys():
        raise BadInput(f"message: parameters {sorted(got)[:3]}: must be {sorted(known)[:3]}")
    for k in shared:
        if got[k].shape != known[k].shape or got[k].dtype != known[k].dtype:
            raise BadInput(
                f"message: {k} has shape {tuple(got[k].shape)} and type {got[k].dtype}: "
                f"must be {tuple(known[k].shape)} and {known[k].dtype}"
            )
