"""Features of published data, kept in the user's cache folder from one run to the next.

Nobody's own data are ever written there. A file that is damaged is as good as none.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tacit.data import tensor_cache
from tacit.data.federated import Federation
from tacit.data.files import cache_folder
from tacit.synthesis.encoder_file import named
from tacit.synthesis.moments import CHUNK

VERSION = 1  # of the encoders and of how they are applied: another one, another file


@dataclass(frozen=True)
class Stored:
    """Features of all rows, in the size that networks take."""

    train: Tensor
    test: Tensor
    own_tests: Tensor | None = None  # as clients see them, where each sees them with its own noise

    def parts(self) -> dict[str, Tensor]:
        """Return what there is, by name."""
        every = {"train": self.train, "test": self.test, "own_tests": self.own_tests}
        return {k: v for k, v in every.items() if v is not None}


@dataclass(frozen=True)
class Place:
    """Where features of a federation are, or will be, and how many rows they must have."""

    file: Path
    rows: dict[str, int]

    def read(self) -> Stored | None:
        """Return what is there, if it is whole."""
        found = tensor_cache.read(self.file)
        if found is None or {k: len(v) for k, v in found[0].items()} != self.rows:
            return None
        return Stored(**found[0])


def find(federation: Federation, name: str) -> Place:
    """Return the place of features of this name: another one for other data, another split.

    Args:
        federation: who holds what; features are computed client by client
        name: of the features
    """
    d, split = federation.dataset, federation.split
    digest = hashlib.blake2b(digest_size=16)
    how = (VERSION, torch.__version__, CHUNK, named(name), d.name, d.shape, d.mean, d.std)
    noise = None if split.noise is None else (split.noise, federation.seed)
    digest.update(repr((*how, noise)).encode())
    for part in (d.train, d.test):
        digest.update(part.x.contiguous().numpy().data)
    for rows in (*split.train, *(split.test if split.noise is not None else ())):
        digest.update(len(rows).to_bytes(8, "big") + rows.tobytes())
    sizes = {"train": len(d.train), "test": len(d.test)}
    sizes |= {"own_tests": len(d.test)} if split.noise is not None else {}
    file = f"{digest.hexdigest()}{tensor_cache.SUFFIX}"
    return Place(cache_folder() / "features" / file, sizes)


def keep(place: Place, made: Stored) -> None:
    """Write features down for the next time."""
    tensor_cache.keep(place.file, made.parts())
