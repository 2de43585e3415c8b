"""Files that are there as a whole or not at all, also after a kill or a power failure."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path


def write_atomically(
    path: Path, blob: bytes, *, durable: bool = False, private: bool = False
) -> None:
    """Write a file so that a reader, or a restart after a kill, sees all of the old or the new.

    A private one can be read by its owner only, from its first moment. A durable one outlasts a
    power failure from the moment that this returns.
    """
    with atomically(path, durable=durable, private=private) as part:
        part.write_bytes(blob)


@contextmanager
def atomically(path: Path, *, durable: bool = False, private: bool = False) -> Iterator[Path]:
    """Give an empty file to write to, which then takes the place of ``path``."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.unlink(missing_ok=True)  # of a process of that number that was killed
    open(part, "xb", opener=partial(os.open, mode=0o600 if private else 0o666)).close()
    try:
        yield part
        if durable:
            with part.open("rb") as f:
                os.fsync(f.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """See to it that the names in a folder outlast a power failure."""
    if os.name != "posix":
        return
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def remove_parts(folder: Path) -> None:
    """Remove what a killed process had begun to write: for a folder that nobody else uses."""
    for part in folder.rglob("*.part"):
        part.unlink(missing_ok=True)
