"""Tensors that took long to make, kept in a folder from one run to the next.

Nobody's own data, nor what was made of them, are ever written there: whoever keeps something has
seen to that. A file that is damaged, or another one's, is as good as none, and nothing that goes
wrong here ends a run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from tacit.core.files import write_atomically

MOST = 2 << 30  # bytes of all files of a folder; those that were used least lately go first
CHECKSUM = "checksum"
SUFFIX = ".safetensors"


def read(file: Path) -> tuple[dict[str, Tensor], dict[str, str]] | None:
    """Return the tensors of a file and what was noted with them, if it is there and whole."""
    if not file.is_file():  # a pipe would be waited for
        return None
    try:
        blob = file.read_bytes()  # all at once: another process may remove it at any time
        parts = load(blob)
        size = int.from_bytes(blob[:8], "little")
        notes = dict(json.loads(blob[8 : 8 + size])["__metadata__"])
        whole = notes.pop(CHECKSUM) == _checksum(file, parts, notes)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError):
        return None
    with suppress(OSError):
        file.touch()  # it was used
    return (parts, notes) if whole else None


def keep(file: Path, parts: Mapping[str, Tensor], notes: Mapping[str, str] | None = None) -> None:
    """Write tensors down, readable by their owner only; a folder that takes nothing is no harm."""
    # copies: tensors that share memory cannot be written
    rows = torch.contiguous_format
    whole = {k: v.detach().cpu().clone(memory_format=rows) for k, v in parts.items()}
    said = dict(notes or {})
    blob = save(whole, {**said, CHECKSUM: _checksum(file, whole, said)})
    if len(blob) > MOST:
        return
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _make_room(file.parent, len(blob))
        write_atomically(file, blob, private=True)


def _make_room(folder: Path, wanted: int) -> None:
    """Remove the files that were used least lately, as far as needed.

    What a killed process had begun is among them.
    """
    known = []
    for file in (*folder.glob(f"*{SUFFIX}"), *folder.glob("*.part")):
        with suppress(OSError):  # another process has removed it
            known.append((file.stat().st_mtime, file.stat().st_size, file))
    used = wanted
    for _, size, file in sorted(known, reverse=True):
        used += size
        if used > MOST:
            file.unlink(missing_ok=True)


def _checksum(file: Path, parts: Mapping[str, Tensor], notes: Mapping[str, str]) -> str:
    """Return a checksum of all that a file says, its name included."""
    digest = hashlib.blake2b(file.name.encode(), digest_size=16)
    for name in sorted(parts):
        part = parts[name]
        digest.update(f"{name} {tuple(part.shape)} {part.dtype}".encode())
        digest.update(bits(part))
    for name in sorted(notes):
        digest.update(f"{name} {notes[name]}".encode())
    return digest.hexdigest()


def bits(t: Tensor) -> memoryview:
    """Return a tensor's bytes, whatever numbers they are."""
    return t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
