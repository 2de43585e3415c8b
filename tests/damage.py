"""What happens to files: cut, emptied, zeroed, removed, a flipped bit, swapped, old, repeated."""

import shutil

import numpy as np


def cut(rng, blob):
    return blob[: int(rng.integers(len(blob)))]


def emptied(rng, blob):
    return b""


def zeroed(rng, blob):
    a, b = sorted(int(n) for n in rng.integers(0, len(blob) + 1, 2))
    whole = rng.random() < 0.5
    return bytes(len(blob)) if whole else blob[:a] + bytes(b - a) + blob[b:]


def flipped(rng, blob):
    at = int(rng.integers(len(blob)))
    return blob[:at] + bytes([blob[at] ^ (1 << int(rng.integers(8)))]) + blob[at + 1 :]


def repeated(rng, blob):
    lines = blob.splitlines(keepends=True)
    at = int(rng.integers(len(lines)))
    return b"".join([*lines[: at + 1], *lines[at:]])


def shortened(rng, blob):
    """Remove one whole line."""
    lines = blob.splitlines(keepends=True)
    at = int(rng.integers(len(lines)))
    return b"".join([*lines[:at], *lines[at + 1 :]])


CHANGES = (cut, emptied, zeroed, flipped, flipped, repeated, shortened)
KINDS = (*CHANGES, "deleted", "swapped", "old", "old")


def damage(folder, older, seed):
    """Do something to one file of a folder; return what.

    Args:
        folder: whose files are at risk
        older: the same folder at an earlier time
        seed: of the choice
    """
    rng = np.random.default_rng(seed)
    files = sorted(
        f for f in folder.rglob("*") if f.is_file() and f.name != ".lock" and f.stat().st_size
    )
    file = files[rng.integers(len(files))]
    kind = KINDS[rng.integers(len(KINDS))]
    name = str(file.relative_to(folder))
    if kind == "deleted":
        file.unlink()
    elif kind == "swapped":
        other = files[rng.integers(len(files))]
        blobs = file.read_bytes(), other.read_bytes()
        file.write_bytes(blobs[1])
        other.write_bytes(blobs[0])
        return f"{name} swapped with {other.relative_to(folder)}"
    elif kind == "old":
        was = [f for f in sorted(older.rglob("*")) if f.is_file() and f.name != ".lock"]
        file = was[rng.integers(len(was))]
        name = str(file.relative_to(older))
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, folder / name)
    else:
        file.write_bytes(kind(rng, file.read_bytes()))
    return f"{name} {kind if isinstance(kind, str) else kind.__name__}"


def fresh(folder, to):
    """Copy a folder in place of another one."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(folder, to)
    return to
