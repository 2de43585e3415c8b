"""A few classes for each client (NIID-Bench's #C=k, DA-FL's k-Label)."""

from __future__ import annotations

import numpy as np

from tacit.core.data import IntArray
from tacit.data import proportions
from tacit.data.proportions import Table
from tacit.data.splits.dealing import deal
from tacit.data.splits.drawing import draw_holders, draw_holds
from tacit.data.splits.scheme import Request, Scheme


def draw(request: Request) -> IntArray:
    """Exactly k classes for each client (NIID-Bench's #C=k, DA-FL's k-Label).

    All examples of a held class are used.
    """
    rng = request.rng("label")
    holds = draw_holders(request, rng)
    counts = np.zeros(holds.shape, dtype=np.int64)
    for label, size in enumerate(request.class_sizes):
        holders = rng.permutation(np.flatnonzero(holds[:, label]))
        if len(holders):
            counts[holders, label] = size // len(holders)
            counts[holders[: size % len(holders)], label] += 1
    return deal(rng, request.labels, counts)


def shares(request: Request) -> Table:
    """K classes for each client, each divided evenly among its holders."""
    return proportions.among(draw_holds(request, request.rng("label"), np.arange(request.classes)))


LABEL = Scheme(
    "label:k",
    "exactly k classes per client; a class is divided evenly among its holders",
    draw,
    shares,
)
