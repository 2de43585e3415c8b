"""A run as it is read from its directory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit import privacy
from tacit.core import (
    BudgetReached,
    Ledger,
    Observer,
    Relation,
)
from tacit.experiment.config import Experiment
from tacit.experiment.rundir import RunDir


@dataclass(frozen=True)
class Run:
    """A finished (or stopped) run, read from its directory."""

    folder: Path

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One line per round."""
        return RunDir.open(self.folder).metrics()

    @property
    def final(self) -> dict[str, Any]:
        """The last evaluated line."""
        return next((line for line in reversed(self.metrics) if line["accuracy"] is not None), {})

    @property
    def rounds(self) -> int:
        """How many rounds are finished."""
        return max((line["round"] for line in self.metrics), default=0)

    @property
    def accuracy(self) -> float:
        """Accuracy after the last evaluated round, between 0 and 1; NaN if there is none."""
        return float(self.final.get("accuracy", float("nan")))

    @property
    def ledger(self) -> Ledger:
        """Every release so far, those of an unfinished round included."""
        return RunDir.open(self.folder).ledger()

    @property
    def epsilon(self) -> dict[str, float]:
        """Epsilon of all releases by unit and observer, such as ``example/server``.

        For one example zeroed out, or for one client replaced.
        """
        return privacy.overview(self.ledger, delta=self.experiment.setting.delta)

    @property
    def spent(self) -> float:
        """Epsilon of what the method protects, zeroed out: what its budget is compared with."""
        return self.costing()

    def costing(self, observer: Observer | None = None, relation: Relation = "zero-out") -> float:
        """Return the epsilon of what the method protects, against anybody and for any relation.

        For replacement an upper bound: it stands beside the certificate, and clients may be many.
        """
        unit, whom = self.experiment.method.protects
        return privacy.epsilon(
            self.ledger,
            unit=unit,
            observer=observer or whom,
            delta=self.experiment.setting.delta,
            relation=relation,
            quick=relation == "replace",
        )

    @property
    def groups(self) -> dict[str, dict[str, float]]:
        """Return how many clients a method's groups have and what they have spent, if it has any."""
        saved = RunDir.open(self.folder).checkpoint()
        lines = self.metrics
        if saved is None or not lines or "groups" not in lines[-1]:
            return {}
        return by_group(self.experiment, saved[0], self.ledger)

    @property
    def why(self) -> str:
        """Why the epsilon of what the method protects is what it is, in one sentence."""
        unit, observer = self.experiment.method.protects
        delta = self.experiment.setting.delta
        return privacy.reason(self.ledger, unit=unit, observer=observer, delta=delta)

    @property
    def experiment(self) -> Experiment:
        """What ran."""
        return RunDir.open(self.folder).experiment()


class Stopped(BudgetReached):
    """The budget has stopped a run, which can be read up to there."""

    def __init__(self, why: str, run: Run) -> None:
        super().__init__(why)
        self.run = run


def by_group(
    experiment: Experiment, s: Any, ledger: Ledger, *, quick: bool = False
) -> dict[str, dict[str, float]]:
    """Return, for the groups of clients that a method tells apart, their number and what they spent."""
    method = experiment.method
    delta = experiment.setting.delta
    if not method.grouped(s):
        return {}
    unit, observer = method.protects
    spent = privacy.by_owner(ledger, unit=unit, observer=observer, delta=delta, quick=quick)
    groups = {
        name: [spent.get(i, math.inf) for i in ids]
        for name, ids in method.grouped(s).items()
        if ids
    }
    return {name: {"clients": len(each), "epsilon": max(each)} for name, each in groups.items()}
