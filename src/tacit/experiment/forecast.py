"""What a method will have spent when it is done, before it runs.

Its ledger, from public facts only.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

from tacit import privacy
from tacit.core import Ledger, Release
from tacit.experiment.calibration import participations
from tacit.experiment.config import Experiment
from tacit.experiment.plan import Plan


def predicted(experiment: Experiment, plan: Plan | None = None) -> Ledger:
    """Return the ledger that an experiment will write if no reply is lost, no round done twice."""
    plan = plan or Plan.of(experiment)
    method, federation = plan.experiment.method, plan.federation
    times = participations(
        federation.everyone,
        method.per_round,
        method.rounds,
        plan.experiment.setting.seed,
    )
    return Ledger(method.releases(federation.sizes(), times, plan.experiment.setting.delta))


def over_rounds(experiment: Experiment, points: int = 30) -> list[tuple[int, float]]:
    """Return (rounds, epsilon) for growing numbers of rounds of the same noise.

    How the cost adds up.
    """
    plan = Plan.of(experiment)
    ledger, rounds = predicted(experiment, plan), plan.experiment.method.rounds
    unit, observer = plan.experiment.method.protects
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
    """Return a ledger cut off after a share of each owner's rounds, numbered as it takes part."""
    last: dict[str, int] = {}
    for line in ledger:
        last[line.owner] = max(last.get(line.owner, 0), line.rounds[-1][1])
    left = [before(line, math.ceil((last[line.owner] + 1) * share)) for line in ledger]
    return Ledger(line for line in left if line.rounds)


def before(line: Release, end: int) -> Release:
    """Return a predicted line as it is after so many of its owner's rounds."""
    return replace(line, rounds=tuple((a, min(b, end - 1)) for a, b in line.rounds if a < end))
