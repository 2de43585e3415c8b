"""As if one had shuffled all examples: no skew."""

from __future__ import annotations

import numpy as np

from tacit.core.data import IntArray
from tacit.data import proportions
from tacit.data.proportions import Table
from tacit.data.splits.scheme import Request, Scheme


def draw(request: Request) -> IntArray:
    """Deal the shuffled rows one by one, so that sizes differ by at most 1."""
    owner = np.empty(len(request.labels), dtype=np.int64)
    owner[request.rng("iid").permutation(len(owner))] = np.arange(len(owner)) % request.clients
    return owner


def shares(request: Request) -> Table:
    """Return the same proportion for every client."""
    return proportions.even(request.classes, request.clients)


IID = Scheme(
    "iid",
    "shuffled, equal sizes",
    draw,
    shares,
)
