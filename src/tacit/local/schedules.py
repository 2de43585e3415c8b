"""How the step size changes from round to round: a public rule, which no data decide."""

from __future__ import annotations

import math

from tacit.core import BadInput, check

WORDS = "constant, cosine:N, linear:N, warmup:N, step:N:FACTOR, or several joined by +"


def factor(schedule: str, round: int) -> float:
    """Return what the step size is multiplied by in a round, counted from 0; it is above 0.

    Args:
        schedule: ``cosine:N`` and ``linear:N`` fall over N rounds and then stay, ``warmup:N`` rises
            to 1 over N rounds, ``step:N:F`` multiplies by F every N rounds
        round: of the run

    >>> [round(factor("linear:4", t), 2) for t in range(6)]
    [1.0, 0.75, 0.5, 0.25, 0.25, 0.25]
    >>> factor("warmup:2+step:3:0.1", 0), factor("warmup:2+step:3:0.1", 1)
    (0.5, 1.0)
    """
    return math.prod(_one(part, round) for part in schedule.split("+"))


def check_word(field: str, schedule: str) -> None:
    """Refuse what is not a schedule."""
    for part in schedule.split("+"):
        _parsed(part, f"{field} = {schedule!r}")


def _one(part: str, t: int) -> float:
    name, n, times = _parsed(part, f"schedule = {part!r}")
    if name == "cosine":
        return (1 + math.cos(math.pi * min(t, n - 1) / n)) / 2
    if name == "linear":
        return 1 - min(t, n - 1) / n
    if name == "warmup":
        return min(1.0, (t + 1) / n)
    return times ** (t // n) if name == "step" else 1.0


def _parsed(part: str, where: str) -> tuple[str, int, float]:
    """Return the name, the rounds and the factor of one part of a schedule."""
    name, *given = part.split(":")
    wanted = {"constant": 0, "cosine": 1, "linear": 1, "warmup": 1, "step": 2}.get(name)
    if wanted is None or len(given) != wanted:
        raise BadInput(f"{where}: allowed: {WORDS}")
    try:
        n, times = int(given[0]) if given else 1, float(given[1]) if wanted == 2 else 1.0
    except ValueError:
        raise BadInput(f"{where}: must be numbers; allowed: {WORDS}") from None
    check.number(f"{where}: N", n, at_least=1)
    check.number(f"{where}: FACTOR", times, above=0, at_most=1)
    return name, n, times
