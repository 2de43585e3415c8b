"""Products of matrices, by whichever library uses the whole processor for them.

Torch leaves them to MKL, which computes on AMD's AVX-512 processors with vectors of half their
width. The OpenBLAS that numpy comes with uses the whole of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor

from tacit.core.processor import capabilities

WIDE = {"SkylakeX", "Cooperlake", "SapphireRapids"}  # OpenBLAS' kernels that use AVX-512
_SET_UP = ContextVar("set_up", default=False)  # whether numpy and its library are, as here


def product(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """Return the product of two matrices, or of each pair of two stacks, perhaps in ``out``.

    Autograd does not follow it.
    """
    left, right = left.detach(), right.detach()
    library = wider() if left.device.type == "cpu" else None
    if library is None:
        return torch.matmul(left, right, out=out)
    out = left.new_empty(*left.shape[:-1], right.shape[-1]) if out is None else out
    if _SET_UP.get():
        np.matmul(left.numpy(), right.numpy(), out=out.detach().numpy())
    else:
        with set_up():
            np.matmul(left.numpy(), right.numpy(), out=out.detach().numpy())
    return out


@contextmanager
def set_up() -> Iterator[None]:
    """Prepare for products, many perhaps: to do so for each takes as long as a small one.

    The library computes in one thread, as torch does wherever a client trains, and numpy does not
    warn of what is not finite, as torch does not: who asks looks at the result.
    """
    library = wider()
    if library is None or _SET_UP.get():
        yield
        return
    threads, before = library.get_num_threads(), _SET_UP.set(True)
    library.set_num_threads(1)
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        _SET_UP.reset(before)
        library.set_num_threads(threads)


@cache
def wider() -> Any | None:
    """Return numpy's library, if it uses more of this processor than torch's; else None."""
    has = capabilities()
    if not has.get("avx512_f") or not str(has.get("cpu_name", "")).startswith("AMD"):
        return None
    loaded = ThreadpoolController().select(internal_api="openblas").lib_controllers
    folders = ("numpy.libs", ".dylibs")  # of numpy's own wheels
    numpys = [library for library in loaded if Path(library.filepath).parent.name in folders]
    return numpys[0] if numpys and numpys[0].architecture in WIDE else None


def kernels() -> str:
    """Return what decides how products are added up here, and so their last bits."""
    library = wider()
    name = capabilities().get("cpu_name", "")
    return f"{name} {library.architecture if library else 'torch'}"
