"""Where noise comes from: the operating system, or, in simulations that say so, a seed."""

from __future__ import annotations

import math
import os
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray[Any, np.dtype[np.float64]]


class Source(Protocol):
    """Randomness that nobody else can predict, or that a simulation can repeat."""

    def uniform(self, n: int) -> Array: ...
    def normal(self, n: int) -> Array: ...


class FromOS:
    """The operating system's cryptographic generator."""

    def uniform(self, n: int) -> Array:
        """Return numbers in (0, 1), each of 52 random bits.

        Never 0 or 1, so that a logarithm may follow.
        """
        bits = np.frombuffer(os.urandom(8 * n), np.uint64) >> np.uint64(12)
        # exact: with 53 bits the largest would round to 1
        return (bits.astype(np.float64) + 0.5) * 2.0**-52

    def normal(self, n: int) -> Array:
        """Return standard normal numbers (Box and Muller 1958)."""
        half = (n + 1) // 2
        radius = np.sqrt(-2.0 * np.log(self.uniform(half)))
        angle = 2.0 * math.pi * self.uniform(half)
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:n]


class FromSeed:
    """A seeded generator, for simulations and tests."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def uniform(self, n: int) -> Array:
        """Return numbers in [0, 1)."""
        return self.rng.random(n)

    def normal(self, n: int) -> Array:
        """Return standard normal numbers."""
        return self.rng.standard_normal(n)


def source(noise: str, rng: np.random.Generator) -> Source:
    """Return the source that a run was told to use; a seeded one has a stream of its own."""
    return FromOS() if noise == "os" else FromSeed(rng.spawn(1)[0])


def normal_like(draw: Source, like: Tensor, sd: float) -> Tensor:
    """Return Gaussian noise of a tensor's shape."""
    return (
        torch.from_numpy(sd * draw.normal(like.numel()))
        .to(like.dtype)
        .reshape(like.shape)
        .to(like.device)
    )
