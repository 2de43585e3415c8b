"""Inputs without labels, for a model that answers: arrays, tables, images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tacit.core import Array
from tacit.core.errors import BadInput
from tacit.data.columns import Encoder
from tacit.data.schema import Schema
from tacit.data.tables import is_table, read_table, some
from tacit.data.user_data import IMAGES, numbers_in, read_arrays, read_image


@dataclass(frozen=True)
class Wanted:
    """What a model's inputs must be."""

    shape: tuple[int, ...]  # of one input
    pixels: bool = False  # whole numbers from 0 to 255, or from 0 to 1
    columns: tuple[str, ...] = ()  # of a table: the names of the numbers, in order
    schema: Schema | None = None  # of a table: how its cells become numbers, if a schema says it

    @property
    def words(self) -> str:
        """The shape of several inputs, in words."""
        return f"(n, {', '.join(map(str, self.shape))})"


@dataclass(frozen=True)
class NewInputs:
    """Inputs, and what each is called."""

    x: Tensor
    names: Sequence[str]
    kind: str  # what the names are: row, or file


def as_wanted(inputs: object, wanted: Wanted, where: str = "inputs") -> Tensor:
    """Return inputs as a model takes them, or refuse them.

    Args:
        inputs: a tensor, an array or nested lists; images may have their channels last, or none
        wanted: what they must be
        where: what an error calls them
    """
    try:
        x = inputs if isinstance(inputs, Tensor) else torch.as_tensor(np.asarray(inputs))
    except (TypeError, ValueError):
        raise BadInput(f"{where}: must be numbers of shape {wanted.words}") from None
    if x.is_complex():
        raise BadInput(f"{where}: complex numbers: must be real ones of shape {wanted.words}")
    x = _in_shape(x.detach().cpu(), wanted, where)
    if x.dtype != torch.uint8:
        x = _scaled(x, wanted, where)
    return x


def _in_shape(x: Tensor, wanted: Wanted, where: str) -> Tensor:
    """Return inputs with their channels where they belong; other shapes are refused."""
    given = tuple(x.shape)
    if len(wanted.shape) == 3 and given[1:] == wanted.shape[1:] and wanted.shape[0] == 1:
        return x.unsqueeze(1)
    last = (*wanted.shape[1:], *wanted.shape[:1])
    if len(wanted.shape) == 3 and given[1:] == last and given[1:] != wanted.shape:
        return x.permute(0, 3, 1, 2)
    if given[1:] != wanted.shape or not given:
        raise BadInput(f"{where}: shape {given}: must be {wanted.words}")
    return x


def _scaled(x: Tensor, wanted: Wanted, where: str) -> Tensor:
    """Return numbers in single precision, pixels as from 0 to 1; none may be missing."""
    whole = not x.is_floating_point()
    x = x.float()
    if not x.isfinite().all():
        spot = tuple(int(i) for i in (~x.isfinite()).nonzero()[0])
        raise BadInput(f"{where}: {spot} = {float(x[spot])}: must be a finite number")
    if not wanted.pixels or not x.numel():
        return x
    low, high = float(x.min()), float(x.max())
    if whole and low >= 0 and high <= 255:
        return x / 255.0
    if not (low >= 0 and high <= 1):
        raise BadInput(
            f"{where}: from {low:g} to {high:g}: must be pixels, whole numbers from 0 to 255 or "
            "others from 0 to 1"
        )
    return x


def read_new(path: Path, wanted: Wanted, own: Mapping[str, Encoder] | None = None) -> NewInputs:
    """Return the inputs in a file or folder.

    Args:
        path: a .npz with x, a .csv or .parquet table, an image, or a folder of images
        wanted: what a model takes
        own: encoders of texts that the owner of this process has named
    """
    kind = path.suffix.lower()
    if not path.exists():
        raise BadInput(f"'{path}': no such file or folder")
    if path.is_dir() or kind in IMAGES:
        return _images(path, wanted)
    if kind == ".npz":
        x = as_wanted(_x_of(path), wanted, f"{path}: x")
        return NewInputs(x, [str(i) for i in range(len(x))], "row")
    if is_table(path):
        x = as_wanted(_table(path, wanted, own), wanted, str(path))
        return NewInputs(x, [str(i) for i in range(len(x))], "row")
    raise BadInput(
        f"'{path}': must be a .npz with x, a .csv or .parquet table, an image or a folder of images"
    )


def _x_of(path: Path) -> Array:
    arrays, found = read_arrays(path, ("x",))
    if "x" not in arrays:
        raise BadInput(f"{path}: holds {found}: must hold x")
    return arrays["x"]


def _images(path: Path, wanted: Wanted) -> NewInputs:
    files = [path] if path.is_file() else _files(path)
    if not files:
        raise BadInput(
            f"'{path}': no images: must have at least one of {', '.join(sorted(IMAGES))}"
        )
    if len(wanted.shape) != 3:
        raise BadInput(f"'{path}': images: this model takes inputs of shape {wanted.words}")
    channels, height, width = wanted.shape
    pixels = []
    for file in files:
        image = read_image(file)
        if image.shape != wanted.shape:
            raise BadInput(
                f"{file}: {image.shape[2]}x{image.shape[1]} with {image.shape[0]} channels: must "
                f"be {width}x{height} with {channels}; resize or convert it first"
            )
        pixels.append(image)
    names = [str(file.relative_to(path)) if path.is_dir() else file.name for file in files]
    return NewInputs(torch.from_numpy(np.stack(pixels)), names, "file")


def _files(folder: Path) -> list[Path]:
    """Return the images in a folder and in the folders in it."""
    near = [
        *folder.iterdir(),
        *(f for sub in folder.iterdir() if sub.is_dir() for f in sub.iterdir()),
    ]
    return sorted(f for f in near if f.suffix.lower() in IMAGES and not f.name.startswith("."))


def _table(path: Path, wanted: Wanted, own: Mapping[str, Encoder] | None) -> Array:
    """Return the columns that a model was trained with, found by their names, as numbers."""
    if len(wanted.shape) != 1:
        raise BadInput(f"{path}: a table: this model takes inputs of shape {wanted.words}")
    table = read_table(path)
    if wanted.schema is not None:
        return wanted.schema.encode(table, labelled=False, own=own).x
    names = wanted.columns or tuple(table.columns)
    for name in names:
        if name not in table.columns:
            raise BadInput(
                f"{path}: column {name!r} is missing: it has {some(list(table.columns))}; the "
                f"model was trained with {some(names)}"
            )
    if len(names) != wanted.shape[0]:
        raise BadInput(f"{path}: {len(names)} columns: must be {wanted.shape[0]}")
    return np.array([numbers_in(table, name) for name in names], np.float32).T
