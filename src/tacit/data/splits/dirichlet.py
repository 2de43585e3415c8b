"""Both meanings of Dir(beta): proportions over the clients, or over the classes."""

from __future__ import annotations

import numpy as np

from tacit.core.data import IntArray
from tacit.data import proportions
from tacit.data.proportions import Table, dirichlet
from tacit.data.splits.dealing import deal, even_sizes
from tacit.data.splits.drawing import divide, draw_filled
from tacit.data.splits.scheme import Request, Scheme, beta_of


def draw(request: Request) -> IntArray:
    """For each class, proportions over the *clients* from Dir(beta).

    The meaning of NIID-Bench, and of most papers that write Dir(beta): both the classes and the
    sizes of the clients become unequal. `draw_mixes` is the other meaning.
    """
    rng, beta = request.rng("dirichlet"), beta_of(request)
    counts = draw_filled(lambda: divide(rng, beta, request.class_sizes, request.clients))
    return deal(rng, request.labels, counts)


def shares(request: Request) -> Table:
    """For each class, proportions over the clients from Dir(beta)."""
    rng, beta = request.rng("dirichlet"), beta_of(request)
    return proportions.spread(lambda: dirichlet(rng, beta, request.clients, request.classes))


def draw_mixes(request: Request) -> IntArray:
    """For each client, proportions over the *classes* from Dir(beta): Hsu, Qi and Brown (2019).

    All clients have the same size (to within 1). Examples are drawn without replacement; when a
    class is used up, a client's other proportions are scaled up, so the last clients get what the
    earlier ones left.
    """
    rng, beta = request.rng("dirichlet-client"), beta_of(request)
    left = request.class_sizes
    counts = np.zeros((request.clients, request.classes), dtype=np.int64)
    for client, size in enumerate(even_sizes(len(request.labels), request.clients)):
        counts[client] = _draw_mix(rng, beta, size, left)
        left -= counts[client]
    return deal(rng, request.labels, counts)


def mixed_shares(request: Request) -> Table:
    """For each client, proportions over the classes from Dir(beta), then balanced.

    A class that nobody's mix has is divided evenly: its proportions are all as small.
    """
    rng, beta = request.rng("dirichlet-client"), beta_of(request)
    return proportions.balanced(dirichlet(rng, beta, request.classes, request.clients).T + 1e-12)


def _draw_mix(rng: np.random.Generator, beta: float, size: int, left: IntArray) -> IntArray:
    """Draw ``size`` examples from what is left, by class proportions from Dir(beta).

    Every repetition uses up a class.

    Proportions that lose a class and are scaled up follow Dir(beta) over the other classes,
    whatever the lost share was; so they are drawn anew, which also works where beta is so small
    that the others have no share to scale.
    """
    counts = np.zeros_like(left)
    while (missing := size - int(counts.sum())) > 0:
        still = np.flatnonzero(left > counts)
        counts[still] += rng.multinomial(missing, dirichlet(rng, beta, len(still), 1)[0])
        counts = np.minimum(counts, left)
    return counts


DIRICHLET = Scheme(
    "dirichlet:beta",
    (
        "each class is divided over the clients by proportions from Dir(beta); small beta "
        "= very unequal"
    ),
    draw,
    shares,
)
DIRICHLET_CLIENT = Scheme(
    "dirichlet-client:beta",
    "each client's class mix is drawn from Dir(beta); equal sizes",
    draw_mixes,
    mixed_shares,
)
