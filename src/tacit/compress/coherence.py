"""How coherent a measurement matrix is with a basis: CUAG-PFL's equation 14 and figure 3.

Low is good.
"""

from __future__ import annotations

import math

import numpy as np

from tacit.compress import sensing
from tacit.compress.binary import rows_for
from tacit.core import Array, check


def explicit(kind: str, numbers: int, rate: float) -> Array:
    """Return a measurement matrix in full: for figures and for checking what never builds it."""
    check.choice("matrix", kind, ("binary", "gaussian", "bernoulli"))
    rows = rows_for(numbers, rate)
    if kind != "binary":
        return sensing.matrix(kind, rows, numbers)
    length, longer = divmod(numbers, rows)
    lengths = np.full(rows, length) + (np.arange(rows) < longer)
    return np.repeat(np.eye(rows), lengths, axis=1)


def basis(kind: str, numbers: int) -> Array:
    """Return the discrete cosine or Fourier basis, one unit vector in each column."""
    check.choice("basis", kind, ("dct", "dft"))
    if kind == "dft":
        return np.fft.ifft(np.eye(numbers), norm="ortho", axis=0)
    from scipy.fft import idct  # imported late: scipy would slow down every start

    vectors: Array = idct(np.eye(numbers), norm="ortho", axis=0)
    return vectors


def coherence(phi: Array, psi: Array) -> float:
    """Return sqrt(a) max |<phi_i, psi_j>| / (||phi_i|| ||psi_j||), of rows phi_i, columns psi_j."""
    lengths = np.linalg.norm(phi, axis=1)[:, None] * np.linalg.norm(psi, axis=0)[None, :]
    return math.sqrt(phi.shape[1]) * float((np.abs(phi @ psi) / lengths).max())
