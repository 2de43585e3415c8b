"""A few classes for each client: dealt evenly, or as NIID-Bench's #C=k (DA-FL's k-Label)."""

from __future__ import annotations

import numpy as np

from tacit.core.data import IntArray
from tacit.data import proportions
from tacit.data.proportions import Table
from tacit.data.splits.dealing import deal, even_sizes
from tacit.data.splits.drawing import class_lists, draw_holders, draw_holds, own_and_others
from tacit.data.splits.scheme import Request, Scheme


def draw(request: Request) -> IntArray:
    """Exactly k classes for each client, as many holders for each class (to within 1).

    All examples of a held class are used. `draw_skewed` is NIID-Bench's law.
    """
    rng = request.rng("label")
    holds = draw_holders(request, rng, class_lists)
    counts = np.zeros(holds.shape, dtype=np.int64)
    for label, size in enumerate(request.class_sizes):
        holders = rng.permutation(np.flatnonzero(holds[:, label]))
        if len(holders):
            counts[holders, label] = size // len(holders)
            counts[holders[: size % len(holders)], label] += 1
    return deal(rng, request.labels, counts)


def shares(request: Request) -> Table:
    """K classes for each client, each divided evenly among its holders."""
    every = np.arange(request.classes)
    return proportions.among(draw_holds(request, request.rng("label"), every, class_lists))


def draw_skewed(request: Request) -> IntArray:
    """Class i for client i, round and round, and k - 1 others by lot (NIID-Bench's #C=k).

    A class is cut into equal parts for its holders, in the order of the clients. A client whose
    classes have few holders has more: sizes are skewed, as in DA-FL's 2-Label.
    """
    rng = request.rng("niid-label")
    holds = draw_holders(request, rng, own_and_others)
    counts = np.zeros(holds.shape, dtype=np.int64)
    for label, size in enumerate(request.class_sizes):
        holders = np.flatnonzero(holds[:, label])
        if len(holders):
            counts[holders, label] = even_sizes(int(size), len(holders))
    return deal(rng, request.labels, counts)


def skewed_shares(request: Request) -> Table:
    """NIID-Bench's lists, each class divided evenly among its holders."""
    rng, every = request.rng("niid-label"), np.arange(request.classes)
    return proportions.among(draw_holds(request, rng, every, own_and_others))


LABEL = Scheme(
    "label:k",
    "exactly k classes per client; a class is divided evenly among its holders",
    draw,
    shares,
)
NIID_LABEL = Scheme(
    "niid-label:k",
    "NIID-Bench's #C=k: client i has class i and k-1 random others; sizes are skewed",
    draw_skewed,
    skewed_shares,
)
