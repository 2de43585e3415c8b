"""Public proportions: which share of each class every client gets, before anybody looks at data.

Own data are divided by them. A record draws its client with the proportions of its class, and the
number that it draws with is its own (see `tacit.data.places`): nothing here knows how many records
there are, so that no record moves when another one comes or goes. Tables are ``P[class, client]``;
a row adds up to 1, or to 0 where nobody holds the class.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tacit.data.places import Places

Table = NDArray[np.float64]
NOBODY = -1  # the owner of a record that no client gets


def dealt(table: Table, labels: NDArray[np.int64], places: Places) -> NDArray[np.int64]:
    """Return the column that each record falls into: the interval of its row that has its place.

    >>> dealt(np.array([[0.5, 0.5], [0, 0]]), np.array([0, 0, 1]), np.array([0.4, 0.6, 0.1]))
    array([ 0,  1, -1])
    """
    owner = np.full(len(labels), NOBODY, dtype=np.int64)
    upto = np.cumsum(table, axis=1)
    for label in np.flatnonzero(upto[:, -1] > 0):
        rows = labels == label
        edges = upto[label] / upto[label, -1]  # the last one is 1, to the bit
        owner[rows] = np.searchsorted(edges, places[rows], side="right")
    return owner


def even(classes: int, clients: int) -> Table:
    """Return the same share for everybody."""
    return np.full((classes, clients), 1 / clients)


def among(holds: NDArray[np.bool_]) -> Table:
    """Divide each class evenly among its holders; ``holds`` is by client and class."""
    return _over_rows(holds.T.astype(np.float64))


def dirichlet(rng: np.random.Generator, beta: float | Table, parts: int, draws: int) -> Table:
    """Draw ``draws`` times from Dir(beta) over ``parts``; beta may differ from part to part.

    Beyond 1e-9 and 1e9 the limits are as good as reached.
    """
    return rng.dirichlet(np.full(parts, np.clip(beta, 1e-9, 1e9)), size=draws)


def spread(draw: Callable[[], Table]) -> Table:
    """Draw a table again until every client has a hundredth of an even share, at most 100 times.

    That takes the place of drawing again while a client is empty, which only data could tell.
    """
    table = draw()
    for _ in range(99):
        if table.mean(axis=0).min() * table.shape[1] >= 0.01:
            return table
        table = draw()
    return table


def balanced(weights: Table) -> Table:
    """Scale rows and columns, so that clients get alike much if classes are alike frequent.

    Where the zeros of ``weights`` forbid that, it is as near as they allow (Sinkhorn's algorithm).
    """
    for _ in range(200):
        weights = _over_rows(_over_rows(weights.T).T)
    return weights


def _over_rows(table: Table) -> Table:
    """Divide each row by its sum; one of zeros stays."""
    sums = table.sum(axis=1, keepdims=True)
    divided: Table = np.divide(table, sums, out=np.zeros_like(table), where=sums > 0)
    return divided
