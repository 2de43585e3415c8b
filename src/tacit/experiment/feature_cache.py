"""Features of published data, kept in the user's cache folder from one run to the next.

Nobody's own data are ever written there. A file that is damaged is as good as none.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from tacit.codec import write_atomically
from tacit.data.federated import Federation
from tacit.data.files import cache_folder
from tacit.synthesis.encoder_file import named
from tacit.synthesis.moments import CHUNK

VERSION = 1  # of the encoders and of how they are applied: another one, another file
MOST = 2 << 30  # bytes of all files together; the oldest go first


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
        try:
            with safe_open(self.file, framework="pt") as f:
                parts = {k: f.get_tensor(k) for k in f.keys()}  # noqa: SIM118  # it is no dict
                right = (f.metadata() or {}).get("checksum") == _checksum(parts)
            self.file.touch()  # it was used
        except (OSError, SafetensorError):
            return None
        fits = {k: len(v) for k, v in parts.items()} == self.rows
        return Stored(**parts) if right and fits else None


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
    return Place(cache_folder() / "features" / f"{digest.hexdigest()}.safetensors", sizes)


def keep(place: Place, made: Stored) -> None:
    """Write features down, readable by their owner only; a folder that takes nothing is no harm."""
    parts = {k: v.contiguous() for k, v in made.parts().items()}
    with suppress(OSError):
        place.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        blob = save(parts, {"checksum": _checksum(parts)})
        _make_room(place.file.parent, len(blob))
        write_atomically(place.file, blob, private=True)


def _make_room(folder: Path, wanted: int) -> None:
    """Remove the files that were used least lately, as far as needed."""
    files = sorted(folder.glob("*.safetensors"), key=lambda f: f.stat().st_mtime, reverse=True)
    used = wanted
    for file in files:
        used += file.stat().st_size
        if used > MOST:
            file.unlink(missing_ok=True)


def _checksum(parts: dict[str, Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(parts):
        digest.update(f"{name} {tuple(parts[name].shape)} {parts[name].dtype}".encode())
        digest.update(parts[name].contiguous().numpy().data)
    return digest.hexdigest()
