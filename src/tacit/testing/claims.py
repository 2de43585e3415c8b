"""Does a method spend what it says beforehand, and nothing without noise?"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

from tacit import privacy
from tacit.core import BadInput, Keywords, Ledger, Method, NonPrivate, Release, Task
from tacit.engines.server import Engine
from tacit.experiment.calibration import calibrated, participations
from tacit.local.sgd import SGD
from tacit.privacy.accounting import visible
from tacit.testing.checks import run_to_end
from tacit.testing.world import DELTA, SEED, Sandbox

HAIR = 1e-6  # by which figures of two orders of the same sums may differ
PRIVATE = SGD(batch=100, clip=1.0, z=1.0)  # every step sees all examples: quick to account for


def predicted(sandbox: Sandbox, method: Method) -> Ledger:
    """Return what a method says beforehand that its ledger will hold."""
    federation = sandbox.federation(method)
    times = participations(federation.everyone, method.per_round, method.rounds, SEED)
    return Ledger(method.releases(federation.sizes(), times, DELTA))


def ready(sandbox: Sandbox, method: Method) -> Method:
    """Return a method with the noise solved that its epsilon asks for."""
    return calibrated(method, sandbox.federation(method).sizes(), DELTA, SEED)


def claims_hold(sandbox: Sandbox, method: Method) -> list[str]:
    """Check that a method which promises a finite epsilon spends no more.

    It promises what ``releases`` says. A method that trains by SGD without a clipping norm is also
    tried with DP-SGD, unless it refuses that.
    """
    return [line for variant in _variants(method) for line in _overspent(sandbox, variant)]


def _variants(method: Method) -> Iterator[Method]:
    yield method
    settings: Keywords = {f.name: getattr(method, f.name) for f in fields(method)}
    sgd = settings.get("sgd")
    if isinstance(sgd, SGD) and not sgd.clip:
        try:
            private = replace(PRIVATE, lr=sgd.lr, momentum=sgd.momentum)
            yield type(method)(**(settings | {"sgd": private}))
        except BadInput:  # it says so itself
            return


def _overspent(sandbox: Sandbox, method: Method) -> list[str]:
    method = ready(sandbox, method)
    told = _epsilon(predicted(sandbox, method), method)
    if math.isinf(told):
        return []
    engine = sandbox.serial(method)
    run_to_end(method, engine, sandbox)
    spent = _epsilon(engine.ledger, method)
    if spent <= told * (1 + HAIR):
        return []
    return _bare(method, engine, told) or [_dearer(method, engine.ledger, told, spent)]


def _epsilon(ledger: Ledger, method: Method) -> float:
    unit, observer = method.protects
    return privacy.epsilon(ledger, unit=unit, observer=observer, delta=DELTA, quick=True)


def _bare(method: Method, engine: Engine, told: float) -> list[str]:
    """Return what left clients without noise, one line for each task and reason."""
    unit, observer = method.protects
    covering = engine.ledger.covering()
    lines = [line for line in engine.ledger if visible(line, observer, covering)]
    whys = dict.fromkeys(_told(line) for line in lines if isinstance(line.event, NonPrivate))
    promise = f"says that it protects {unit}/{observer} (releases(): eps {told:.4g})"
    return [f"{why}, although the method {promise}" for why in whys]


def _told(line: Release) -> str:
    """Return why a line is not private, with the place of its task."""
    assert isinstance(line.event, NonPrivate)
    why = line.event.why.removeprefix(line.what).strip()
    return f"{name_and_place(line.what)} {why}"


def name_and_place(task: str) -> str:
    """Return a task's name and where it is written, such as ``train (mine.py:41)``."""
    if task not in Task.registry:
        return task
    fn = Task.registry[task].fn
    file = Path(fn.__code__.co_filename).name
    return f"{fn.__name__} ({file}:{_line(fn)})"


def _line(fn: object) -> int:
    """Return the line of a function's ``def``, below its decorators."""
    assert inspect.isfunction(fn)
    try:
        source, first = inspect.getsourcelines(fn)
    except OSError:  # of a notebook whose cell is gone
        return fn.__code__.co_firstlineno
    return first + next(n for n, text in enumerate(source) if text.lstrip().startswith("def "))


def _dearer(method: Method, ledger: Ledger, told: float, spent: float) -> str:
    unit, observer = method.protects
    why = privacy.reason(ledger, unit=unit, observer=observer, delta=DELTA)
    return (
        f"spends eps {spent:.4g} ({unit}/{observer}), more than the {told:.4g} that releases() "
        f"says beforehand; {why}"
    )
