"""From the ledger to epsilon."""

from __future__ import annotations

import math

from tacit.core import Ledger, NonPrivate, Nothing, Observer, Unit

UNITS: tuple[Unit, ...] = ("example", "client")
OBSERVERS: tuple[Observer, ...] = ("server", "clients", "public")


def epsilon(ledger: Ledger, *, unit: Unit, observer: Observer, delta: float) -> float:
    """Return epsilon for one ``unit`` as ``observer`` sees it, for the worst owner. Silence is infinity."""
    if len(ledger) == 0:
        return math.inf
    for line in ledger:
        if not isinstance(line.event, NonPrivate | Nothing):
            raise TypeError(f"no accountant for {type(line.event).__name__}")
        if isinstance(line.event, NonPrivate):
            return math.inf
    return 0.0


def reason(ledger: Ledger) -> str:
    """Return one sentence that says why epsilon is what it is."""
    if len(ledger) == 0:
        return "nothing was written to the ledger, and silence is no guarantee"
    whys = sorted({line.event.why for line in ledger if isinstance(line.event, NonPrivate)})
    return "; ".join(whys) if whys else "nothing about the data left any client"
