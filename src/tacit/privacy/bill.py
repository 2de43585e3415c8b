"""What a unit was charged for: mechanisms, as data, and how often each was used."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from tacit.core import Event, Gaussian, Laplace, NonPrivate, Pure, Relation, Release, Sampling

# one mechanism, and the relation its sensitivity is stated for
Part = tuple[Event, Sampling, str]
Bill = frozenset[tuple[Part, int]]
Costs = Sequence[tuple[Part, int]]  # the same, in order, without what costs nothing


def countable(line: Release) -> bool:
    """Tell whether a line says how many releases it stands for: whole numbers, rounds in order.

    A negative number would take off what others cost.
    """
    ends = [end for pair in line.rounds for end in pair]
    whole = all(isinstance(n, int) for n in (line.steps, *ends))
    return whole and line.steps >= 0 and all(first <= last for first, last in line.rounds)


def twice(stated: str, relation: Relation) -> bool:
    """Tell whether neighbours are twice as far apart as an event was stated for."""
    return stated == "swap" or (stated == "zero-out" and relation == "replace")


def finite(part: Part, relation: Relation) -> bool:
    """Tell whether a mechanism gives any guarantee.

    One stated for replacement gives none for zeroing out, and one stated for anything that is not
    known, or with what is no number or no sampling law, gives none at all.
    """
    event, sampling, stated = part
    if isinstance(event, NonPrivate) or (stated == "replace" and relation == "zero-out"):
        return False
    if stated not in ("zero-out", "replace", "either", "swap", "as is"):
        return False
    numbers = [*vars(event).values(), sampling.q]
    if not all(isinstance(value, float | int) and 0 < value < math.inf for value in numbers):
        return False
    return sampling.law in ("everyone", "poisson", "fixed") and sampling.q <= 1


def gaussian_mu(part: Part, relation: Relation) -> float:
    """Return the mu of one Gaussian release, as if everybody took part.

    Replacing is zeroing out and putting another in, so it moves a sum twice as far. So does leaving
    a unit out of a sample of fixed size: another one takes its place.
    """
    event, sampling, stated = part
    assert isinstance(event, Gaussian)
    far = twice(stated, relation) or sampling.law == "fixed"
    return (2.0 if far else 1.0) / event.z


def pure_epsilon(part: Part, relation: Relation) -> float:
    """Return the epsilon of one release with pure differential privacy."""
    event, _, stated = part
    assert isinstance(event, Laplace | Pure)
    alone = 1 / event.b if isinstance(event, Laplace) else event.epsilon
    return alone * (2.0 if twice(stated, relation) else 1.0)


def merged(paid: Costs, most: int) -> Costs:
    """Return parts that cost at least as much, at most ``most`` of them if need be and if possible.

    Noise is rounded down and sampling rates up, on a grid no coarser than need be, so that parts
    which hardly differ become one.
    """
    found = paid
    step = 1e-3
    while len(found) > most and step < 1:
        joined: Counter[Part] = Counter()
        for part, n in paid:
            joined[_worse(part, step)] += n
        found = list(joined.items())
        step = 2 * step
    return found


def _worse(part: Part, step: float) -> Part:
    """Return a part with its noise and its sampling rate rounded for the worse."""
    event, sampling, stated = part
    worse: Event = event
    if isinstance(event, Gaussian):
        worse = Gaussian(_down(event.z, step))
    elif isinstance(event, Laplace):
        worse = Laplace(_down(event.b, step))
    elif isinstance(event, Pure):
        worse = Pure(1 / _down(1 / event.epsilon, step))
    if sampling.law != "everyone":
        sampling = replace(sampling, q=min(1.0, 1 / _down(1 / sampling.q, step)))
    return worse, sampling, stated


def _down(value: float, step: float) -> float:
    """Return the next lower number on a geometric grid; a hair less, as logarithms are rounded."""
    return math.exp(step * math.floor(math.log(value) / step) - 1e-12)
