"""Unequal sizes, and classes as in the whole set."""

from __future__ import annotations

import numpy as np

from tacit.core.data import IntArray
from tacit.data import proportions
from tacit.data.proportions import Table, dirichlet
from tacit.data.splits.dealing import deal
from tacit.data.splits.drawing import divide, draw_filled
from tacit.data.splits.scheme import Request, Scheme, beta_of


def draw(request: Request) -> IntArray:
    """Sizes from Dir(beta), classes as in the whole set (NIID-Bench's quantity skew).

    As if all were one class.
    """
    rng, beta = request.rng("quantity"), beta_of(request)
    everything = np.array([len(request.labels)], dtype=np.int64)
    counts = draw_filled(lambda: divide(rng, beta, everything, request.clients))
    return deal(rng, np.zeros_like(request.labels), counts)


def shares(request: Request) -> Table:
    """One draw from Dir(beta) over the clients, for all classes."""
    rng, beta = request.rng("quantity"), beta_of(request)
    one = proportions.spread(lambda: dirichlet(rng, beta, request.clients, 1))
    return np.repeat(one, request.classes, axis=0)


QUANTITY = Scheme(
    "quantity:beta",
    "like iid, but the clients' sizes are drawn from Dir(beta)",
    draw,
    shares,
)
