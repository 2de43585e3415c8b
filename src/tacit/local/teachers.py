"""Teachers: what a client's data say about public images, by one model or by several on disjoint parts."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from tacit.core import Client, Params
from tacit.local.sgd import SGD, network, scores

Array = np.ndarray[Any, Any]


def ballots(me: Client, x: Params, sgd: SGD, images: Tensor) -> Array:
    """Train a teacher from ``x`` and return its votes, a row of zeros and a one for each image."""
    y, _ = sgd.fit(me, x)
    shown = scores(network(me, y), me.data.showing(images))
    votes: Array = np.eye(me.classes)[shown.argmax(1).numpy()]
    return votes


def parts(me: Client, many: int) -> list[Array]:
    """Divide a client's rows; the part that an example goes to depends on nothing but the example itself.

    So no example moves when another one comes or goes, whoever knows the seed.
    """
    x = me.data.examples.x.contiguous().numpy()
    digests = (hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in x)
    part = np.array([int.from_bytes(d, "big") % many for d in digests], dtype=np.int64)
    return [np.flatnonzero(part == k) for k in range(many)]


def sub_ballots(me: Client, x: Params, sgd: SGD, images: Tensor, many: int) -> Array:
    """Return how many of a client's sub-teachers, each trained on a part of its data, are for each class."""
    own, rngs = me.data.examples, me.rng.spawn(many)
    total = np.zeros((len(images), me.classes))
    for rows, rng in zip(parts(me, many), rngs, strict=True):
        part = replace(me.data, source=own, rows=rows, relabel=None, noise=0.0, extra=None)
        total += ballots(replace(me, data=part, rng=rng), x, sgd, images)
    return total
