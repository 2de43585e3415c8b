"""Run a method to its end, restarting it at every step, so that only what is saved survives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tacit.codec import pack, unpack
from tacit.core import Cohort, Method


def drive(
    method: Method,
    cohort: Cohort,
    s: object,
    *,
    on_step: Callable[[Any], None] = lambda s: None,
    stop_after: int | None = None,
) -> Any:
    """Return the last state; ``on_step`` is called with each new one, and may save it."""
    saved, steps = pack(s), 0
    while steps != stop_after:
        following = next(method.run(cohort, unpack(saved)), None)
        if following is None:
            break
        blob = pack(following)
        if blob == saved:
            raise RuntimeError("run() yielded the state it was given; a phase lacks its guard")
        on_step(following)
        saved, steps = blob, steps + 1
    return unpack(saved)
