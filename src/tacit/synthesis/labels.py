"""Which labels a client's synthetic examples get, and how many.

As DA-FL draws them, and with less noise.

`pls` is DA-FL's algorithm 3. Its guarantee is for replacing a record, so it takes the number of
records as known. `histogram` counts records with discrete Laplace noise: for zeroing one out, and
for one record more or less; the noisy total may be known.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tacit.core import Array, Client, Released, check
from tacit.privacy.rules import Choices, Histogram


def pls(me: Client, *, classes: int, gamma: float, epsilon: float) -> Released[Array]:
    """Choose how many synthetic examples of each class to make (algorithm 3).

    About ``gamma`` for each of a client's own.

    Guarantee, for replacing one record: each of the L choices is an exponential mechanism with
    epsilon / L.
    """
    check.number("gamma", gamma, above=0, at_most=1)
    n_k = own_counts(me, classes)
    n = int(n_k.sum())
    n_hat = int(np.floor(gamma * n))
    utilities = [utility(int(k), n, n_hat) for k in n_k]
    return pls_rule(epsilon, classes).send(me, utilities, sensitivity=1 / max(n, 1))


def pls_rule(epsilon: float, classes: int = 1) -> Choices:
    """Return the rule of :func:`pls`; predicted as one choice where nobody knows the classes."""
    return Choices("pls", epsilon, classes, relation="replace")


def utility(n_k: int, n: int, n_hat: int) -> Array:
    """Return how well each r of 0..n_hat keeps a class's share: -|r/n_hat - n_k/n| (eq. 4)."""
    return -np.abs(np.arange(n_hat + 1) / max(n_hat, 1) - n_k / max(n, 1))


def histogram(me: Client, *, classes: int, epsilon: float) -> Released[Array]:
    """Count a client's records of each class with discrete Laplace noise.

    A count may come out negative.

    Guarantee, for zeroing one record out, and for one record more or less: one count changes by
    one, so all counts together cost epsilon once.
    """
    return histogram_rule(epsilon).send(me, own_counts(me, classes))


def histogram_rule(epsilon: float) -> Histogram:
    """Return the rule of :func:`histogram`."""
    return Histogram("class histogram", epsilon)


def own_counts(me: Client, classes: int) -> Array:
    """Return how many records of each class a client holds: private."""
    return np.bincount(me.data.examples.y.numpy(), minlength=classes)


def alike(classes: int) -> Released[Array]:
    """Return one for each class: what is known of a client's labels by who knows nothing."""
    return Released(np.ones(classes))


def wanted(counts: Array, gamma: float) -> Array:
    """Return m_k = round(gamma max(n_k, 0)), from released counts."""
    return np.rint(gamma * np.maximum(counts, 0)).astype(np.int64)


def held(counts: Array, sd: float) -> Array:
    """Return noisy counts, at least 0, without those that noise of this deviation explains.

    If all are such, as is.
    """
    clear: Array = np.where(counts > 3 * sd, counts, 0.0)
    return clear if clear.any() else np.maximum(counts, 0.0)


def public_size(counts: Array) -> int:
    """Return the number of records by released counts, at least 1, where the true one is secret."""
    return max(1, round(float(np.sum(counts))))


def shares(counts: Array) -> Array:
    """Return the share of each class by released counts; if none is left, all are alike."""
    positive = np.maximum(np.asarray(counts, np.float64), 0)
    return (
        positive / positive.sum() if positive.any() else np.full(len(positive), 1 / len(positive))
    )


def cut(n: int, p: Array) -> Array:
    """Return whole numbers that add up to ``n``, as near to ``n p`` as can be (GFL's CutData).

    >>> cut(5, np.array([0.5, 0.25, 0.25]))
    array([3, 1, 1])
    """
    whole: Array = np.floor(n * p).astype(np.int64)
    short = n - int(whole.sum())
    whole[np.argsort(whole - n * p, kind="stable")[:short]] += 1
    return whole


def random_labels(held: Array, n: int, rng: np.random.Generator) -> Tensor:
    """Return n labels of these classes (of all, if there are none) in random proportions P_k."""
    weights = rng.dirichlet(np.ones(len(held))) * (held if held.any() else 1.0)
    return spelled_out(cut(n, weights / weights.sum()))


def iidify(y: Tensor, rng: np.random.Generator, classes: int = 0) -> Tensor:
    """Return rows with as many of each class as the rarest one has (IIDify).

    That is the rarest of those that are there or, as the paper prints it, of all ``classes``: then
    nothing is left where one of them is missing.
    """
    rows = [np.flatnonzero(y.numpy() == c) for c in range(classes) or np.unique(y.numpy())]
    least = min(map(len, rows), default=0)
    chosen = [rng.choice(r, least, replace=False) for r in rows]
    return torch.from_numpy(np.sort(np.concatenate(chosen)) if chosen else np.zeros(0, np.int64))


def spelled_out(m: Array) -> Tensor:
    """Return m_k labels of each class k, in order.

    >>> spelled_out(np.array([2, 0, 1]))
    tensor([0, 0, 2])
    """
    return torch.from_numpy(np.repeat(np.arange(len(m)), m))
