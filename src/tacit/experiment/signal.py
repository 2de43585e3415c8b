"""Whether noise leaves anything of the data: said before a run, with the eps at which it would.

The most that data can say is that all examples pull the same way, each with its whole clipping
norm. A step then moves by q n C, and its noise, z C on each of d numbers, has norm z C sqrt(d).
Over independent steps and clients signals add up and noise adds up in squares, so that their ratio
is at most the root of the sum of (q n / z)^2 / d.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping

from tacit.core import FEDERATION, BadInput, ClientId, Gaussian, Method, Release
from tacit.experiment.calibration import participations
from tacit.methods.spec import method_from, raw_method

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
) -> list[str]:
    """Return that noise drowns whatever data can say; nothing if it does not.

    Args:
        method: as it was given
        ready: the same with all that it chooses and solves
        prepare: makes one ready
        sizes: examples of each client
        delta: of the certificate
        numbers: in the model
    """
    times = participations(tuple(sizes), ready.per_round, ready.rounds, sample_seed=0)

    def strength(method: Method) -> float:
        return _ratio(method, sizes, times, delta, numbers)

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
        f"noise will be {1 / ratio:.3g} times as long as all that the data can say, so little can "
        f"be learnt; {more}less noise, fewer numbers (a smaller model, --features) or more data "
        "help"
    ]


def _ratio(
    method: Method,
    sizes: Mapping[ClientId, int],
    times: Counter[ClientId],
    delta: float,
    numbers: int,
) -> float:
    """Return the most that signal over noise can be in a whole run; infinite without noise."""
    everyone = tuple(sizes)
    some = {i: sizes[i] for i in [i for i in everyone if times[i]][:LOOKED_AT]}
    lines = method.releases(some, times, delta)
    if not lines or not all(isinstance(line.event, Gaussian) for line in lines):
        return math.inf
    alike = len(times) / max(1, len(some))
    together = method.per_round or len(everyone)
    return math.sqrt(
        sum(
            _squared(line, together, numbers)
            if line.owner == FEDERATION
            else alike * _squared(line, some[line.owner] if line.unit == "example" else 1, numbers)
            for line in lines
        )
    )


def _squared(line: Release, n: int, numbers: int) -> float:
    """Return the squared ratio of a line: what is released once may be a single number."""
    assert isinstance(line.event, Gaussian)
    z, d = line.event.z, numbers if line.total() > 1 else 1
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
