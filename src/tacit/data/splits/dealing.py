"""Deal rows to clients by tables of counts or of proportions."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from tacit.core.data import IntArray
from tacit.core.errors import BadInput
from tacit.data import proportions
from tacit.data.places import Places
from tacit.data.proportions import NOBODY, Table
from tacit.data.splits.scheme import PUBLIC, Request


def deal(rng: np.random.Generator, labels: IntArray, counts: IntArray) -> IntArray:
    """Give each client ``counts[client, class]`` random rows of each class.

    Return the owner of every row.
    """
    clients, classes = counts.shape
    owner = np.full(len(labels), NOBODY, dtype=np.int64)
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    first = np.searchsorted(labels[by_class], np.arange(classes))
    for label in range(classes):
        takers = np.repeat(np.arange(clients), counts[:, label])
        owner[by_class[first[label] : first[label] + len(takers)]] = takers
    return owner


def deal_test(request: Request, owner: IntArray, test: IntArray) -> IntArray:
    """Return the owner of every test row.

    Each class in proportion to the clients' training examples of it.
    """
    rng = request.rng("test")
    owned = owner >= 0
    cells = owner[owned] * request.classes + request.labels[owned]
    held = np.bincount(cells, minlength=request.clients * request.classes).reshape(
        request.clients, request.classes
    )
    sizes = np.bincount(test, minlength=request.classes)
    counts = [apportion(rng, int(size), held[:, label]) for label, size in enumerate(sizes)]
    return deal(rng, test, np.stack(counts, axis=1))


def apportion(rng: np.random.Generator, total: int, weights: IntArray) -> IntArray:
    """Divide ``total`` in proportion to whole weights.

    Floors first, the rest to the largest remainders, ties by lot.

    >>> apportion(np.random.default_rng(0), 10, np.array([1, 0, 2])).tolist()
    [3, 0, 7]
    """
    if not weights.any():
        return np.zeros_like(weights)
    shares, remainders = np.divmod(total * weights, weights.sum())
    lots = rng.permutation(len(weights))
    largest = lots[np.argsort(-remainders[lots], kind="stable")]
    shares[largest[: total - shares.sum()]] += 1
    return shares


def rows_of_clients(owner: IntArray, clients: int) -> tuple[IntArray, ...]:
    """Return each client's rows, sorted."""
    order = np.argsort(owner, kind="stable")
    cuts = np.searchsorted(owner[order], np.arange(clients + 1))
    return tuple(order[start:stop] for start, stop in pairwise(cuts))


def even_sizes(total: int, parts: int) -> list[int]:
    """Return sizes that add up to ``total`` and differ by at most 1."""
    return [total // parts + (part < total % parts) for part in range(parts)]


def deal_own(
    request: Request, table: Table, test: IntArray, places: tuple[Places, Places]
) -> tuple[IntArray, IntArray]:
    """Return the owner of every training and of every test row; a column too many is public."""
    owner = proportions.dealt(table, request.labels, places[0])
    owner[owner == request.clients] = PUBLIC
    held = np.bincount(owner[owner >= 0], minlength=request.clients)
    if not held.all():
        raise _nothing_for(request, table, int(held.argmin()))
    return owner, proportions.dealt(table[:, : request.clients], test, places[1])


def _nothing_for(request: Request, table: Table, client: int) -> BadInput:
    """Return the error for a client without examples: drawing again would be drawing by data."""
    mine = np.flatnonzero(table[:, client])
    why = "own data are divided record by record; take fewer clients, another seed, a milder split"
    if len(mine) and not request.class_sizes[mine].any():
        why = (
            f"there is none of class {mine[0]}, and all classes count, also those without examples"
        )
    return request.refusal(f"client {client} gets no training example: {why}")
