"""Synthetic examples as a file, and read again by somebody who trusts no file."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from tacit import codec
from tacit.core import Keywords
from tacit.data.examples import Examples
from tacit.data.user_data import read_arrays

SAMPLES = "synthetic.npz"
MOST_BYTES = 1 << 28  # of arrays that are read back to be shown


def write_samples(
    folder: Path, examples: Examples, classes: Sequence[str] = (), features: str = ""
) -> bytes:
    """Write examples, and what is known of them; return the file's bytes.

    Args:
        folder: where the file will be
        examples: synthetic ones
        classes: the names of all classes
        features: the public features that they are, by name; empty: inputs as the data have them
    """
    blob = io.BytesIO()
    known: Keywords = {"classes": np.array(classes)} if classes else {}
    known |= {"features": np.array(features)} if features else {}
    np.savez_compressed(blob, x=examples.x.numpy(), y=examples.y.numpy(), **known)
    codec.write_atomically(folder / SAMPLES, blob.getvalue())
    return blob.getvalue()


def read_samples(folder: Path) -> Examples | None:
    """Return the examples of a folder; None if there are none, or what is there is no such file."""
    file = folder / SAMPLES
    try:
        with zipfile.ZipFile(file) as packed:
            if sum(part.file_size for part in packed.infolist()) > MOST_BYTES:
                return None
        arrays, _ = read_arrays(file, ("x", "y"))
        x, y = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"])
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile):
        return None
    fits = y.dim() == 1 and y.dtype == torch.int64 and x.dim() > 1 and len(x) == len(y)
    return Examples(x, y) if fits else None
