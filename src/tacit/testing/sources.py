"""What a run must not depend on: the wall clock, and random generators that belong to everybody."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import BuiltinMethodType, MethodType, ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch

CLOCK, PYTHON, NUMPY, TORCH = (
    "the wall clock",
    "Python's global generator",
    "NumPy's global generator",
    "PyTorch's global generator",
)
SOURCES = (CLOCK, PYTHON, NUMPY, TORCH)
UNSEEDED = "a generator without a seed"
CLOCKS = ("time", "monotonic", "perf_counter", "time_ns", "monotonic_ns", "perf_counter_ns")
DRAWS = ("rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "rand_like")
USUAL, LATER = 1234567890.123, 2098765432.987  # two moments that differ in every digit
Where = dict[str, list[str]]  # for each source, the calls of it in the method's own modules


@dataclass
class Clock:
    """A clock that moves by a millisecond whenever somebody looks at it."""

    now: float
    looked: int = 0

    def read(self, name: str) -> float | int:
        """Return the time in the unit of a function of the module ``time``."""
        self.looked += 1
        seconds = self.now + 1e-3 * self.looked
        return int(seconds * 1e9) if name.endswith("_ns") else seconds


@dataclass(frozen=True)
class Watch:
    """Notes which lines of some modules ask a source."""

    modules: Collection[ModuleType]
    seen: Where = field(default_factory=dict)

    def note(self, source: str, name: str) -> None:
        """Note the line that called the function that calls this one."""
        frame = sys._getframe(2)
        if frame.f_globals.get("__name__") in {m.__name__ for m in self.modules}:
            file = Path(frame.f_code.co_filename).name
            calls = self.seen.setdefault(source, [])
            place = f"{name} ({file}:{frame.f_lineno})"
            calls.extend([place] if place not in calls else [])


@contextmanager
def disturbed(watch: Watch, other: Collection[str] = ()) -> Iterator[None]:
    """Run with known sources: all at their usual place, ``other`` ones elsewhere."""
    clock = Clock(LATER if CLOCK in other else USUAL)
    with ExitStack() as stack:
        stack.enter_context(_seeded(other))
        for holder, name, replaced in _patches(watch, clock):
            stack.enter_context(mock.patch.object(holder, name, replaced))
        yield


@contextmanager
def _seeded(other: Collection[str]) -> Iterator[None]:
    """Seed the generators that belong to everybody, and put them back afterwards."""
    python = random.getstate()
    numpy = np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        random.seed(2 if PYTHON in other else 1)
        np.random.seed(2 if NUMPY in other else 1)  # noqa: NPY002
        torch.manual_seed(2 if TORCH in other else 1)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002


def _patches(watch: Watch, clock: Clock) -> Iterator[tuple[Any, str, Any]]:
    """Yield what to put where: the sources' own modules, and names imported from them."""
    for source, home, name in _functions():
        original = vars(home)[name]
        replaced = _watched(watch, clock, source, f"{home.__name__}.{name}", original)
        yield home, name, replaced
        for module in watch.modules:
            for alias, value in list(vars(module).items()):
                if value is original:
                    yield module, alias, replaced


def _functions() -> Iterator[tuple[str, ModuleType, str]]:
    """Yield the functions that ask a source, by the module they are called from."""
    yield from ((CLOCK, time, name) for name in CLOCKS)
    yield from ((PYTHON, random, name) for name, f in vars(random).items() if _bound(f, PYTHON))
    yield from ((NUMPY, np.random, n) for n, f in vars(np.random).items() if _bound(f, NUMPY))
    yield from ((TORCH, torch, name) for name in DRAWS)
    yield UNSEEDED, np.random, "default_rng"


def _bound(function: object, source: str) -> bool:
    """Tell whether a function is a method of the hidden generator of its module."""
    kind = random.Random if source == PYTHON else np.random.RandomState
    if not isinstance(function, MethodType | BuiltinMethodType):
        return False
    return isinstance(function.__self__, kind) and "state" not in function.__name__


def _watched(
    watch: Watch, clock: Clock, source: str, name: str, original: Callable[..., Any]
) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        own = kwargs.get("generator") is not None  # a generator of the method's own
        if not own and not (source == UNSEEDED and (args or kwargs)):
            watch.note(source, name)
        return clock.read(name) if source == CLOCK else original(*args, **kwargs)

    return call
