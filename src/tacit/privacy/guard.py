"""The budget: one rule for what may still be released, at every client and every coordinator."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tacit.core import Ledger, Observer, Unit
from tacit.privacy.accounting import approve


@dataclass(frozen=True)
class Budget:
    """The epsilon that a run may spend: of which unit, against whom, at which delta."""

    epsilon: float = math.inf
    unit: Unit = "example"
    observer: Observer = "server"
    delta: float = 1e-5

    def check(self, ledger: Ledger) -> None:
        """Refuse a ledger that has passed the budget, by :class:`tacit.core.BudgetReached`."""
        approve(
            ledger,
            budget=self.epsilon,
            unit=self.unit,
            observer=self.observer,
            delta=self.delta,
        )

    def prepare(self) -> None:
        """Import what checks need, which takes seconds, for processes forked from this one."""
        if self.epsilon < math.inf:
            import dp_accounting.pld
            import dp_accounting.rdp  # noqa: F401

    def at_clients(self) -> Budget:
        """Return what a client can keep by itself: a budget against the server.

        Against others, what counts is what a mechanism of the server's makes of all replies.
        """
        return self if self.observer == "server" else replace(self, epsilon=math.inf)
