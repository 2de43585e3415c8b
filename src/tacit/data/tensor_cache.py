"""Tensors that took long to make, kept in the user's cache folder from one run to the next.

Nobody's own data, nor what was made of them, are ever written there: whoever keeps something has
seen to that. A file that is damaged is as good as none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from tacit.codec import write_atomically
from tacit.data.files import cache_folder

MOST = 2 << 30  # bytes of all files of a kind; the oldest go first
CHECKSUM = "checksum"


def place_of(kind: str, digest: str) -> Path:
    """Return where tensors of a kind are, or will be."""
    return cache_folder() / kind / f"{digest}.safetensors"


def read(file: Path) -> tuple[dict[str, Tensor], dict[str, str]] | None:
    """Return the tensors of a file and what was noted with them, if it is there and whole."""
    try:
        with safe_open(file, framework="pt") as f:
            parts = {k: f.get_tensor(k) for k in f.keys()}  # noqa: SIM118  # it is no dict
            notes = dict(f.metadata() or {})
        file.touch()  # it was used
    except (OSError, SafetensorError):
        return None
    found = notes.pop(CHECKSUM, None)
    return (parts, notes) if found == _checksum(parts, notes) else None


def keep(file: Path, parts: Mapping[str, Tensor], notes: Mapping[str, str] | None = None) -> None:
    """Write tensors down, readable by their owner only; a folder that takes nothing is no harm."""
    whole = {k: v.contiguous() for k, v in parts.items()}
    said = dict(notes or {})
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        blob = save(whole, {**said, CHECKSUM: _checksum(whole, said)})
        _make_room(file.parent, len(blob))
        write_atomically(file, blob, private=True)


def _make_room(folder: Path, wanted: int) -> None:
    """Remove the files that were used least lately, as far as needed."""
    files = sorted(folder.glob("*.safetensors"), key=lambda f: f.stat().st_mtime, reverse=True)
    used = wanted
    for file in files:
        used += file.stat().st_size
        if used > MOST:
            file.unlink(missing_ok=True)


def _checksum(parts: Mapping[str, Tensor], notes: Mapping[str, str]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(parts):
        digest.update(f"{name} {tuple(parts[name].shape)} {parts[name].dtype}".encode())
        digest.update(parts[name].contiguous().numpy().data)
    for name in sorted(notes):
        digest.update(f"{name} {notes[name]}".encode())
    return digest.hexdigest()
