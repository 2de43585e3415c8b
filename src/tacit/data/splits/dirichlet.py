"""The meanings of Dir(beta): proportions over the clients, or over the classes."""

from __future__ import annotations

import numpy as np

from tacit.core.data import IntArray
from tacit.data import proportions
from tacit.data.proportions import Table, dirichlet
from tacit.data.splits.dealing import deal, even_sizes
from tacit.data.splits.drawing import balanced_division, divide, draw_filled
from tacit.data.splits.scheme import Request, Scheme, beta_of

LEAST = 10  # examples of a client, in NIID-Bench
DRAWS = 10_000  # NIID-Bench draws for ever


def draw(request: Request) -> IntArray:
    """For each class, proportions over the *clients* from Dir(beta); no client is empty.

    Both the classes and the sizes of the clients become unequal. `draw_balanced` is this law as
    NIID-Bench has it, `draw_mixes` and `draw_prior` are the other meaning.
    """
    rng, beta = request.rng("dirichlet"), beta_of(request)
    counts = draw_filled(lambda: divide(rng, beta, request.class_sizes, request.clients))
    return deal(rng, request.labels, counts)


def shares(request: Request) -> Table:
    """For each class, proportions over the clients from Dir(beta)."""
    rng, beta = request.rng("dirichlet"), beta_of(request)
    return proportions.spread(lambda: dirichlet(rng, beta, request.clients, request.classes))


def draw_balanced(request: Request) -> IntArray:
    """Divide by Dir(beta) as NIID-Bench (Li et al. 2022) does, which is DA-FL's Dir(0.05).

    A client that has an even share already gets nothing of the classes that follow, and all is
    drawn again until everybody has 10 examples.
    """
    rng, beta = request.rng("niid-dirichlet"), beta_of(request)
    if len(request.labels) < LEAST * request.clients:
        raise request.refusal(
            f"{request.clients} clients of at least {LEAST} need {LEAST * request.clients} "
            f"training examples (there are {len(request.labels)})"
        )
    for _ in range(max(1, min(DRAWS, 10_000_000 // (request.clients * request.classes)))):
        counts = balanced_division(rng, beta, request.class_sizes, request.clients)
        if counts.sum(axis=1).min() >= LEAST:
            return deal(rng, request.labels, counts)
    raise request.refusal(
        f"no draw gave every client {LEAST} examples; take a larger beta or fewer clients"
    )


def balanced_shares(request: Request) -> Table:
    """NIID-Bench's division of classes that are alike frequent: no record has a say."""
    rng, beta = request.rng("niid-dirichlet"), beta_of(request)
    many = np.full(request.classes, 1_000_000)

    def share() -> Table:
        return balanced_division(rng, beta, many, request.clients).T / 1_000_000

    return proportions.spread(share)


def draw_mixes(request: Request) -> IntArray:
    """For each client, proportions over the *classes* from Dir(beta), whatever classes there are.

    All clients have the same size (to within 1). Examples are drawn without replacement; when a
    class is used up, a client's other proportions are scaled up, so the last clients get what the
    earlier ones left.
    """
    rng, beta = request.rng("dirichlet-client"), beta_of(request)
    return _draw_clients(request, rng, np.full(request.classes, beta))


def mixed_shares(request: Request) -> Table:
    """For each client, proportions over the classes from Dir(beta), then balanced.

    A class that nobody's mix has is divided evenly: its proportions are all as small.
    """
    rng, beta = request.rng("dirichlet-client"), beta_of(request)
    return proportions.balanced(dirichlet(rng, beta, request.classes, request.clients).T + 1e-12)


def draw_prior(request: Request) -> IntArray:
    """For each client, proportions over the classes from Dir(beta p): Hsu, Qi and Brown (2019).

    p is the share of each class in all data. With ten even classes, beta 1 is Dir(0.1): GFL, which
    sweeps alpha and names Dir(0.1), is read so. Otherwise as `draw_mixes`.
    """
    rng, beta = request.rng("dirichlet-prior"), beta_of(request)
    p = request.class_sizes / len(request.labels)
    return _draw_clients(request, rng, np.minimum(beta, 1e12) * p)


def prior_shares(request: Request) -> Table:
    """Dir(beta p) for each client, then balanced; p is even, as no record decides."""
    rng, beta = request.rng("dirichlet-prior"), beta_of(request) / request.classes
    return proportions.balanced(dirichlet(rng, beta, request.classes, request.clients).T + 1e-12)


def _draw_clients(request: Request, rng: np.random.Generator, beta: Table) -> IntArray:
    """Draw client after client from what is left; ``beta`` is by class."""
    left = request.class_sizes
    counts = np.zeros((request.clients, request.classes), dtype=np.int64)
    for client, size in enumerate(even_sizes(len(request.labels), request.clients)):
        counts[client] = _draw_mix(rng, beta, size, left)
        left -= counts[client]
    return deal(rng, request.labels, counts)


def _draw_mix(rng: np.random.Generator, beta: Table, size: int, left: IntArray) -> IntArray:
    """Draw ``size`` examples from what is left, by class proportions from Dir(beta).

    Every repetition uses up a class.

    Proportions that lose a class and are scaled up follow Dir(beta) over the other classes,
    whatever the lost share was; so they are drawn anew, which also works where beta is so small
    that the others have no share to scale.
    """
    counts = np.zeros_like(left)
    while (missing := size - int(counts.sum())) > 0:
        still = np.flatnonzero(left > counts)
        counts[still] += rng.multinomial(missing, dirichlet(rng, beta[still], len(still), 1)[0])
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
NIID_DIRICHLET = Scheme(
    "niid-dirichlet:beta",
    "NIID-Bench's: like dirichlet:beta, balanced, and at least 10 examples per client",
    draw_balanced,
    balanced_shares,
)
DIRICHLET_PRIOR = Scheme(
    "dirichlet-prior:beta",
    "each client's class mix is drawn from Dir(beta p), p the class shares of all data (Hsu 2019)",
    draw_prior,
    prior_shares,
)
