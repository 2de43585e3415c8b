"""Whether noise leaves anything of the data: said before a run, with the eps at which it would.

The most that data can say is that all examples pull the same way, each with its whole clipping
norm. A step then moves by q n C, and its noise, z C on each of d numbers, has norm z C sqrt(d).
Over independent steps and clients signals add up and noise adds up in squares, so that their ratio
is at most the root of the sum of (q n / z)^2 / d. Moments of features, released once, are a sum of
features for each class, with noise on all of them, and only a class's own examples add up in its
sum. How many classes a client has is nobody's business: between one and all, so their root counts.
A method with both kinds of release is as good as the weaker of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping

from tacit.core import FEDERATION, BadInput, ClientId, Gaussian, Method, Release
from tacit.experiment.calibration import participations
from tacit.local.teachers import VOTES
from tacit.methods.spec import method_from, name_of, raw_method
from tacit.synthesis.moments import COVARIANCES, MEANS

LOOKED_AT = 8  # clients; many are alike
MANY = 1000
TRIES = 8
NEAR = 1.05


def of_signal(
    method: Method,
    ready: Method,
    prepare: Callable[[Method], Method],
    sizes: Mapping[ClientId, int],
    delta: float,
    numbers: int,
    inputs: int = 1,
    classes: int = 1,
) -> list[str]:
    """Return that noise drowns whatever data can say; nothing if it does not.

    Args:
        method: as it was given
        ready: the same with all that it chooses and solves
        prepare: makes one ready
        sizes: examples of each client
        delta: of the certificate
        numbers: in the model
        inputs: numbers of an example, or of its features
        classes: how many there are
    """
    times = participations(tuple(sizes), ready.per_round, ready.rounds, sample_seed=0)

    def strength(method: Method) -> float:
        return _ratio(method, sizes, times, delta, numbers, inputs * classes**1.5)

    try:
        ratio = strength(ready)
        if not 0 < ratio < 1:
            return []
        many = len(sizes) > MANY  # to prepare it again and again would take long
        meet = None if many else _meeting(method, lambda m: strength(prepare(m)), ratio)
    except Exception:  # a method of one's own may say anything; a warning never ends a run
        return []
    more = f"they meet at about epsilon = {meet:.2g}; " if meet else ""
    return [
        f"{name_of(method)}: noise will be {1 / ratio:.3g} times as long as all that the data can "
        f"say, so little can be learnt; {more}less noise, fewer numbers (a smaller model, "
        "--features) or more data help"
    ]


def _ratio(
    method: Method,
    sizes: Mapping[ClientId, int],
    times: Counter[ClientId],
    delta: float,
    numbers: int,
    sums: float = 1,
) -> float:
    """Return the most that signal over noise can be in a whole run; infinite without noise.

    ``sums`` are the numbers of the classes' sums of features, times the classes a client may have.
    """
    everyone = tuple(sizes)
    some = {i: sizes[i] for i in [i for i in everyone if times[i]][:LOOKED_AT]}
    lines = method.releases(some, times, delta)
    if not lines or not all(isinstance(line.event, Gaussian) for line in lines):
        return math.inf
    alike = len(times) / max(1, len(some))
    together = method.per_round or len(everyone)
    # a client's own model has its own records besides, which no noise drowns
    own = method.answers == "personal"
    # what is released again and again, sums of features, and all else, which may be one number
    numbers_of: dict[str, float] = {"steps": numbers, MEANS: 1 if own else sums, "": 1}
    squares = dict.fromkeys(numbers_of, 0.0)
    for line in lines:
        if line.what in (COVARIANCES, VOTES):  # what is good without; votes are not of examples
            continue
        phase = "steps" if line.total() > 1 else line.what if line.what == MEANS else ""
        each, n = (1, together) if line.owner == FEDERATION else (alike, 1)
        if line.owner != FEDERATION and line.unit == "example":
            n = some[line.owner]
        squares[phase] += each * _squared(line, n, numbers_of[phase])
    there = [squares[p] for p in ("steps", MEANS) if squares[p]] or [squares[""]]
    return math.sqrt(min(there)) or math.inf


def _squared(line: Release, n: int, d: float) -> float:
    """Return the squared ratio of a line of d numbers."""
    assert isinstance(line.event, Gaussian)
    z = line.event.z
    return line.total() * (line.sampling.q * n / z) ** 2 / d if z else math.inf


def _meeting(method: Method, ratio: Callable[[Method], float], now: float) -> float | None:
    """Return the epsilon at which signal and noise are equal, if the method has one to change.

    The ratio grows about as epsilon does.
    """
    raw = raw_method(method)
    epsilon = float(raw.get("epsilon") or 0.0)
    for _ in range(TRIES if epsilon else 0):
        if 1 / NEAR <= now <= NEAR:
            return epsilon
        epsilon /= now
        try:
            now = ratio(method_from({**raw, "epsilon": epsilon}))
        except BadInput:
            return None
    return None
