"""One epsilon for synthetic samples and for what clients train on their own data beside them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, TypeVar

from tacit.core import BadInput, ClientId, Method, NotPrivate, Sizes, Times, check
from tacit.local.sgd import SGD
from tacit.privacy.calibrate import spend
from tacit.privacy.phases import cheapened, cost_of, half_of, rest_of
from tacit.synthesis.source import Source

M = TypeVar("M", bound=Method)
MANY = 8  # steps of an epoch from which on one more costs less than more examples save


@dataclass(frozen=True)
class Facts:
    """What is public of a run before it begins."""

    sizes: Sizes
    times: Times
    delta: float


def check_shares(source: Source, sgd: SGD, epsilon: float, unshared: str) -> None:
    """Refuse an epsilon of both phases where they cannot keep it.

    Args:
        source: of the samples
        sgd: the training that follows; with a clip it is DP-SGD
        epsilon: of both; 0: none was given
        unshared: why what follows takes no part of it, if it should
    """
    check.number("epsilon", epsilon, at_least=0)
    if epsilon and source.mode == "paper":
        unshared = "mode = 'paper' promises none; pool_epsilon is what the paper counts"
    if epsilon and unshared:
        raise NotPrivate(f"epsilon = {epsilon:g}: {unshared}")
    if sgd.clip:
        sgd.check_epsilon(epsilon)
    elif epsilon and source.pool_epsilon not in ("auto", epsilon):
        said = f"epsilon = {epsilon:g} is all for the samples here; give one"
        raise BadInput(f"pool_epsilon = {source.pool_epsilon}: {said}")


def shared_out(method: M, sgd: SGD, epsilon: float, known: Facts, later: Sizes | None = None) -> M:
    """Return a method of samples and training whose two phases cost ``epsilon`` together.

    Without DP-SGD all of it is for the samples; with it half of mu^2, or as ``pool_epsilon`` says,
    and what is left of it is for training. Without an epsilon each has its own. Training is made
    for the sizes of clients ``later``, too.
    """
    sizes, times, delta = known.sizes, known.times, known.delta
    more = {f"{c} later": n for c, n in (later or {}).items()}
    trained = {**sizes, **more}
    turns = {c: times.get(c.removesuffix(" later"), 0) for c in trained}
    if not epsilon:
        return _with(method, sgd=sgd.solved(trained, turns, delta))
    if not sgd.clip:
        return _with(method, pool_epsilon=epsilon)
    if sgd.z:  # solved before, as in the config.toml of a run, or one that contradicts
        spent = cost_of(method.releases(sizes, times, delta), method.protects, delta)
        if not 0.9 * epsilon < spent < 1.001 * epsilon:
            says = f"with the samples it costs eps {spent:.3g}, not epsilon = {epsilon:g}"
            raise BadInput(f"sgd.z = {sgd.z:g}: {says}; give one of them, the other 0")
        return method
    assert isinstance(method, Source)
    given = method.pool_epsilon
    pool = half_of(epsilon, delta) if given == "auto" else given
    rest = rest_of(epsilon, pool, delta)

    def cheaper(factor: float) -> M:
        solved = sgd.solved(trained, turns, delta, epsilon=factor * rest)
        return _with(method, pool_epsilon=pool, sgd=replace(solved, epsilon=0.0))

    return cheapened(
        cheaper,
        lambda made: made.releases(sizes, times, delta),
        method.protects,
        epsilon,
        delta,
    )


def grown(sgd: SGD, gamma: float, known: Facts) -> dict[ClientId, int]:
    """Return sizes that clients may have with others' samples, where these can make DP-SGD dearer.

    With more examples each is sampled more seldom, but there may be a step more: the first size at
    which there is one can be the dearest. How many samples there are is known only when they are
    drawn, as noisy counts say it; no more than twice gamma is taken to be there.
    """
    every, found = sum(known.sizes.values()), {}
    for c, n in known.sizes.items():
        few, most = sgd.private_steps(n), n + math.ceil(2 * gamma * (every - n))
        more = next((m for m in range(n + 1, most + 1) if sgd.private_steps(m) > few), n)
        if more > n and few <= MANY * sgd.usual_epochs and known.times.get(c, 0):
            found[c] = more
    return {} if sgd.steps or not sgd.clip else found


def with_pool(sgd: SGD, gamma: float, known: Facts) -> dict[ClientId, int]:
    """Return the sizes at which clients pay most for DP-SGD once they have others' samples."""
    sizes = dict(known.sizes)
    for c, n in grown(sgd, gamma, known).items() if sgd.z else ():
        cost = partial(_spent, sgd, known.times[c], known.delta)
        sizes[c] = max(sizes[c], n, key=cost)
    return sizes


@lru_cache(maxsize=1024)
def _spent(sgd: SGD, times: int, delta: float, n: int) -> float:
    """Return what DP-SGD costs a client of so many examples in so many rounds."""
    return spend(sgd.z, times * sgd.private_steps(n), sgd.rate(n), delta=delta)


def _with(method: M, **settings: object) -> M:
    some: Any = method  # which of the two methods it is, and so its fields, is not known here
    changed: M = replace(some, **settings)
    return changed


def check_follows(main: Method) -> None:
    """Refuse as a main phase what is no method, or does not train at the clients all the time."""
    if not isinstance(main, Method):
        raise BadInput(f"method = {main!r}: must be an instance of a method, such as FedAvg()")
    if not main.can_follow:
        name = type(main).__name__.lower()
        raise BadInput(f"method = {name!r}: must be one that trains at the clients in every round")
