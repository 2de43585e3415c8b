"""The conformance suite for a method of one's own: ``check_method(FedAdam())``.

May import everything but the command line and the sites.
"""

from __future__ import annotations

import itertools
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path

from tacit.core import Method, TacitError, rng_for
from tacit.engines.client_host import one_thread
from tacit.methods.spec import as_method, label_of, name_of
from tacit.testing import checks
from tacit.testing.claims import claims_hold, ready
from tacit.testing.memory import modules_of
from tacit.testing.settings import settings_survive, unexplained
from tacit.testing.world import Sandbox

__all__ = ["Failed", "Report", "check_method", "findings"]

ROUNDS, PER_ROUND = 3, 4  # of the runs: few, and not everybody in each
Check = Callable[[Sandbox, Method], list[str]]


@dataclass(frozen=True)
class Report:
    """What the checks found, in one line each."""

    method: str
    findings: tuple[str, ...] = ()  # what has to be mended
    remarks: tuple[str, ...] = ()  # what could be better

    def __str__(self) -> str:
        lines = [*self.findings, *(f"(remark) {line}" for line in self.remarks)]
        return "\n".join(f"{self.method}: {line}" for line in lines or ["all checks passed"])


class Failed(AssertionError):
    """A method does not satisfy what every method has to; says all findings, one line each."""

    def __init__(self, report: Report) -> None:
        super().__init__(str(report))
        self.report = report


def check_method(method: Method | str, *, quick: bool = True) -> Report:
    """Hold a method to what every method has to satisfy, and raise :class:`Failed` if it does not.

    It runs three rounds at a time in a small world: nothing survives outside the state, engines
    agree to the bit, resume is invisible, a lost reply is as if the client had never worked, what
    is promised is kept, states and settings can be saved.

    Args:
        method: an instance, or a word such as ``"mine.py:FedAdam"``
        quick: try some of the ways in which a run can be cut and replies can be lost, not most
    """
    report = examined(method, quick=quick)
    if report.findings:
        raise Failed(report)
    return report


def findings(method: Method | str, *, quick: bool = True) -> list[str]:
    """Return what :func:`check_method` has to say against a method, one line each."""
    return list(examined(method, quick=quick).findings)


def examined(method: Method | str, *, quick: bool = True) -> Report:
    """Return all that the checks find."""
    try:
        given = as_method(method)
    except TacitError as e:
        return Report(str(method) if isinstance(method, str) else type(method).__name__, (str(e),))
    with tempfile.TemporaryDirectory() as folder, one_thread():
        sandbox = Sandbox(Path(folder) / "sandbox")
        try:
            found = list(_all(sandbox, given, quick))
        finally:
            sandbox.close()
    return Report(label_of(name_of(given)), tuple(found), tuple(unexplained(given)))


def _all(sandbox: Sandbox, given: Method, quick: bool) -> Iterator[str]:
    """Yield the findings; what another one explains is not looked for."""
    yield from settings_survive(small(given))
    try:
        method = ready(sandbox, small(given))
    except Exception as e:  # it is the user's code: anything can happen
        yield f"cannot be made ready: {said(e, given)}"
        return
    for stage in _stages(quick):
        found = dict.fromkeys(line for check in stage for line in _tried(check, sandbox, method))
        yield from found
        if found:
            return  # runs that fail, or that differ by themselves, cannot be compared


def _stages(quick: bool) -> list[list[Check]]:
    """Return the checks; those of a stage make sense only if the stages before found nothing."""
    engines = partial(checks.engines_agree, counts=(2,) if quick else (2, 1, 3))
    return [
        [checks.states_are_fit],
        [checks.rounds_are_kept],
        [checks.models_answer],
        [checks.only_seeds_decide],
        [
            checks.nothing_survives,
            engines,
            partial(_resumes, deaths=(True,) if quick else (True, False)),
            partial(_loses, tables=3 if quick else 12),
            claims_hold,
        ],
    ]


def _resumes(sandbox: Sandbox, method: Method, deaths: tuple[bool, ...]) -> list[str]:
    """Cut a run after each of its rounds; one finding is enough."""
    whole = checks.undisturbed(sandbox, method)
    ways = itertools.product(range(method.rounds + 1), deaths)
    found = (checks.resume_is_invisible(sandbox, method, whole, *way) for way in ways)
    return next(filter(None, found), [])


def _loses(sandbox: Sandbox, method: Method, tables: int) -> list[str]:
    """Lose one reply or a few; one finding is enough."""
    asked = list(dict.fromkeys(checks.asked_of(method, sandbox)[0]))
    rng = rng_for("tacit.testing", "lost")
    sizes = (min(1 + k % 3, len(asked)) for k in range(tables))
    drawn = ([asked[i] for i in rng.choice(len(asked), n, replace=False)] for n in sizes)
    found = (checks.lost_is_never_done(sandbox, method, dict.fromkeys(t, "lost")) for t in drawn)
    return next(filter(None, found), [])


def small(method: Method) -> Method:
    """Return a method with few rounds and few clients a round, where these are settings."""
    settings = {f.name for f in fields(method) if f.init}
    wanted = {"rounds": ROUNDS} | ({} if method.pooled else {"per_round": PER_ROUND})
    for name, value in wanted.items():
        try:
            method = replace(method, **{name: value}) if name in settings else method
        except TacitError:  # it has its reasons
            continue
    return method


def said(e: Exception, method: Method) -> str:
    """Return an error in one line, with the place in the method's own code if there is one."""
    words = " ".join(str(e).split())
    if isinstance(e, TacitError):
        return words
    own = {vars(m).get("__file__") for m in modules_of(type(method))}
    frames = traceback.extract_tb(e.__traceback__)
    near = [f for f in frames if f.filename in own] or list(frames)
    return f"{type(e).__name__}: {words} ({Path(near[-1].filename).name}:{near[-1].lineno})"


def _tried(check: Check, sandbox: Sandbox, method: Method) -> list[str]:
    """Return what a check finds; a run that fails is a finding, never a traceback."""
    try:
        return check(sandbox, method)
    except Exception as e:
        return [f"fails: {said(e, method)}"]
