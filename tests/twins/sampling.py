"""Chi-squared tests of who is in samples: a table of steps by units against a law and its rate.

Each row of a table says who was in one sample. Within a step, every subset of the units must come
up as often as the law says, which covers rates, sizes and whatever goes together. From step to step
nothing may carry over: for each unit, being in two samples in a row must be as likely as q^2.
"""

from __future__ import annotations

from itertools import product
from math import comb
from typing import Any

import numpy as np
from scipy import stats

from tacit.core import Sampling

Array = np.ndarray[Any, Any]
FEW = 5.0  # cells with fewer expected are taken together


def p_value(table: Array, sampling: Sampling, lags: int = 3) -> float:
    """Return how likely samples as odd as these are under a law: the least of all tests."""
    odd = [of_subsets(table, sampling)]
    if sampling.q < 1:
        odd += [of_pairs(table, sampling.q, lag) for lag in range(1, lags + 1)]
    return min(1.0, len(odd) * min(odd))


def of_subsets(table: Array, sampling: Sampling) -> float:
    """Return the p-value of the subsets that came up."""
    subsets = np.array(list(product([0, 1], repeat=table.shape[1])))
    weights = 2 ** np.arange(table.shape[1])[::-1]
    seen = np.bincount(table @ weights, minlength=len(subsets))
    return fit(seen, len(table) * np.array([likelihood(s, sampling) for s in subsets]))


def likelihood(subset: Array, sampling: Sampling) -> float:
    """Return how likely a law draws exactly this subset."""
    n, k, q = len(subset), int(subset.sum()), sampling.q
    if sampling.law == "poisson":
        return float(q**k * (1 - q) ** (n - k))
    size = round(q * n)  # all of them, if the law is everyone
    return 1 / comb(n, size) if k == size else 0.0


def of_pairs(table: Array, q: float, lag: int) -> float:
    """Return the p-value of how often each unit is in two samples that are ``lag`` steps apart."""
    before, after = table[:-lag], table[lag:]
    chances = np.array([(1 - q) ** 2, (1 - q) * q, q * (1 - q), q * q])
    p = [
        fit(np.bincount(2 * a + b, minlength=4), len(a) * chances)
        for a, b in zip(before.T, after.T, strict=True)
    ]
    return min(1.0, len(p) * min(p))


def fit(seen: Array, expected: Array) -> float:
    """Return the p-value of counts; 0 if something came up that cannot."""
    if seen[expected == 0].any():
        return 0.0
    order = np.argsort(expected)[np.count_nonzero(expected == 0) :]
    small = max(1, int(np.searchsorted(np.cumsum(expected[order]), FEW)) + 1)
    small = max(small, int(np.count_nonzero(expected[order] < FEW)))
    cells = [order[:small], *([i] for i in order[small:])]
    if len(cells) == 1:
        return 1.0
    pairs = [(seen[c].sum(), expected[c].sum()) for c in cells]
    return float(stats.chisquare(*zip(*pairs, strict=True)).pvalue)
