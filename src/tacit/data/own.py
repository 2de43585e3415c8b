"""The user's own data: .npz files, folders of images, CSV and Parquet tables, and torch data sets."""

from __future__ import annotations

import csv
import difflib
import math
import os
import re
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.core.errors import BadInput
from tacit.data.examples import Dataset, Examples

if TYPE_CHECKING:
    from torch.utils.data import Dataset as TorchDataset

Array = NDArray[Any]
Pair = tuple[Array, Array]  # inputs and labels as the user wrote them

HELD_OUT = 0.2  # the share kept for testing where the data have no test part
_MOST_CLASSES = 65_536  # a label above is an identifier by mistake, not a class
_IMAGES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"})
_TABLE = re.compile(r"(?P<path>.+?\.(?:csv|parquet)):(?P<column>.+)", re.IGNORECASE)


def split_column(text: str) -> tuple[Path, str]:
    """Split ``table.csv:column`` into the path and the label column, which is ``label`` unless it is told.

    >>> split_column("visits.csv:outcome")[1], split_column("visits.csv")[1]
    ('outcome', 'label')
    """
    text = os.path.expanduser(text)  # unlike Path's, it leaves an unknown user alone
    told = None if os.path.exists(text) else _TABLE.fullmatch(text)
    return (Path(told["path"]), told["column"]) if told else (Path(text), "label")


def load_own(text: str | Path, seed: int = 0) -> Dataset:
    """Return the user's data at a path; without a test part a seeded stratified fifth is held out."""
    path, column = split_column(str(text))
    if not os.path.exists(path):
        raise BadInput(f"data = {str(text)!r}: no such file or folder")
    if path.is_dir():
        return _from_folder(path, seed)
    kind = path.suffix.lower()
    if kind == ".npz":
        return _dataset(path.stem, str(path), *_read_npz(path), seed=seed)
    if kind == ".csv":
        return _dataset(path.stem, str(path), _read_csv(path, column), None, seed=seed)
    if kind == ".parquet":
        return _dataset(path.stem, str(path), _read_parquet(path, column), None, seed=seed)
    raise BadInput(
        f"data = {str(text)!r}: must be a .npz, .csv or .parquet file, or a folder of images by class"
    )


def from_torch(
    train: TorchDataset[Any],
    test: TorchDataset[Any] | None = None,
    name: str = "own",
    seed: int = 0,
) -> Dataset:
    """Return a torch data set of (input, label) items, read into memory.

    Its ``classes`` name numeric labels.
    """
    names = getattr(train, "classes", None)
    pairs = (
        _read_torch(train, f"{name} train"),
        None if test is None else _read_torch(test, f"{name} test"),
    )
    made = _dataset(name, name, *pairs, seed=seed)
    numeric = made.classes == tuple(str(i) for i in range(len(made.classes)))
    if not numeric or not isinstance(names, list | tuple) or len(names) < len(made.classes):
        return made
    return Dataset(made.name, made.train, made.test, tuple(map(str, names)), made.mean, made.std)


def hold_out(labels: Tensor, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return the rows to train and to test on.

    The same share of every class, and of two or more at least one each.

    >>> [len(rows) for rows in hold_out(torch.tensor([0] * 10 + [1] * 5), 0.2, seed=0)]
    [12, 3]
    """
    rng = np.random.default_rng(seed)
    is_test = torch.zeros(len(labels), dtype=torch.bool)
    for label in np.unique(labels.numpy()):
        rows = torch.nonzero(labels == int(label))[:, 0]
        count = min(max(1, round(share * len(rows))), len(rows) - 1)
        is_test[rows[torch.from_numpy(rng.permutation(len(rows))[:count])]] = True
    return torch.nonzero(~is_test)[:, 0], torch.nonzero(is_test)[:, 0]


def _dataset(
    name: str,
    source: str,
    train: Pair,
    test: Pair | None,
    *,
    seed: int,
    channels_first: bool = False,
) -> Dataset:
    """Check what was read from ``source`` and make a data set of it."""
    pairs = [(f"{source} train", train), (f"{source} test", test)] if test else [(source, train)]
    inputs = [_inputs(x, where, channels_first) for where, (x, _) in pairs]
    labels, classes = _labels([y for _, (_, y) in pairs], [where for where, _ in pairs])
    parts = [_examples(x, y, where) for x, y, (where, _) in zip(inputs, labels, pairs, strict=True)]
    if len(parts) == 1:
        parts = _split(parts[0], source, seed)
    first, second = parts
    if _kind(first.x) != _kind(second.x):
        raise BadInput(
            f"{source}: test inputs are {_kind(second.x)}: must be {_kind(first.x)} like the train inputs"
        )
    channels = first.x.shape[1] if first.x.dtype == torch.uint8 else 1
    return Dataset(name, first, second, classes, (0.5,) * channels, (0.5,) * channels)


def _examples(x: Tensor, y: Tensor, where: str) -> Examples:
    """Pair inputs with labels, which must be as many."""
    if len(x) != len(y):
        raise BadInput(f"{where}: {len(x):,} inputs but {len(y):,} labels: must be as many")
    return Examples(x, y)


def _split(everything: Examples, source: str, seed: int) -> list[Examples]:
    """Hold a test part out."""
    train, test = hold_out(everything.y, HELD_OUT, seed)
    if not len(test):
        raise BadInput(
            f"{source}: no class has two examples: must have two of some class, so that one can be held out to test"
        )
    return [everything.take(train), everything.take(test)]


def _kind(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape[1:])}"


def _inputs(x: Array, where: str, channels_first: bool) -> Tensor:
    """Return uint8 images as (n, channels, height, width), anything else numeric as finite float32 features."""
    if x.ndim < 1 or x.size == 0:
        raise BadInput(
            f"{where}: inputs of shape {x.shape} are empty: must have at least one example and one value"
        )
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        return torch.from_numpy(
            np.ascontiguousarray(x if channels_first else _to_channels_first(x, where))
        )
    if x.dtype.kind not in "biuf":
        raise BadInput(f"{where}: inputs of type {x.dtype}: must be uint8 images or numbers")
    if x.ndim < 2:
        raise BadInput(
            f"{where}: inputs of shape {x.shape}: must be (n, features) or (n, height, width)"
        )
    with np.errstate(over="ignore"):
        features = np.array(x, dtype=np.float32, order="C")
    _check_finite(features, x, where)
    return torch.from_numpy(features)


def _to_channels_first(x: Array, where: str) -> Array:
    """Bring images to (n, channels, height, width).

    Which axis has the channels is told by its length, 1 or 3.
    """
    if x.ndim == 3:
        return x[:, None]
    first, last = x.shape[1] in (1, 3), x.shape[3] in (1, 3)
    if first == last:
        why = "both ends could be the channels" if first else "neither end is 1 or 3 channels"
        raise BadInput(
            f"{where}: images of shape {x.shape}: {why}; must be (n, c, h, w) or (n, h, w, c), c = 1 or 3"
        )
    return x if first else x.transpose(0, 3, 1, 2)


def _check_finite(features: NDArray[np.float32], given: Array, where: str) -> None:
    """Refuse NaN, infinity and numbers too large for float32, naming the first."""
    finite = np.isfinite(features)
    if finite.all():
        return
    spot = tuple(int(i) for i in np.argwhere(~finite)[0])
    raise BadInput(
        f"{where}: input {spot} = {given[spot]}: must be a finite number (float32); fill or drop it"
    )


def _labels(given: Sequence[Array], wheres: Sequence[str]) -> tuple[list[Tensor], tuple[str, ...]]:
    """Return labels as class numbers, with the names of the classes.

    Words are numbered in sorted order.
    """
    flat = [_column(y, where) for y, where in zip(given, wheres, strict=True)]
    numeric = [_numbers(y) for y in flat]
    numbers = [y for y in numeric if y is not None]
    if len(numbers) == len(flat):
        labels = [_class_numbers(y, where) for y, where in zip(numbers, wheres, strict=True)]
        return labels, tuple(str(i) for i in range(1 + max(int(y.max()) for y in labels)))
    words = [y.astype(str) for y in flat]
    classes, codes = np.unique(np.concatenate(words), return_inverse=True)
    parts = np.split(codes.astype(np.int64), np.cumsum([len(y) for y in words])[:-1])
    return [torch.from_numpy(part.copy()) for part in parts], tuple(str(name) for name in classes)


def _column(y: Array, where: str) -> Array:
    """Return labels as one column without gaps."""
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise BadInput(f"{where}: labels of shape {y.shape}: must be one label per example, (n,)")
    if not len(y):
        raise BadInput(f"{where}: no labels: must have at least one")
    if y.dtype.kind not in "biufU":
        raise BadInput(f"{where}: labels of type {y.dtype}: must be whole numbers or words")
    if (
        y.dtype.kind == "U"
        and (gaps := np.isin(np.char.lower(np.char.strip(y)), ("", "nan"))).any()
    ):
        row = int(gaps.argmax())
        raise BadInput(
            f"{where}: label {str(y[row])!r} of example {row} is missing: must be a whole number or a word"
        )
    return y


def _numbers(y: Array) -> Array | None:
    """Return labels as numbers, or None if one of them is a word."""
    if y.dtype.kind != "U":
        return y
    try:
        return y.astype(np.float64)
    except ValueError:
        return None


def _class_numbers(y: Array, where: str) -> Tensor:
    """Refuse labels that are not class numbers, naming the first."""
    wide = y.astype(np.float64)
    good = (wide >= 0) & (wide < _MOST_CLASSES) & (wide == np.floor(wide))
    if not good.all():
        row = int((~good).argmax())
        raise BadInput(
            f"{where}: label {y[row]} of example {row}: must be a whole number from 0 to {_MOST_CLASSES - 1}, or a word"
        )
    return torch.from_numpy(y.astype(np.int64))


def _read_npz(path: Path) -> tuple[Pair, Pair | None]:
    """Return the arrays of an .npz by their names; pickled objects are never read."""
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as opened:
            arrays = {
                key: opened[key]
                for key in ("x", "y", "x_train", "y_train", "x_test", "y_test")
                if key in opened
            }
            found = sorted(opened.files)
    except (
        OSError,
        ValueError,
        EOFError,
        TypeError,
        RuntimeError,
        zlib.error,
        zipfile.BadZipFile,
    ) as error:
        why = " ".join(str(error).split())
        raise BadInput(
            f"{path}: cannot be read as .npz ({why}); write plain arrays with numpy.savez"
        ) from None
    names = set(arrays)
    if {"x_train", "y_train", "x_test", "y_test"} <= names:
        return (arrays["x_train"], arrays["y_train"]), (arrays["x_test"], arrays["y_test"])
    for x, y in (("x_train", "y_train"), ("x", "y")):
        if {x, y} <= names and not names & {"x_test", "y_test"}:
            return (arrays[x], arrays[y]), None
    raise BadInput(
        f"{path}: holds {found}: must hold x and y, or x_train, y_train, x_test and y_test"
    )


def _from_folder(path: Path, seed: int) -> Dataset:
    """Return a folder of images by class, divided into ``train`` and ``test`` or not."""
    if _class_folders(path / "train"):
        train = _read_images(path / "train")
        test = _read_images(path / "test") if _class_folders(path / "test") else None
    else:  # also where a class is called train
        train, test = _read_images(path), None
    classes = np.unique(np.concatenate([part[1] for part in (train, test) if part]))
    numbered = [
        (x, np.searchsorted(classes, y)) for x, y in (train, test or train)
    ]  # "10" is a name here, not a number
    second = numbered[1] if test else None
    made = _dataset(
        path.resolve().name, str(path), numbered[0], second, seed=seed, channels_first=True
    )
    return Dataset(
        made.name, made.train, made.test, tuple(str(name) for name in classes), made.mean, made.std
    )


def _class_folders(folder: Path) -> list[Path]:
    """Return the folders in a folder, if it is one."""
    if not folder.is_dir():
        return []
    return sorted(
        entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")
    )


def _read_images(folder: Path) -> Pair:
    """Return every image below a folder, with the name of its class folder."""
    kinds = _class_folders(folder)
    if not kinds:
        raise BadInput(f"{folder}: no class folders: must have images as {folder.name}/CLASS/*.png")
    images, labels = [], []
    for kind in kinds:
        files = sorted(
            f for f in kind.iterdir() if f.suffix.lower() in _IMAGES and not f.name.startswith(".")
        )
        if not files:
            raise BadInput(
                f"{kind}: no images: must have at least one of {', '.join(sorted(_IMAGES))}"
            )
        for file in files:
            images.append(_read_image(file))
            _check_alike(images[-1], images[0], file)
        labels += [kind.name] * len(files)
    return np.stack(images), np.array(labels)


def _read_image(file: Path) -> NDArray[np.uint8]:
    """Return one image as (channels, height, width), grey or RGB."""
    from PIL import Image  # here because it takes long to import

    try:
        with Image.open(file) as image:
            if image.mode.startswith(("I", "F")):
                raise BadInput(
                    f"{file}: pixels of mode {image.mode}: must be 8 bits per channel; convert it first"
                )
            grey = image.mode in ("1", "L", "LA")
            pixels = np.asarray(image.convert("L" if grey else "RGB"))
    except BadInput:
        raise
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise BadInput(
            f"{file}: cannot be read as an image ({' '.join(str(error).split())})"
        ) from None
    return pixels[None] if grey else pixels.transpose(2, 0, 1)


def _check_alike(image: Array, first: Array, file: Path) -> None:
    """Refuse an image of another size or colour than the first.

    Resizing in silence would change the data.
    """
    if image.shape == first.shape:
        return
    kind, wanted = (
        f"{'grey' if a.shape[0] == 1 else 'RGB'} {a.shape[2]}x{a.shape[1]}" for a in (image, first)
    )
    raise BadInput(
        f"{file}: {kind}, but the first image is {wanted}: must all be alike; resize or convert them first"
    )


def _read_csv(path: Path, column: str) -> Pair:
    """Return the numeric columns of a CSV file and its label column.

    The first line names the columns.
    """
    features, labels = [], []
    try:
        with path.open(encoding="utf-8-sig", newline="") as opened:
            reader = csv.reader(opened)
            header = [name.strip() for name in next(reader, [])]
            at = _label_at(path, header, column)
            for row in filter(None, reader):
                where = f"{path} line {reader.line_num}"
                labels.append(_csv_label(where, header, row, at))
                features.append(np.array(_csv_features(where, header, row, at)))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(
            f"{path}: cannot be read as CSV in UTF-8 ({' '.join(str(error).split())})"
        ) from None
    if not labels:
        raise BadInput(f"{path}: no rows below the header: must have at least one")
    return np.stack(features), np.array(labels)


def _csv_label(where: str, header: list[str], row: list[str], at: int) -> str:
    """Return the label of a row that has as many values as the header."""
    if len(row) != len(header):
        raise BadInput(f"{where}: {len(row)} values: must be {len(header)}, as in the header")
    label = row[at].strip()
    if label.lower() in ("", "nan"):
        raise BadInput(
            f"{where}: {header[at]} = {label!r} is missing: must be a whole number or a word"
        )
    return label


def _csv_features(where: str, header: list[str], row: list[str], at: int) -> list[float]:
    """Return the features of a row, naming the first cell that is not a finite number."""
    values = []
    for i, cell in enumerate(row):
        if i == at:
            continue
        try:
            value = float(cell)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise BadInput(
                f"{where}: {header[i]} = {cell!r}: must be a finite number; fill or drop it"
            )
        values.append(value)
    return values


def _label_at(path: Path, header: list[str], column: str) -> int:
    """Return where the label column is in a header that can be used."""
    if not header:
        raise BadInput(f"{path}: empty: must have a header line and rows")
    if twice := sorted({name for name in header if header.count(name) > 1}):
        raise BadInput(
            f"{path}: column {twice[0]!r} is there more than once: must have different names"
        )
    if column not in header:
        near = difflib.get_close_matches(column, header, n=1)
        hint = f"did you mean {path.name}:{near[0]}?" if near else f"name it as {path.name}:COLUMN;"
        raise BadInput(f"{path}: no label column {column!r}: {hint} It has {_some(header)}")
    if len(header) < 2:
        raise BadInput(
            f"{path}: only the column {column!r}: must have at least one column of numbers besides"
        )
    return header.index(column)


def _some(names: list[str]) -> str:
    """Return the first few names, so that the line stays a line."""
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _read_parquet(path: Path, column: str) -> Pair:
    """Return the numeric columns of a Parquet file and its label column."""
    table = _parquet_table(path)
    header = list(table.column_names)
    at = _label_at(path, header, column)
    if not table.num_rows:
        raise BadInput(f"{path}: no rows: must have at least one")
    for name in header:
        if table[name].null_count:
            raise BadInput(
                f"{path}: column {name!r} has {table[name].null_count:,} missing values: fill or drop them"
            )
    features = [
        _parquet_numbers(path, name, table[name].to_numpy())
        for i, name in enumerate(header)
        if i != at
    ]
    return np.stack(features, axis=1), np.array(table[column].to_pylist())


def _parquet_table(path: Path) -> Any:
    """Return the whole table of one file."""
    try:
        import pyarrow
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise BadInput(
            f"{path}: reading Parquet needs pyarrow: pip install 'tacit[parquet]', or give a CSV"
        ) from None
    try:
        with ParquetFile(path) as opened:
            return opened.read()
    except (OSError, pyarrow.ArrowException) as error:
        raise BadInput(
            f"{path}: cannot be read as Parquet ({' '.join(str(error).split())})"
        ) from None


def _parquet_numbers(path: Path, name: str, values: Array) -> NDArray[np.float64]:
    """Return one feature column as numbers, naming the first that is not finite."""
    if values.dtype.kind not in "biuf":
        raise BadInput(f"{path}: column {name!r} is not numeric: must be; encode or drop it")
    numbers = values.astype(np.float64)
    if not np.isfinite(numbers).all():
        row = int((~np.isfinite(numbers)).argmax())
        raise BadInput(
            f"{path} row {row}: {name} = {numbers[row]}: must be a finite number; fill or drop it"
        )
    return numbers


def _read_torch(data: TorchDataset[Any], where: str) -> Pair:
    """Return every item of a torch data set that has a length."""
    size = len(data) if hasattr(data, "__len__") else None
    if not size:
        why = "no length" if size is None else "no items"
        raise BadInput(
            f"{where}: {type(data).__name__} has {why}: must be a map-style data set with at least one item"
        )
    inputs, labels = [], []
    for i in range(size):
        item = data[i]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise BadInput(
                f"{where}: item {i} is a {type(item).__name__}: must be a pair (input, label)"
            )
        inputs.append(np.asarray(item[0]))
        labels.append(np.asarray(item[1]))
        if inputs[-1].shape != inputs[0].shape or inputs[-1].dtype != inputs[0].dtype:
            raise BadInput(
                f"{where}: input {i} is {inputs[-1].dtype} {inputs[-1].shape} and the first {inputs[0].dtype} "
                f"{inputs[0].shape}: must all be of one shape and type"
            )
    return np.stack(inputs), np.array(
        [label.item() if label.size == 1 else label for label in labels]
    )
