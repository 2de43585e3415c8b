"""Splits: which rows of a data set belong to which client.

A split is asked for by a short text, ``name`` or ``name:argument`` (see `SCHEMES`), and depends
only on that text, the labels, the number of clients and classes, and the seed. Every example goes
to at most one client and every client gets at least one training example; a request that cannot be
met is refused in one line.

Inside, a scheme says for every row who owns it. For public data most schemes first fill a table
``counts[client, class]`` and then deal the shuffled rows of each class accordingly, so the work
grows with examples + clients * classes. Own data bring a place for each record, and then a scheme
is a table of proportions that looks at no record (see `tacit.data.proportions`).
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.core.errors import BadInput, check_choice, check_number
from tacit.core.own_code import is_code
from tacit.data import proportions
from tacit.data.places import Places
from tacit.data.proportions import NOBODY, Table, dirichlet

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

SCHEMES: dict[str, str] = {
    "iid": "shuffled, equal sizes",
    "label:k": "exactly k classes per client; a class is divided evenly among its holders",
    "dirichlet:beta": "each class is divided over the clients by proportions from Dir(beta); small beta = very unequal",
    "dirichlet-client:beta": "each client's class mix is drawn from Dir(beta); equal sizes",
    "quantity:beta": "like iid, but the clients' sizes are drawn from Dir(beta)",
    "acid:k": "k classes per client, sampled without replacement, equal sizes where possible",
    "alid:k": "like acid:k, and each client's class numbers are permuted privately",
    "sizes:SPEC": "given sizes, such as sizes:4x2500,49x1000,public=1000 (or public=rest, kd-mnist, kd-svhn)",
    "feature-noise:s": "like iid, and client i of N (from 1) sees its inputs with noise of variance s*i/N",
}
"""How each scheme is written, and what it does in one line."""

_USAGE = {usage.partition(":")[0]: usage for usage in SCHEMES}

PRESETS: dict[str, str] = {
    "kd-mnist": "4x2500,49x1000,public=1000",
    "kd-svhn": "3x4419,49x1200,public=rest",
}
"""The sizes of KD-DPFL's two settings, for ``sizes:``."""

_PUBLIC = -2  # the owner of what belongs to nobody and everybody may see


@dataclass(frozen=True)
class Split:
    """Who holds what. Client ``i`` is place ``i`` of every tuple."""

    train: tuple[IntArray, ...]  # sorted rows of the training set
    # sorted rows of the test set, only of classes the client may train on; may be empty
    test: tuple[IntArray, ...]
    # alid: client i's label y becomes relabel[i][y]
    relabel: tuple[tuple[int, ...], ...] | None = None
    # feature-noise: standard deviation, for pixels scaled to 0..1
    noise: tuple[float, ...] | None = None
    # sizes: sorted training rows that belong to nobody and are public
    public: IntArray | None = None


@dataclass(frozen=True)
class _Request:
    """What was asked for, already checked except for the argument, which each scheme reads itself."""

    scheme: str
    argument: str
    labels: IntArray
    clients: int
    classes: int
    seed: int

    @property
    def class_sizes(self) -> IntArray:
        return np.bincount(self.labels, minlength=self.classes).astype(np.int64)

    def rng(self, stream: str) -> np.random.Generator:
        """Return the generator of a named stream; no two streams of a seed share numbers."""
        return np.random.default_rng([self.seed, *stream.encode()])

    def refusal(self, reason: str) -> BadInput:
        return _refusal(self.scheme, reason)


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
    name, argument = _parse(scheme)
    check_number("classes", classes, at_least=1)
    check_number("seed", seed, at_least=0)
    train, test = (
        _labels("train_labels", train_labels, classes),
        _labels("test_labels", test_labels, classes),
    )
    _check_clients(scheme, clients, len(train))
    request = _Request(scheme, argument, train, clients, classes, seed)
    noise = _noise_levels(request) if name == "feature-noise" else None
    if places is None:
        owner = _DRAW[name](request)
        owner_of_test = _deal_test(request, owner, test)
    else:
        owner, owner_of_test = _own(request, _SHARES[name](request), test, places)
    public = np.flatnonzero(owner == _PUBLIC)
    return Split(
        train=_rows_of_clients(owner, clients),
        test=_rows_of_clients(owner_of_test, clients),
        relabel=_permutations(request) if name == "alid" else None,
        noise=noise,
        public=public if len(public) else None,
    )


def is_own_split(scheme: str) -> bool:
    """Tell whether a split is code of the user's own, such as ``mine.py:by_ward``."""
    return scheme.partition(":")[0] not in _USAGE and is_code(scheme)


def clients_of(scheme: str, clients: int) -> int:
    """Return how many clients a scheme has.

    ``sizes`` says so itself, every other scheme has as many as are wanted.

    >>> clients_of("sizes:kd-mnist", 10), clients_of("iid", 10)
    (53, 10)
    """
    if is_own_split(scheme):
        return clients
    name, argument = _parse(scheme)
    return sum(many for many, _ in _groups(scheme, argument)) if name == "sizes" else clients


# ---- the schemes: each returns the owner of every training row
# -------------------------------------------------------


def _iid(request: _Request) -> IntArray:
    """Deal the shuffled rows one by one, so that sizes differ by at most 1 (also the rows of ``feature-noise``)."""
    owner = np.empty(len(request.labels), dtype=np.int64)
    owner[request.rng("iid").permutation(len(owner))] = np.arange(len(owner)) % request.clients
    return owner


def _label(request: _Request) -> IntArray:
    """Exactly k classes for each client (NIID-Bench's #C=k, DA-FL's k-Label).

    All examples of a held class are used.
    """
    rng = request.rng("label")
    holds = _draw_holders(request, rng)
    counts = np.zeros(holds.shape, dtype=np.int64)
    for label, size in enumerate(request.class_sizes):
        holders = rng.permutation(np.flatnonzero(holds[:, label]))
        if len(holders):
            counts[holders, label] = size // len(holders)
            counts[holders[: size % len(holders)], label] += 1
    return _deal(rng, request.labels, counts)


def _dirichlet(request: _Request) -> IntArray:
    """For each class, proportions over the *clients* from Dir(beta).

    The meaning of NIID-Bench, and of most papers that write Dir(beta): both the classes and the
    sizes of the clients become unequal. `_dirichlet_client` is the other meaning.
    """
    rng, beta = request.rng("dirichlet"), _beta(request)
    counts = _draw_filled(lambda: _divide(rng, beta, request.class_sizes, request.clients))
    return _deal(rng, request.labels, counts)


def _dirichlet_client(request: _Request) -> IntArray:
    """For each client, proportions over the *classes* from Dir(beta), as in Hsu, Qi and Brown (2019).

    All clients have the same size (to within 1). Examples are drawn without replacement; when a
    class is used up, a client's other proportions are scaled up, so the last clients get what the
    earlier ones left.
    """
    rng, beta = request.rng("dirichlet-client"), _beta(request)
    left = request.class_sizes
    counts = np.zeros((request.clients, request.classes), dtype=np.int64)
    for client, size in enumerate(_even_sizes(len(request.labels), request.clients)):
        counts[client] = _draw_mix(rng, beta, size, left)
        left -= counts[client]
    return _deal(rng, request.labels, counts)


def _quantity(request: _Request) -> IntArray:
    """Sizes from Dir(beta), classes as in the whole set (NIID-Bench's quantity skew).

    As if all were one class.
    """
    rng, beta = request.rng("quantity"), _beta(request)
    everything = np.array([len(request.labels)], dtype=np.int64)
    counts = _draw_filled(lambda: _divide(rng, beta, everything, request.clients))
    return _deal(rng, np.zeros_like(request.labels), counts)


def _acid(request: _Request) -> IntArray:
    """K classes for each client, sampled from without replacement (CUAG-PFL's ACIDk.

    Also the rows of ALIDk).

    The clients draw in a random order, each as many examples as an equal division gives, or fewer
    when its classes have no more. One example of each class is set aside for each of its holders,
    so everyone has exactly k classes.
    """
    rng = request.rng("acid")
    holds = _draw_holders(request, rng)
    counts = holds.astype(np.int64)
    waiting = counts.sum(axis=0)
    left = request.class_sizes - waiting
    goal = len(request.labels) // request.clients
    for client in rng.permutation(request.clients):
        mine = np.flatnonzero(holds[client])
        drawn = _draw_fairly(goal - len(mine), left[mine], waiting[mine])
        counts[client, mine] += drawn
        left[mine] -= drawn
        waiting[mine] -= 1
    return _deal(rng, request.labels, counts)


def _sizes(request: _Request) -> IntArray:
    """Clients of given sizes, in the order of the text, and a public rest (KD-DPFL's large, general, public); IID."""
    groups, total = _groups(request.scheme, request.argument), len(request.labels)
    private = sum(many * size for many, size in groups)
    asked = _spec(request.scheme, request.argument).get("public", "0")
    public = total - private if asked == "rest" else int(asked)
    if private + public > total or (asked == "rest" and public < 1):
        more = " and a public rest" if asked == "rest" else ""
        needs = private + (0 if asked == "rest" else public)
        raise request.refusal(f"needs {needs} training examples{more} (there are {total})")
    sizes = np.repeat([size for _, size in groups], [many for many, _ in groups])
    order = request.rng("sizes").permutation(total)
    owner = np.full(total, NOBODY, dtype=np.int64)
    owner[order[:private]] = np.repeat(np.arange(len(sizes)), sizes)
    owner[order[private : private + public]] = _PUBLIC
    return owner


_DRAW: dict[str, Callable[[_Request], IntArray]] = {
    "iid": _iid,
    "label": _label,
    "dirichlet": _dirichlet,
    "dirichlet-client": _dirichlet_client,
    "quantity": _quantity,
    "acid": _acid,
    "alid": _acid,
    "sizes": _sizes,
    "feature-noise": _iid,
}


# ---- own data: each scheme returns its proportions, P[class, client], which no record decides
# -------------------------------------------------------


def _own(
    request: _Request, table: Table, test: IntArray, places: tuple[Places, Places]
) -> tuple[IntArray, IntArray]:
    """Return the owner of every training and of every test row; a column too many is public."""
    owner = proportions.dealt(table, request.labels, places[0])
    owner[owner == request.clients] = _PUBLIC
    held = np.bincount(owner[owner >= 0], minlength=request.clients)
    if not held.all():
        raise _empty(request, table, int(held.argmin()))
    return owner, proportions.dealt(table[:, : request.clients], test, places[1])


def _empty(request: _Request, table: Table, client: int) -> BadInput:
    """Return the error for a client without examples: drawing again would be drawing by data."""
    mine = np.flatnonzero(table[:, client])
    why = "own data are divided record by record; take fewer clients, another seed, a milder split"
    if len(mine) and not request.class_sizes[mine].any():
        why = (
            f"there is none of class {mine[0]}, and all classes count, also those without examples"
        )
    return request.refusal(f"client {client} gets no training example: {why}")


def _even_shares(request: _Request) -> Table:
    return proportions.even(request.classes, request.clients)


def _label_shares(request: _Request) -> Table:
    """K classes for each client, each divided evenly among its holders."""
    return proportions.among(_holds(request, request.rng("label"), np.arange(request.classes)))


def _acid_shares(request: _Request) -> Table:
    """K classes for each client, divided so that clients are as large as each other if they can be."""
    holds = _holds(request, request.rng("acid"), np.arange(request.classes))
    return proportions.balanced(proportions.among(holds))


def _dirichlet_shares(request: _Request) -> Table:
    """For each class, proportions over the clients from Dir(beta)."""
    rng, beta = request.rng("dirichlet"), _beta(request)
    return proportions.spread(lambda: dirichlet(rng, beta, request.clients, request.classes))


def _mixed_shares(request: _Request) -> Table:
    """For each client, proportions over the classes from Dir(beta), then balanced.

    A class that nobody's mix has is divided evenly: its proportions are all as small.
    """
    rng, beta = request.rng("dirichlet-client"), _beta(request)
    return proportions.balanced(dirichlet(rng, beta, request.classes, request.clients).T + 1e-12)


def _quantity_shares(request: _Request) -> Table:
    """One draw from Dir(beta) over the clients, for all classes."""
    rng, beta = request.rng("quantity"), _beta(request)
    one = proportions.spread(lambda: dirichlet(rng, beta, request.clients, 1))
    return np.repeat(one, request.classes, axis=0)


def _sized_shares(request: _Request) -> Table:
    """Sizes as they are written, over their sum; the public set is the last column."""
    spec = _spec(request.scheme, request.argument)
    if spec.get("public") == "rest":
        raise request.refusal(
            "public=rest: needs the number of records, which own data do not tell; write public=N"
        )
    groups = _groups(request.scheme, request.argument)
    sizes = [size for many, size in groups for _ in range(many)] + [int(spec.get("public", "0"))]
    return np.tile(np.array(sizes) / sum(sizes), (request.classes, 1))


_SHARES: dict[str, Callable[[_Request], Table]] = {
    "iid": _even_shares,
    "label": _label_shares,
    "dirichlet": _dirichlet_shares,
    "dirichlet-client": _mixed_shares,
    "quantity": _quantity_shares,
    "acid": _acid_shares,
    "alid": _acid_shares,
    "sizes": _sized_shares,
    "feature-noise": _even_shares,
}


def _permutations(request: _Request) -> tuple[tuple[int, ...], ...]:
    """Return ALIDk's private numbering of the classes, one permutation for each client."""
    numbers = np.tile(np.arange(request.classes), (request.clients, 1))
    return tuple(tuple(row) for row in request.rng("alid").permuted(numbers, axis=1).tolist())


def _noise_levels(request: _Request) -> tuple[float, ...]:
    """Return sqrt(s * i / N) for client i = 1..N.

    NIID-Bench's feature skew gives s * i / N as the variance.
    """
    s = _number(request, "s")
    if not 0 <= s < math.inf:
        raise request.refusal("s must be at least 0 and finite")
    return tuple(math.sqrt(s * (client + 1) / request.clients) for client in range(request.clients))


# ---- dealing
# ---------------------------------------------------------------------------------------------------------


def _deal(rng: np.random.Generator, labels: IntArray, counts: IntArray) -> IntArray:
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


def _deal_test(request: _Request, owner: IntArray, test: IntArray) -> IntArray:
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
    counts = [_apportion(rng, int(size), held[:, label]) for label, size in enumerate(sizes)]
    return _deal(rng, test, np.stack(counts, axis=1))


def _apportion(rng: np.random.Generator, total: int, weights: IntArray) -> IntArray:
    """Divide ``total`` in proportion to whole weights.

    Floors first, the rest to the largest remainders, ties by lot.

    >>> _apportion(np.random.default_rng(0), 10, np.array([1, 0, 2])).tolist()
    [3, 0, 7]
    """
    if not weights.any():
        return np.zeros_like(weights)
    shares, remainders = np.divmod(total * weights, weights.sum())
    lots = rng.permutation(len(weights))
    largest = lots[np.argsort(-remainders[lots], kind="stable")]
    shares[largest[: total - shares.sum()]] += 1
    return shares


def _rows_of_clients(owner: IntArray, clients: int) -> tuple[IntArray, ...]:
    """Return each client's rows, sorted."""
    order = np.argsort(owner, kind="stable")
    cuts = np.searchsorted(owner[order], np.arange(clients + 1))
    return tuple(order[start:stop] for start, stop in pairwise(cuts))


def _even_sizes(total: int, parts: int) -> list[int]:
    """Return sizes that add up to ``total`` and differ by at most 1."""
    return [total // parts + (part < total % parts) for part in range(parts)]


# ---- drawing
# ---------------------------------------------------------------------------------------------------------


def _draw_holders(request: _Request, rng: np.random.Generator) -> BoolArray:
    """Draw who holds which classes.

    ``holds[client, class]``, k for each client, only classes that have examples.
    """
    sizes = request.class_sizes
    holds = _holds(request, rng, np.flatnonzero(sizes))
    holders = holds.sum(axis=0)
    short = np.flatnonzero(sizes < holders)
    if len(short):
        label = short[0]
        raise request.refusal(
            f"class {label} has {sizes[label]} examples for {holders[label]} clients that should hold it"
        )
    return holds


def _holds(request: _Request, rng: np.random.Generator, present: IntArray) -> BoolArray:
    """Draw who holds which of the classes ``present``, k for each client."""
    k = _k(request, len(present))
    lists = present[_class_lists(rng, request.clients, k, len(present))]
    holds = np.zeros((request.clients, request.classes), dtype=np.bool_)
    holds[np.arange(request.clients)[:, None], lists] = True
    return holds


def _class_lists(rng: np.random.Generator, clients: int, k: int, classes: int) -> IntArray:
    """Deal classes to clients, k each, from one shuffled pack of all classes after the other.

    Packs are used up before the next is opened, so the numbers of holders differ by at most 1. A
    client that gets the end of one pack and the start of the next has the classes it holds already
    moved back in the new pack.
    """
    dealt: list[int] = []
    while len(dealt) < clients * k:
        pack = rng.permutation(classes).tolist()
        begun = len(dealt) % k
        if begun:
            held = set(dealt[-begun:])
            fresh = [label for label in pack if label not in held][: k - begun]
            pack = fresh + [label for label in pack if label not in set(fresh)]
        dealt += pack
    return np.array(dealt[: clients * k], dtype=np.int64).reshape(clients, k)


def _divide(rng: np.random.Generator, beta: float, sizes: IntArray, clients: int) -> IntArray:
    """Divide each class over the clients by its own draw from Dir(beta): ``counts[client, class]``."""
    upto = np.cumsum(dirichlet(rng, beta, clients, len(sizes)), axis=1)
    cuts = np.minimum(upto * sizes[:, None], sizes[:, None]).astype(np.int64)
    cuts[:, -1] = sizes
    return np.diff(cuts, axis=1, prepend=0).T


def _draw_filled(draw: Callable[[], IntArray]) -> IntArray:
    """Draw a table of counts again until no client is empty (NIID-Bench's rule), but not for ever.

    Then repair it.

    There are at most 100 draws, and fewer of large tables, where more clients make an empty one all
    but certain.
    """
    counts = draw()
    for _ in range(min(99, 1_000_000 // counts.size)):
        if counts.sum(axis=1).all():
            return counts
        counts = draw()
    return _fill_empty(counts)


def _fill_empty(counts: IntArray) -> IntArray:
    """Move one example to each empty client, each from the client that is then the largest, of its largest class."""
    counts = counts.copy()
    totals = counts.sum(axis=1)
    largest = [(-total, client) for client, total in enumerate(totals.tolist())]
    heapq.heapify(largest)
    for empty in np.flatnonzero(totals == 0):
        total, donor = largest[0]
        label = counts[donor].argmax()
        counts[donor, label] -= 1
        counts[empty, label] += 1
        heapq.heapreplace(largest, (total + 1, donor))
    return counts


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


def _draw_fairly(wanted: int, left: IntArray, waiting: IntArray) -> IntArray:
    """Take up to ``wanted`` examples from several classes, by what is left of each for each client still waiting.

    Drawing from the pool without regard to the others would leave the last clients half empty.

    >>> _draw_fairly(6, np.array([20, 20]), np.array([5, 10])).tolist()
    [4, 2]
    """
    drawn = np.zeros_like(left)
    while (missing := min(wanted, int(left.sum())) - int(drawn.sum())) > 0:
        fair = (left - drawn) / waiting
        step = (missing * fair / fair.sum()).astype(np.int64)
        if not step.any():
            step[fair.argmax()] = 1
        drawn = np.minimum(drawn + step, left)
    return drawn


# ---- reading and checking what was asked
# -----------------------------------------------------------------------------


def _refusal(scheme: str, reason: str) -> BadInput:
    return BadInput(f"split = {scheme!r}: {reason}")


def _parse(scheme: str) -> tuple[str, str]:
    """Return name and argument, refusing unknown names and a missing or needless argument."""
    name, colon, argument = scheme.partition(":")
    check_choice("split", name, _USAGE)
    if ":" not in _USAGE[name] and colon:
        raise _refusal(scheme, f"{name} takes no argument")
    if ":" in _USAGE[name] and not argument:
        raise _refusal(scheme, f"the argument is missing, write {_USAGE[name]}")
    return name, argument


def _check_clients(scheme: str, clients: int, examples: int) -> None:
    """Refuse a number of clients that does not fit the scheme or the data."""
    check_number("clients", clients, at_least=1)
    implied = clients_of(scheme, clients)
    if implied != clients:
        raise BadInput(f"clients = {clients}: must be {implied} (as split {scheme!r} says)")
    if clients > examples:
        raise BadInput(
            f"clients = {clients}: must be at most {examples} (there are {examples} training examples)"
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


def _k(request: _Request, present: int) -> int:
    """Read the number of classes per client, between 1 and the number of classes that have examples."""
    if not re.fullmatch(r"-?[0-9]{1,9}", request.argument):
        raise request.refusal("k must be a whole number")
    k = int(request.argument)
    if not 1 <= k <= present:
        all_present = present == request.classes
        there = (
            f"there are {present} classes"
            if all_present
            else f"{present} of {request.classes} have examples"
        )
        raise request.refusal(f"k must be between 1 and {present} ({there})")
    return k


def _number(request: _Request, what: str) -> float:
    try:
        return float(request.argument)
    except ValueError:
        raise request.refusal(f"{what} must be a number") from None


def _beta(request: _Request) -> float:
    """Read the concentration of a Dirichlet law; ``inf`` is its limit, equal proportions."""
    beta = _number(request, "beta")
    if not beta > 0:
        raise request.refusal("beta must be above 0")
    return beta


def _spec(scheme: str, argument: str) -> dict[str, str]:
    """Read ``4x2500,49x1000,public=1000`` as {"groups": "4x2500,49x1000", "public": "1000"}.

    Presets are looked up.
    """
    whole = r"[1-9][0-9]{0,8}"
    pattern = rf"(?P<groups>{whole}x{whole}(,{whole}x{whole})*)(,public=(?P<public>{whole}|rest))?"
    match = re.fullmatch(pattern, PRESETS.get(argument, argument))
    if match is None:
        presets = " or ".join(PRESETS)
        raise _refusal(
            scheme, f"must be like sizes:4x2500,49x1000,public=1000 (or public=rest), or {presets}"
        )
    return {key: value for key, value in match.groupdict().items() if value is not None}


def _groups(scheme: str, argument: str) -> list[tuple[int, int]]:
    """Return (how many clients, size of each) for each group of ``sizes``."""
    pairs = (group.split("x") for group in _spec(scheme, argument)["groups"].split(","))
    return [(int(many), int(size)) for many, size in pairs]
