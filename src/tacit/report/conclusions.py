"""What is promised, in a sentence."""

from __future__ import annotations

import math

from tacit.core import Observer, Unit
from tacit.privacy import show_epsilon

AGAINST = {
    "server": "the server",
    "clients": "the other clients and the public",
    "public": "the public",
}


def guarantee(
    unit: Unit, observer: Observer, *, spent: float, replaced: float, delta: float
) -> str:
    """Say what is protected from whom, by how much and for which relation.

    Args:
        unit: What is protected.
        observer: From whom.
        spent: Epsilon if one unit is zeroed out.
        replaced: Epsilon if one unit is replaced.
        delta: Of both.
    """
    how = _relation(spent, replaced)
    return (
        f"eps {show_epsilon(spent)} for one {unit}{how} against {AGAINST[observer]}, "
        f"delta {delta:g}"
    )


def _relation(spent: float, replaced: float) -> str:
    """Name the relation that a figure is for; nothing and infinity are for any."""
    if not 0 < spent < math.inf:
        return ""
    return " zeroed out or replaced" if replaced <= spent else " zeroed out"
