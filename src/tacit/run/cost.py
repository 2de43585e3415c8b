"""What a method will have spent when it is done, before it runs.

Its ledger, from public facts only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

from tacit import privacy
from tacit.core import Ledger, Release, unnoised
from tacit.methods import name_of
from tacit.run.conduct import Plan, participations, protects
from tacit.run.experiment import Experiment


def predicted(experiment: Experiment, plan: Plan | None = None) -> Ledger:
    """Return the ledger that an experiment will write, if no reply is lost and no round is done twice."""
    plan = plan or Plan.of(experiment)
    method, federation = plan.experiment.method, plan.federation
    times = participations(
        federation.everyone,
        getattr(method, "per_round", 0),
        method.rounds,
        plan.experiment.setting.seed,
    )
    if hasattr(method, "releases"):
        return Ledger(method.releases(federation.sizes(), times, plan.experiment.setting.delta))
    sgd = getattr(method, "sgd", None)
    lines = [
        line for c, n in federation.sizes().items() if sgd for line in sgd.lines(c, n, times[c])
    ]
    return Ledger(lines or [unnoised(name_of(method), c) for c in federation.everyone])


def over_rounds(experiment: Experiment, points: int = 30) -> list[tuple[int, float]]:
    """Return (rounds, epsilon) for growing numbers of rounds of the same noise.

    How the cost adds up.
    """
    plan = Plan.of(experiment)
    ledger, rounds = predicted(experiment, plan), plan.experiment.method.rounds
    unit, observer = protects(plan.experiment.method)
    marks = sorted({max(1, round(rounds * k / points)) for k in range(1, points + 1)})
    delta = plan.experiment.setting.delta
    return [
        (
            t,
            privacy.epsilon(
                _until(ledger, Fraction(t, rounds)),
                unit=unit,
                observer=observer,
                delta=delta,
                quick=True,
            ),
        )
        for t in marks
    ]


def _until(ledger: Ledger, share: Fraction) -> Ledger:
    """Return a ledger cut off after a share of each owner's rounds, which are numbered as the owner takes part."""
    last: dict[str, int] = {}
    for line in ledger:
        last[line.owner] = max(last.get(line.owner, 0), line.rounds[-1][1])
    left = [_before(line, math.ceil((last[line.owner] + 1) * share)) for line in ledger]
    return Ledger(line for line in left if line.rounds)


def _before(line: Release, end: int) -> Release:
    return replace(line, rounds=tuple((a, min(b, end - 1)) for a, b in line.rounds if a < end))


def claims(method: Any, sizes: Mapping[str, int], delta: float) -> list[tuple[str, float, str]]:
    """Return what a method's paper claims, as (accountant, epsilon, remark).

    Nothing here certifies.
    """
    found: list[tuple[str, float, str]] = (
        method.claims(sizes, delta) if hasattr(method, "claims") else []
    )
    return found
