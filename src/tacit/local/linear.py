"""What DP-SGD of a linear model of public features chooses itself: batches, steps, their size.

The numbers were chosen on training data that were held out, never on test data:
docs/methods/fedavg.md.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tacit.core import Known
from tacit.privacy.calibrate import noise_for

if TYPE_CHECKING:
    from tacit.local.sgd import SGD

STEPS = 100  # in all rounds together, each on all of a client's examples
WALK = 16.0  # how far the noise of all steps may move the model: step size times norm of their sum
FASTEST = 5.0  # the largest step size, times the clipping norm
LOTS = 200  # rounds that are drawn to see how much noise a mean has
STABLE = 0.4  # the largest step size, times what draws models to each other


@dataclass(frozen=True)
class Turns:
    """Who trains how often, and what that may cost: public facts."""

    rounds: int
    k: int  # clients whose noise a mean averages
    times: float  # rounds that a client takes part in, on average
    epsilon: float  # what these may cost
    pull: float = 0.0  # how strongly a step draws a client's model to another one
    by_size: bool = False  # the mean counts a client by its examples
    alone: bool = False  # whoever trains goes on from the own model, so nothing drifts apart


def chosen(sgd: SGD, known: Known, turns: Turns) -> SGD:
    """Return DP-SGD of a linear model in which all is chosen that nobody has said."""
    whole = sgd.batch == "auto"
    epochs = max(1, round(STEPS / max(1, turns.rounds))) if whole and not sgd.steps else 1
    batch = max(known.sizes.values()) if sgd.batch == "auto" else sgd.batch
    sgd = replace(sgd, batch=batch, epochs=epochs if sgd.epochs == "auto" else sgd.epochs)
    if sgd.lr != "auto" or sgd.optimizer != "sgd":
        return sgd.as_usual()
    return replace(sgd, lr=step_size(sgd, known, turns))


def step_size(sgd: SGD, known: Known, turns: Turns) -> float:
    """Return the step size at which the noise of all steps moves the model so far, or less."""
    n = max(known.sizes.values())
    steps = max(1, round(turns.times * sgd.private_steps(n)))
    z = noise_for(turns.epsilon, steps, sgd.rate(n), delta=known.delta)
    sds = [sgd.clip * z / (sgd.rate(m) * m) for m in known.sizes.values()]
    rounds = max(1, turns.rounds) * sgd.private_steps(n)
    by = known.sizes.values() if turns.by_size else ()
    noise = noise_in_mean(sds, turns.k, known.linear, by) * math.sqrt(rounds)
    again = sgd.reach(sgd.private_steps(n)) / sgd.private_steps(n)  # with momentum, more than once
    # momentum damps what a long step would swing, but it multiplies what clients drift apart
    drift = 1.0 if turns.alone else again
    fastest = FASTEST / sgd.clip / drift
    stable = STABLE / turns.pull / again if turns.pull else math.inf
    return rounded(min(fastest, stable, WALK / noise / again))


def rounded(lr: float) -> float:
    """Return a step size with four digits, which are enough.

    >>> rounded(7.123456)
    7.123
    """
    return float(f"{lr:.4g}")


def noise_in_mean(sds: Sequence[float], k: int, numbers: int, by: Collection[int] = ()) -> float:
    """Return the norm of the noise in the mean of k clients' gradients, whoever they are.

    >>> noise_in_mean([4.0, 1.0], k=2, numbers=2, by=[100, 400])  # 400 of 500 from either
    1.6

    Args:
        sds: of the noise on each number of a client's own mean gradient, of all clients
        k: how many of them take part in a round
        numbers: in the model
        by: their sizes, if the mean counts them by size
    """
    if not by:
        return math.sqrt(sum(sd**2 for sd in sds) / len(sds) / k * numbers)
    n = np.array(list(by), float)
    noise = np.square(n * sds)
    # who is in a round decides how much each counts
    lots = np.random.default_rng(0)
    rounds = [lots.choice(len(n), k, replace=False) for _ in range(LOTS if k < len(n) else 1)]
    squares = [noise[i].sum() / n[i].sum() ** 2 for i in rounds]
    return math.sqrt(float(np.mean(squares)) * numbers)
