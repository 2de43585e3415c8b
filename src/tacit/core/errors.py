"""What can go wrong, each with the exit code of the command line. One line each.

Field, value, what is allowed.
"""

from __future__ import annotations


class TacitError(Exception):
    """A failure that is told in one line, never with a traceback."""

    exit_code = 1


class BadInput(TacitError, ValueError):
    """Something the user gave cannot be used."""

    exit_code = 2


class NotPrivate(BadInput):
    """An epsilon is asked of a method whose settings promise none."""


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
