"""Ctrl-C and SIGTERM: one line at once while nothing has begun, in order afterwards.

Libraries that are interrupted while they are imported fail in ways of their own, or go on half
made. Until there is something to end in order, a program therefore just ends.
"""

from __future__ import annotations

import os
import signal

SIGNALS = (signal.SIGINT, signal.SIGTERM)
CODE = 130  # of a program that was interrupted


def at_once() -> None:
    """End with one line from now on: for the start of a program, before anything is imported."""
    for number in SIGNALS:
        signal.signal(number, _end)


def in_order() -> None:
    """Raise KeyboardInterrupt from now on, if :func:`at_once` holds: there is something to end."""
    for number in SIGNALS:
        if signal.getsignal(number) is _end:
            signal.signal(number, _interrupt)


def _end(number: int, frame: object) -> None:
    os.write(2, b"\ntacit: interrupted\n")
    os._exit(CODE)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt
