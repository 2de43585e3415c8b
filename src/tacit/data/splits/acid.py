"""A few classes for each client, equal sizes (PFLDyn's ACIDk), also under private numbers."""

from __future__ import annotations

import numpy as np

from tacit.core.data import IntArray
from tacit.data import proportions
from tacit.data.proportions import Table
from tacit.data.splits.dealing import deal
from tacit.data.splits.drawing import class_lists, consecutive, draw_holders, draw_holds
from tacit.data.splits.scheme import BoolArray, Request, Scheme


def draw(request: Request) -> IntArray:
    """K consecutive classes for each client, dealt out one by one (PFLDyn's ACIDk; ALIDk's rows).

    Each client in turn takes an example of the class of which it has the fewest (of several: of the
    one with most left), up to an equal share. Difference from PFLDyn: whoever finds nothing left of
    its classes has fewer, where PFLDyn takes from others, which need not end.
    """
    rng = request.rng("acid")
    holds = draw_holders(request, rng, consecutive)
    return deal(rng, request.labels, _take_turns(request, holds))


def shares(request: Request) -> Table:
    """K consecutive classes for each client, of the same size if they can be."""
    every = np.arange(request.classes)
    holds = draw_holds(request, request.rng("acid"), every, consecutive)
    return proportions.balanced(proportions.among(holds))


def draw_by_lot(request: Request) -> IntArray:
    """K classes for each client, dealt by lot, sampled from without replacement.

    The clients draw in a random order, each as many examples as an equal division gives, or fewer
    when its classes have no more. One example of each class is set aside for each of its holders,
    so everyone has exactly k classes.
    """
    rng = request.rng("acid")
    holds = draw_holders(request, rng, class_lists)
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


def shares_by_lot(request: Request) -> Table:
    """K classes for each client by lot, of the same size if they can be."""
    every = np.arange(request.classes)
    holds = draw_holds(request, request.rng("acid"), every, class_lists)
    return proportions.balanced(proportions.among(holds))


def permutations(request: Request) -> tuple[tuple[int, ...], ...]:
    """Return ALIDk's private numbering of the classes, one permutation for each client."""
    numbers = np.tile(np.arange(request.classes), (request.clients, 1))
    return tuple(tuple(row) for row in request.rng("alid").permuted(numbers, axis=1).tolist())


def _take_turns(request: Request, holds: BoolArray) -> IntArray:
    """Let clients take examples in turn: ``counts[client, class]``; one of each class to begin."""
    left = (request.class_sizes - holds.sum(axis=0)).tolist()
    taken = [dict.fromkeys(np.flatnonzero(mine).tolist(), 1) for mine in holds]
    goal = len(request.labels) // request.clients
    for _ in range(len(taken[0]), goal):
        for mine in taken:
            able = [label for label in mine if left[label]]
            if able:
                label = min(able, key=lambda label: (mine[label], -left[label]))
                mine[label] += 1
                left[label] -= 1
    counts = np.zeros(holds.shape, dtype=np.int64)
    for client, mine in enumerate(taken):
        counts[client, list(mine)] = list(mine.values())
    return counts


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
    "client c has the k classes from c on, sampled without replacement, equal sizes (PFLDyn)",
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
ACID_RANDOM = Scheme(
    "acid-random:k",
    "like acid:k, but the classes are dealt to the clients by lot",
    draw_by_lot,
    shares_by_lot,
)
ALID_RANDOM = Scheme(
    "alid-random:k",
    "like acid-random:k, and each client's class numbers are permuted privately",
    draw_by_lot,
    shares_by_lot,
    relabel=permutations,
)
