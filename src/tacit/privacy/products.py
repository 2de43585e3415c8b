"""Products of matrices, by whichever library uses the whole processor for them.

Torch leaves them to MKL, which computes on AMD's AVX-512 processors with vectors of half their
width. The OpenBLAS that numpy comes with uses the whole of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor

from tacit.core.processor import capabilities

WIDE = {"SkylakeX", "Cooperlake", "SapphireRapids"}  # OpenBLAS' kernels that use AVX-512
_SET_UP = ContextVar("set_up", default=False)  # whether numpy and its library are, as here


class Library(Protocol):
    """What numpy multiplies with, as threadpoolctl knows it."""

    architecture: str  # whose kernels it uses
    filepath: str
    dynlib: object


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
    limit = limiter(library)
    assert limit is not None
    threads, before = limit(1), _SET_UP.set(True)
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        _SET_UP.reset(before)
        limit(threads)


@cache
def wider() -> Library | None:
    """Return numpy's library, if it uses more of this processor than torch's; else None."""
    library = numpys() if torch_is_narrow() else None
    wide = library is not None and library.architecture in WIDE and limiter(library)
    return library if wide else None


def torch_is_narrow() -> bool:
    """Tell whether torch's library uses half of this processor's vectors."""
    has = capabilities()
    return bool(has.get("avx512_f")) and str(has.get("cpu_name", "")).startswith("AMD")


def numpys() -> Library | None:
    """Return the library that numpy multiplies with, if it is the one of its own wheels."""
    loaded = ThreadpoolController().select(internal_api="openblas").lib_controllers
    folders = ("numpy.libs", ".dylibs")
    own = [library for library in loaded if Path(library.filepath).parent.name in folders]
    return own[0] if own else None


def limiter(library: Library) -> Callable[[int], int] | None:
    """Return what sets how many threads a library uses, and says how many they were before.

    For the thread that calls it: what sets it for all does nothing in some of them. A whole number
    for a whole number is what ctypes takes a function for.
    """
    limit: Callable[[int], int] | None
    limit = getattr(library.dynlib, "openblas_set_num_threads_local", None)
    return limit


def advice() -> str:
    """Say who multiplies, and what stands in the way of using the whole processor, if anything."""
    by = "examples' gradients are multiplied by"
    if not torch_is_narrow():
        return f"{by} torch"
    if (library := wider()) is not None:
        return f"{by} numpy, with all of AVX-512 ({library.architecture})"
    told = os.environ.get("OPENBLAS_CORETYPE")
    why = f"OPENBLAS_CORETYPE = {told}: unset it" if told else "numpy's does no better here"
    return f"{by} torch, with half of AVX-512 ({why})"


def kernels() -> str:
    """Return what decides how products are added up here, and so their last bits."""
    library = wider()
    name = capabilities().get("cpu_name", "")
    return f"{name} {library.architecture if library else 'torch'}"
