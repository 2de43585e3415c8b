"""Random measurement matrices, to compare with the binary one, and sparse recovery.

A matrix for a whole layer would not fit into memory, so a layer is cut into blocks of 512 numbers
(the size of the paper's figure 3), all measured by the same matrix; a shorter last block has a
smaller one. The matrix follows from its size alone, so it is never sent. Recovery is orthogonal
matching pursuit (scikit-learn) block by block, with an eighth of the rows as non-zero coefficients
of the discrete cosine basis: neighbouring weights of a layer move alike, so updates are much nearer
to sparse there than in themselves.
"""

from __future__ import annotations

import warnings
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.compress.binary import rows_for
from tacit.core import rng_for

Array = NDArray[np.float64]
BLOCK = 512  # numbers measured together


@lru_cache(maxsize=64)
def matrix(kind: str, rows: int, columns: int) -> Array:
    """Return a Gaussian or a Bernoulli matrix (random signs), with columns of norm about 1."""
    rng = rng_for("measurement", kind, rows, columns)
    size = (rows, columns)
    entries: Array = (
        rng.standard_normal(size) if kind == "gaussian" else rng.choice([-1.0, 1.0], size)
    )
    entries /= np.sqrt(rows)
    return entries


def _blocks(numbers: int, rate: float) -> list[tuple[int, int, int]]:
    """Return (how many blocks, rows, columns) of the whole blocks and of the last, shorter one."""
    whole, rest = divmod(numbers, BLOCK)
    return [
        (n, rows_for(size, rate), size) for n, size in ((whole, BLOCK), (1, rest)) if n and size
    ]


def measure(kind: str, x: Tensor, rate: float) -> Tensor:
    """Return the products of the matrix with every block of a layer."""
    flat = x.detach().reshape(-1)
    parts = [x.new_zeros(0)]
    start = 0
    for n, rows, columns in _blocks(flat.numel(), rate):
        block = flat[start : start + n * columns].view(n, columns)
        phi = torch.from_numpy(matrix(kind, rows, columns)).to(flat)
        parts.append((block @ phi.t()).reshape(-1))
        start += n * columns
    return torch.cat(parts)


def recover(kind: str, y: Tensor, numbers: int, rate: float) -> Tensor:
    """Return a layer of which every block is sparse and has about these products."""
    parts = [y.new_zeros(0)]
    start = 0
    for n, rows, columns in _blocks(numbers, rate):
        seen = y[start : start + n * rows].view(n, rows).double().cpu().numpy()
        parts.append(torch.from_numpy(_pursue(matrix(kind, rows, columns), seen)).to(y).reshape(-1))
        start += n * rows
    return torch.cat(parts)


def _pursue(phi: Array, seen: Array) -> Array:
    """Return, for each row of products, a vector that is sparse in the cosine basis.

    Nothing comes of nothing.
    """
    # imported late, as is the next: only this comparison needs them
    from scipy.fft import dct, idct
    from sklearn.linear_model import orthogonal_mp_gram

    found = np.zeros((len(seen), phi.shape[1]))
    some = np.flatnonzero(np.abs(seen).max(axis=1))
    if len(some):
        # in the coordinates of the basis
        few = max(1, len(phi) // 8)
        phi = dct(phi, norm="ortho", axis=1)
        with warnings.catch_warnings():
            # it says so when fewer numbers explain all there is
            warnings.simplefilter("ignore", RuntimeWarning)
            got = orthogonal_mp_gram(phi.T @ phi, phi.T @ seen[some].T, n_nonzero_coefs=few)
        found[some] = idct(got.reshape(phi.shape[1], -1), norm="ortho", axis=0).T
    return found
