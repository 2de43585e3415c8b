"""Draw who holds which classes, and how many examples."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np

from tacit.core.data import IntArray
from tacit.data.proportions import dirichlet
from tacit.data.splits.scheme import BoolArray, Request, k_of

Lists = Callable[[np.random.Generator, int, int, int], IntArray]
"""A law of who holds what: (rng, clients, k, classes) to k classes for each client."""


def draw_holders(request: Request, rng: np.random.Generator, lists: Lists) -> BoolArray:
    """Draw who holds which classes, by a law.

    ``holds[client, class]``, k for each client, only classes that have examples.
    """
    sizes = request.class_sizes
    holds = draw_holds(request, rng, np.flatnonzero(sizes), lists)
    holders = holds.sum(axis=0)
    short = np.flatnonzero(sizes < holders)
    if len(short):
        label = short[0]
        raise request.refusal(
            f"class {label} has {sizes[label]} examples for {holders[label]} clients that should "
            "hold it"
        )
    return holds


def draw_holds(
    request: Request, rng: np.random.Generator, present: IntArray, lists: Lists
) -> BoolArray:
    """Draw who holds which of the classes ``present``, k for each client."""
    k = k_of(request, len(present))
    mine = present[lists(rng, request.clients, k, len(present))]
    holds = np.zeros((request.clients, request.classes), dtype=np.bool_)
    holds[np.arange(request.clients)[:, None], mine] = True
    return holds


def consecutive(rng: np.random.Generator, clients: int, k: int, classes: int) -> IntArray:
    """Give client c the classes c, c + 1, ..., c + k - 1, round and round (PFLDyn's lists).

    >>> consecutive(np.random.default_rng(0), 3, 2, 3).tolist()
    [[0, 1], [1, 2], [2, 0]]
    """
    return (np.arange(clients)[:, None] + np.arange(k)) % classes


def own_and_others(rng: np.random.Generator, clients: int, k: int, classes: int) -> IntArray:
    """Give client i the class i, round and round, and k - 1 random others (NIID-Bench's lists).

    So some classes have more holders than others.
    """
    own = np.arange(clients)[:, None] % classes
    far = np.argsort(rng.random((clients, classes - 1)), axis=1)[:, : k - 1]
    return np.hstack([own, (own + 1 + far) % classes])


def class_lists(rng: np.random.Generator, clients: int, k: int, classes: int) -> IntArray:
    """Deal classes to clients, k each, from one shuffled pack of all classes after the other.

    Packs are used up before the next is opened, so the numbers of holders differ by at most 1. A
    client that gets the end of one pack and the start of the next has the classes it holds already
    moved back in the new pack.
    """
    dealt: list[int] = []
    while len(dealt) < clients * k:
        pack = rng.permutation(classes).tolist()
        begun = len(dealt) % k
        if begun:
            held = set(dealt[-begun:])
            fresh = [label for label in pack if label not in held][: k - begun]
            pack = fresh + [label for label in pack if label not in set(fresh)]
        dealt += pack
    return np.array(dealt[: clients * k], dtype=np.int64).reshape(clients, k)


def divide(rng: np.random.Generator, beta: float, sizes: IntArray, clients: int) -> IntArray:
    """Divide each class over clients by its own draw from Dir(beta): ``counts[client, class]``."""
    upto = np.cumsum(dirichlet(rng, beta, clients, len(sizes)), axis=1)
    cuts = np.minimum(upto * sizes[:, None], sizes[:, None]).astype(np.int64)
    cuts[:, -1] = sizes
    return np.diff(cuts, axis=1, prepend=0).T


def balanced_division(
    rng: np.random.Generator, beta: float, sizes: IntArray, clients: int
) -> IntArray:
    """Divide class by class as `divide`, but nothing more goes to whoever has an even share.

    NIID-Bench's balancing: ``counts[client, class]``.
    """
    counts = np.zeros((clients, len(sizes)), dtype=np.int64)
    even = sizes.sum() / clients
    for label, size in enumerate(sizes):
        share = dirichlet(rng, beta, clients, 1)[0] * (counts.sum(axis=1) < even)
        if not share.sum() > 0:  # so small a beta that nobody without enough has any share
            share = (counts.sum(axis=1) < even).astype(np.float64)
        cuts = (np.cumsum(share / share.sum()) * size).astype(np.int64)
        cuts[-1] = size
        counts[:, label] = np.diff(np.minimum(cuts, size), prepend=0)
    return counts


def draw_filled(draw: Callable[[], IntArray]) -> IntArray:
    """Draw a table of counts again until no client is empty (NIID-Bench's rule), but not for ever.

    Then repair it.

    There are at most 100 draws, and fewer of large tables, where more clients make an empty one all
    but certain.
    """
    counts = draw()
    for _ in range(min(99, 1_000_000 // counts.size)):
        if counts.sum(axis=1).all():
            return counts
        counts = draw()
    return fill_empty(counts)


def fill_empty(counts: IntArray) -> IntArray:
    """Move one example to each empty client: of the largest class of the client largest then."""
    counts = counts.copy()
    totals = counts.sum(axis=1)
    largest = [(-total, client) for client, total in enumerate(totals.tolist())]
    heapq.heapify(largest)
    for empty in np.flatnonzero(totals == 0):
        total, donor = largest[0]
        label = counts[donor].argmax()
        counts[donor, label] -= 1
        counts[empty, label] += 1
        heapq.heapreplace(largest, (total + 1, donor))
    return counts
