"""Checks of settings: each refuses a value in one line, with field, value and what is allowed."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable

from tacit.core.errors import BadInput

LEAST_CLIP, MOST_CLIP = 1e-10, 1e10  # the smallest and the largest clipping norm


def number(
    field: str,
    value: float,
    *,
    at_least: float = -math.inf,
    above: float = -math.inf,
    at_most: float = math.inf,
    below: float = math.inf,
    whole: bool = False,
) -> None:
    """Refuse a number outside its range (or NaN) with a line that names field, value and range.

    >>> from tacit.core import check
    >>> check.number("lr", -1.0, above=0)
    Traceback (most recent call last):
    tacit.core.errors.BadInput: lr = -1.0: must be above 0
    """
    try:
        if (
            value >= at_least
            and value > above
            and value <= at_most
            and value < below
            and not (whole and value % 1)
        ):
            return
    except TypeError:
        raise BadInput(f"{field} = {value!r}: must be a number") from None
    bounds = [("at least", at_least), ("above", above), ("at most", at_most), ("below", below)]
    allowed = " and ".join(f"{word} {bound:g}" for word, bound in bounds if math.isfinite(bound))
    kind = "a whole number " if whole and value % 1 else "finite and " if math.isinf(value) else ""
    raise BadInput(f"{field} = {value}: must be {kind}{allowed or 'a number'}")


def clip(field: str, value: float) -> None:
    """Refuse a clipping norm, or another bound on a record, that arithmetic could not keep.

    Noise has to be added to what was clipped, in single precision: much smaller numbers vanish
    there, and much larger ones have no end.

    >>> from tacit.core import check
    >>> check.clip("sgd.clip", 1e-30)
    Traceback (most recent call last):
    tacit.core.errors.BadInput: sgd.clip = 1e-30: must be at least 1e-10 and at most 1e+10
    """
    number(field, value, above=0)
    number(field, value, at_least=LEAST_CLIP, at_most=MOST_CLIP)


def in_clip_range(value: float) -> float:
    """Return the nearest clipping norm that :func:`clip` lets through."""
    return min(max(value, LEAST_CLIP), MOST_CLIP)


def choice(field: str, value: str, allowed: Iterable[str]) -> None:
    """Refuse a word that is not one of ``allowed``, naming the nearest one.

    >>> from tacit.core import check
    >>> check.choice("method", "fedavgg", ["fedavg", "fedprox"])
    Traceback (most recent call last):
    tacit.core.errors.BadInput: method = 'fedavgg': did you mean 'fedavg'? Allowed: fedavg, fedprox
    """
    known = list(allowed)
    if value in known:
        return
    near = difflib.get_close_matches(value, known, n=1)
    hint = f"did you mean {near[0]!r}? Allowed" if near else "allowed"
    raise BadInput(f"{field} = {value!r}: {hint}: {', '.join(known)}")


def rounds(rounds: int, per_round: int) -> None:
    """Refuse a negative number of rounds or of clients a round."""
    number("rounds", rounds, at_least=0, whole=True)
    number("per_round", per_round, at_least=0, whole=True)
