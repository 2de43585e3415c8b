"""Inputs with more noise from client to client (NIID-Bench's feature skew)."""

from __future__ import annotations

import math

from tacit.data.splits import iid
from tacit.data.splits.scheme import Request, Scheme, number_of


def levels(request: Request) -> tuple[float, ...]:
    """Return sqrt(s * i / N) for client i = 1..N.

    NIID-Bench's feature skew gives s * i / N as the variance.
    """
    s = number_of(request, "s")
    if not 0 <= s < math.inf:
        raise request.refusal("s must be at least 0 and finite")
    return tuple(math.sqrt(s * (client + 1) / request.clients) for client in range(request.clients))


FEATURE_NOISE = Scheme(
    "feature-noise:s",
    ("like iid, and client i of N (from 1) sees its inputs with noise of variance s*i/N"),
    iid.draw,
    iid.shares,
    noise=levels,
)
