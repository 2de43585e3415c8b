"""Run a method to its end, restarting it at every step, so that only what is saved survives."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial

from tacit.codec import pack, unpack
from tacit.core import Cohort, Method, State


def drive(
    method: Method,
    cohort: Cohort,
    s: State,
    *,
    on_step: Callable[[State], None] = lambda s: None,
    advance: Callable[[Callable[[], State | None]], State | None] = lambda step: step(),
    stop_after: int | None = None,
) -> State:
    """Return the last state; ``on_step`` is called with each new one, and may save it.

    ``advance`` makes each step; it may make it again, with other replies.
    """
    mark, s = _saved(s)
    steps = 0
    while steps != stop_after:
        following = advance(partial(_following, method, cohort, s))
        if following is None:
            break
        s, following = following, None  # one of them at a time: they are as large as the model
        before, (mark, s) = mark, _saved(s)
        if mark == before:
            raise RuntimeError("run() yielded the state it was given; a phase lacks its guard")
        on_step(s)
        steps += 1
    return s


def _following(method: Method, cohort: Cohort, s: State) -> State | None:
    return next(method.run(cohort, s), None)


def _saved(s: State) -> tuple[bytes, State]:
    """Return a digest of a state, and what is left of it after it was saved."""
    blob = pack(s)
    return hashlib.blake2b(blob).digest(), unpack(blob)
