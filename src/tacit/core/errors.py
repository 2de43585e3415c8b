"""What can go wrong, each with the exit code of the command line. One line each.

Field, value, what is allowed.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable

LEAST_CLIP, MOST_CLIP = 1e-10, 1e10  # the smallest and the largest clipping norm


class TacitError(Exception):
    """A failure that is told in one line, never with a traceback."""

    exit_code = 1


class BadInput(TacitError, ValueError):
    """Something the user gave cannot be used."""

    exit_code = 2


class Diverged(BadInput):
    """Training produced a number that is not finite; the last good checkpoint is kept."""


class Damaged(BadInput):
    """A file is not as it was written, so that nothing may rest on it."""


class BudgetReached(TacitError):
    """The next step would pass the privacy budget."""

    exit_code = 3


class TooFewReplies(TacitError):
    """Fewer replies than the method needs; the run stops at its last saved state."""

    exit_code = 4


def check_number(
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

    >>> check_number("lr", -1.0, above=0)
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


def check_clip(field: str, value: float) -> None:
    """Refuse a clipping norm, or another bound on a record, that arithmetic could not keep.

    Noise has to be added to what was clipped, in single precision: much smaller numbers vanish
    there, and much larger ones have no end.

    >>> check_clip("sgd.clip", 1e-30)
    Traceback (most recent call last):
    tacit.core.errors.BadInput: sgd.clip = 1e-30: must be at least 1e-10 and at most 1e+10
    """
    check_number(field, value, above=0)
    check_number(field, value, at_least=LEAST_CLIP, at_most=MOST_CLIP)


def in_clip_range(value: float) -> float:
    """Return the nearest clipping norm that :func:`check_clip` lets through."""
    return min(max(value, LEAST_CLIP), MOST_CLIP)


def check_choice(field: str, value: str, allowed: Iterable[str]) -> None:
    """Refuse a word that is not one of ``allowed``, naming the nearest one.

    >>> check_choice("method", "fedavgg", ["fedavg", "fedprox"])
    Traceback (most recent call last):
    tacit.core.errors.BadInput: method = 'fedavgg': did you mean 'fedavg'? Allowed: fedavg, fedprox
    """
    known = list(allowed)
    if value in known:
        return
    near = difflib.get_close_matches(value, known, n=1)
    hint = f"did you mean {near[0]!r}? Allowed" if near else "allowed"
    raise BadInput(f"{field} = {value!r}: {hint}: {', '.join(known)}")
