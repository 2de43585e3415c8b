"""Splits: which rows of a data set belong to which client.

A split is asked for by a short text, ``name`` or ``name:argument`` (see `SCHEMES`), and depends
only on that text, the labels, the number of clients and classes, and the seed. Every example goes
to at most one client and every client gets at least one training example; a request that cannot be
met is refused in one line.

Each file here has one way to divide, or two that share their rows. A scheme says for every row who
owns it. For public data most schemes first fill a table ``counts[client, class]`` and then deal the
shuffled rows of each class accordingly, so the work grows with examples + clients * classes. Own
data bring a place for each record, and then a scheme is a table of proportions that looks at no
record (see `tacit.data.proportions`).
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
from numpy.typing import ArrayLike

from tacit.core import check
from tacit.core.data import IntArray
from tacit.core.errors import BadInput
from tacit.core.registry import Registry
from tacit.data.places import Places
from tacit.data.splits.dealing import deal_own, deal_test, rows_of_clients
from tacit.data.splits.scheme import PUBLIC, Request, Scheme, Split, refusal

__all__ = [
    "SCHEMES",
    "SPLITS",
    "Scheme",
    "Split",
    "clients_of",
    "is_own_split",
    "owner_column",
    "split",
]


def _schemes(module: ModuleType) -> dict[str, Scheme]:
    return {s.name: s for s in vars(module).values() if isinstance(s, Scheme)}


SPLITS: Registry[Scheme] = Registry("split", group="tacit.splits", package=__name__, found=_schemes)
SCHEMES: dict[str, str] = {scheme.usage: scheme.about for scheme in SPLITS.values()}
"""How each scheme is written, and what it does in one line."""
BY = "by"
BY_COLUMN = {f"{BY}:COLUMN": "a column of your table says whose row it is; it is then no feature"}
"""How it is written that the data themselves say who holds what."""


def split(
    scheme: str,
    train_labels: ArrayLike,
    test_labels: ArrayLike,
    *,
    clients: int,
    classes: int,
    seed: int,
    places: tuple[Places, Places] | None = None,
) -> Split:
    """Divide a data set among clients.

    The test examples of each class go to the clients in proportion to their training examples of
    that class, so a client's test rows look like its training rows; those of a class nobody trains
    on are left out.

    Args:
        scheme: one of `SCHEMES`, as a text.
        train_labels: the class numbers of the training examples.
        test_labels: those of the test examples.
        clients: how many there are.
        classes: how many there are.
        seed: the same one gives the same split.
        places: for own data, a number in [0, 1) for each training and each test example that
            depends on nothing but the example (`tacit.data.places`). Then who holds an example
            depends on nothing else either. None: the data are public.

    >>> divided = split("label:1", [0, 0, 1, 1], [1, 0], clients=2, classes=2, seed=0)
    >>> sorted(rows.tolist() for rows in divided.train)
    [[0, 1], [2, 3]]
    """
    known, argument = _parse(scheme)
    check.number("classes", classes, at_least=1)
    check.number("seed", seed, at_least=0)
    train = _labels("train_labels", train_labels, classes)
    test = _labels("test_labels", test_labels, classes)
    _check_clients(scheme, clients, len(train))
    request = Request(scheme, argument, train, clients, classes, seed)
    noise = known.noise(request) if known.noise else None
    if places is None:
        owner = known.draw(request)
        owner_of_test = deal_test(request, owner, test)
    else:
        owner, owner_of_test = deal_own(request, known.shares(request), test, places)
    public = np.flatnonzero(owner == PUBLIC)
    return Split(
        train=rows_of_clients(owner, clients),
        test=rows_of_clients(owner_of_test, clients),
        relabel=known.relabel(request) if known.relabel else None,
        noise=noise,
        public=public if len(public) else None,
    )


def owner_column(scheme: str) -> str:
    """Return the column that says whose row it is, for ``by:COLUMN``; empty for other schemes.

    >>> owner_column("by:ward"), owner_column("iid")
    ('ward', '')
    """
    name, _, column = scheme.partition(":")
    if name == BY and not column:
        raise refusal(scheme, f"the argument is missing, write {BY}:COLUMN")
    return column if name == BY else ""


def is_own_split(scheme: str) -> bool:
    """Tell whether a split is code of the user's own: ``mine.py:by_ward``, or an installed name."""
    return (
        not owner_column(scheme)
        and scheme.partition(":")[0] not in SPLITS
        and SPLITS.is_own(scheme)
    )


def clients_of(scheme: str, clients: int) -> int:
    """Return how many clients a scheme has.

    ``sizes`` says so itself, every other scheme has as many as are wanted.

    >>> clients_of("sizes:kd-mnist", 10), clients_of("iid", 10)
    (53, 10)
    """
    if is_own_split(scheme) or owner_column(scheme):
        return clients
    known, argument = _parse(scheme)
    return known.clients(scheme, argument) if known.clients else clients


def _parse(scheme: str) -> tuple[Scheme, str]:
    """Return a scheme and its argument, refusing unknown names and a missing or needless one."""
    name, colon, argument = scheme.partition(":")
    SPLITS.check(name)
    known = SPLITS[name]
    if colon and not known.has_argument:
        raise refusal(scheme, f"{name} takes no argument")
    if known.has_argument and not argument:
        raise refusal(scheme, f"the argument is missing, write {known.usage}")
    return known, argument


def _check_clients(scheme: str, clients: int, examples: int) -> None:
    """Refuse a number of clients that does not fit the scheme or the data."""
    check.number("clients", clients, at_least=1)
    implied = clients_of(scheme, clients)
    if implied != clients:
        raise BadInput(f"clients = {clients}: must be {implied} (as split {scheme!r} says)")
    if clients > examples:
        raise BadInput(
            f"clients = {clients}: must be at most {examples} (there are {examples} training "
            "examples)"
        )


def _labels(field: str, values: ArrayLike, classes: int) -> IntArray:
    """Return labels as a row of whole numbers, refusing those that name no class."""
    labels = np.asarray(values)
    if labels.ndim != 1 or (labels.size and labels.dtype.kind not in "iu"):
        raise BadInput(
            f"{field} = {labels.dtype} of shape {labels.shape}: must be a row of whole numbers"
        )
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        raise BadInput(
            f"{field}[{wrong[0]}] = {labels[wrong[0]]}: must be between 0 and {classes - 1}"
        )
    return labels.astype(np.int64)
