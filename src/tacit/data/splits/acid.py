"""A few classes for each client and equal sizes (CUAG-PFL's ACIDk), also under private numbers."""

from __future__ import annotations

import numpy as np

from tacit.core.data import IntArray
from tacit.data import proportions
from tacit.data.proportions import Table
from tacit.data.splits.dealing import deal
from tacit.data.splits.drawing import draw_holders, draw_holds
from tacit.data.splits.scheme import Request, Scheme


def draw(request: Request) -> IntArray:
    """K classes for each client, sampled from without replacement (CUAG-PFL's ACIDk.

    Also the rows of ALIDk).

    The clients draw in a random order, each as many examples as an equal division gives, or fewer
    when its classes have no more. One example of each class is set aside for each of its holders,
    so everyone has exactly k classes.
    """
    rng = request.rng("acid")
    holds = draw_holders(request, rng)
    counts = holds.astype(np.int64)
    waiting = counts.sum(axis=0)
    left = request.class_sizes - waiting
    goal = len(request.labels) // request.clients
    for client in rng.permutation(request.clients):
        mine = np.flatnonzero(holds[client])
        drawn = _draw_fairly(goal - len(mine), left[mine], waiting[mine])
        counts[client, mine] += drawn
        left[mine] -= drawn
        waiting[mine] -= 1
    return deal(rng, request.labels, counts)


def shares(request: Request) -> Table:
    """K classes for each client, divided so that clients are of the same size if they can be."""
    holds = draw_holds(request, request.rng("acid"), np.arange(request.classes))
    return proportions.balanced(proportions.among(holds))


def permutations(request: Request) -> tuple[tuple[int, ...], ...]:
    """Return ALIDk's private numbering of the classes, one permutation for each client."""
    numbers = np.tile(np.arange(request.classes), (request.clients, 1))
    return tuple(tuple(row) for row in request.rng("alid").permuted(numbers, axis=1).tolist())


def _draw_fairly(wanted: int, left: IntArray, waiting: IntArray) -> IntArray:
    """Take up to ``wanted`` examples of several classes, by what is left for each who waits.

    Drawing from the pool without regard to the others would leave the last clients half empty.

    >>> _draw_fairly(6, np.array([20, 20]), np.array([5, 10])).tolist()
    [4, 2]
    """
    drawn = np.zeros_like(left)
    while (missing := min(wanted, int(left.sum())) - int(drawn.sum())) > 0:
        fair = (left - drawn) / waiting
        step = (missing * fair / fair.sum()).astype(np.int64)
        if not step.any():
            step[fair.argmax()] = 1
        drawn = np.minimum(drawn + step, left)
    return drawn


ACID = Scheme(
    "acid:k",
    "k classes per client, sampled without replacement, equal sizes where possible",
    draw,
    shares,
)
ALID = Scheme(
    "alid:k",
    "like acid:k, and each client's class numbers are permuted privately",
    draw,
    shares,
    relabel=permutations,
)
