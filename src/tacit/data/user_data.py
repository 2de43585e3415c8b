"""The user's own data: .npz files, folders of images, CSV and Parquet tables, torch data sets."""

from __future__ import annotations

import difflib
import math
import os
import re
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.core import Array
from tacit.core.errors import BadInput
from tacit.data.examples import Dataset, Examples, Owners
from tacit.data.labels import Labels, Stated, numbered, told
from tacit.data.places import places
from tacit.data.reading import Reading, listed
from tacit.data.tables import Table, check_header, is_table, parquet_table, read_table, some

if TYPE_CHECKING:
    from torch.utils.data import Dataset as TorchDataset


HELD_OUT = 0.2  # the share kept for testing where the data have no test part
FOLDERS = "folders"  # as classes: the folders of images by class, with or without an image in them
IMAGES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"})
_TABLE = re.compile(r"(?P<path>.+?\.(?:csv|parquet)):(?P<column>.+)", re.IGNORECASE)


def split_column(text: str) -> tuple[Path, str]:
    """Split ``table.csv:column`` into the path and the label column, by default ``label``.

    >>> split_column("visits.csv:outcome")[1], split_column("visits.csv")[1]
    ('outcome', 'label')
    """
    text = os.path.expanduser(text)  # unlike Path's, it leaves an unknown user alone
    named = None if os.path.exists(text) else _TABLE.fullmatch(text)
    return (Path(named["path"]), named["column"]) if named else (Path(text), "label")


@dataclass(frozen=True)
class Read:
    """Inputs and labels as the user wrote them."""

    x: Array
    y: Array
    spot: Callable[[int], str] | None = None  # what a message calls a record, if not by its number
    owners: Sequence[str] | None = None  # whose each record is, if a column says so
    columns: tuple[str, ...] = ()  # of a table: the names of the inputs' numbers


def load_own(
    text: str | Path,
    seed: int = 0,
    classes: Stated | None = None,
    reading: Reading | None = None,
) -> Dataset:
    """Return the user's data at a path; without a test part about a fifth is held out.

    Args:
        text: the path of a file or folder, or ``table.csv:column``.
        seed: of the records that are held out (see :func:`hold_out`).
        classes: all classes, as in :func:`tacit.data.labels.told`, or ``folders`` where those of a
            folder of images are to count as stated. None: those that the records have.
        reading: of a table: which columns, and by which schema.
    """
    path, column = split_column(str(text))
    reading = reading or Reading()
    if not os.path.exists(path):
        raise BadInput(f"data = {str(text)!r}: no such file or folder")
    check_is_table(path, reading)
    if path.is_dir():
        return _from_folder(path, seed, classes)
    if classes == FOLDERS:
        raise BadInput(f"classes = {FOLDERS!r}: {path} is no folder of images; name the classes")
    if reading.schema:
        return _by_schema(path, reading, seed, classes)
    if reading.task != "classes":
        return _of_numbers(path, column, reading, seed)
    stated = None if classes is None else told(classes)
    parts = _read(path, reading.label or column, reading)
    return _dataset(path.stem, str(path), parts, seed=seed, classes=stated)


def check_is_table(path: Path, reading: Reading) -> None:
    """Refuse words about columns where there are none."""
    if reading.said and not is_table(path):
        raise BadInput(f"{reading.said}: is for tables, and {str(path)!r} is no .csv or .parquet")


def _by_schema(path: Path, reading: Reading, seed: int, classes: Stated | None) -> Dataset:
    """Return a table as its schema says."""
    if classes is not None:
        raise BadInput(f"classes = {classes!r}: the schema says them; leave them out")
    table = read_table(path)
    schema, made = reading.encoded(table)
    everything = Examples(torch.from_numpy(made.x), torch.from_numpy(np.asarray(made.y)))
    (train, test), rows = _split(everything, schema.classes, str(path), seed)
    owners = _owners(reading.owners(table), rows)
    half = (0.5,)
    return Dataset(
        path.stem,
        train,
        test,
        schema.classes,
        half,
        half,
        inferred=schema.draft,
        schema=schema,
        owners=owners,
        goal=schema.task,
    )


def _of_numbers(path: Path, column: str, reading: Reading, seed: int) -> Dataset:
    """Return a plain table whose labels are numbers, or 0 and 1, as they are."""
    if not is_table(path):
        raise BadInput(f"task = {reading.task!r}: {str(path)!r} must be a .csv or .parquet")
    table, labels = read_table(path), listed(reading.label) or [column]
    for name in labels:
        _check_label_in(path, list(table.columns), name)
    others = replace(reading, drop="", label="")
    names = [
        name
        for name in others.features(path, list(table.columns), labels[0])
        if name not in (*labels, *listed(reading.drop))
    ]
    if not names:
        raise BadInput(f"{path}: no features: must have a column of numbers besides the labels")
    x, y = (np.array([numbers_in(table, n) for n in of], np.float32).T for of in (names, labels))
    if reading.task == "multilabel" and not np.isin(y, (0, 1)).all():
        row, at = (int(i) for i in np.argwhere(~np.isin(y, (0, 1)))[0])
        raise BadInput(f"{table.spot(row)}: {labels[at]} = {y[row, at]:g}: must be 0 or 1")
    both = Examples(_inputs(x, str(path), False), torch.from_numpy(np.ascontiguousarray(y)))
    (train, test), rows = _split(both, labels, str(path), seed)
    owners = _owners(reading.owners(table), rows)
    return Dataset(
        path.stem,
        train,
        test,
        tuple(labels),
        owners=owners,
        columns=tuple(names),
        goal=reading.task,
    )


def _owners(cells: Sequence[str] | None, rows: Sequence[Tensor]) -> Owners | None:
    """Return whose the records of each part are."""
    if cells is None:
        return None
    names = tuple(sorted(set(cells)))
    place = {name: i for i, name in enumerate(names)}
    of = np.array([place[cell] for cell in cells], np.int64)
    return Owners(names, *(of[part.numpy()] for part in rows))


def _read(path: Path, column: str, reading: Reading) -> list[Read]:
    """Return the train part of a file and, if it has one, its test part."""
    kind = path.suffix.lower()
    if kind == ".npz":
        return _read_npz(path)
    if kind == ".csv":
        return [_read_csv(path, column, reading)]
    if kind == ".parquet":
        return [_read_parquet(path, column, reading)]
    raise BadInput(
        f"data = {str(path)!r}: must be a .npz, .csv or .parquet file, "
        "or a folder of images by class"
    )


def from_torch(
    train: TorchDataset[Any],
    test: TorchDataset[Any] | None = None,
    name: str = "own",
    seed: int = 0,
) -> Dataset:
    """Return a torch data set of (input, label) items, read into memory.

    Its ``classes``, if it has any, are all there are: they name numeric labels, or are the words.
    """
    given = [(train, f"{name} train"), *([(test, f"{name} test")] if test is not None else [])]
    parts = [_read_torch(data, where) for data, where in given]
    names = getattr(train, "classes", None)
    if not isinstance(names, list | tuple) or not names:
        return _dataset(name, name, parts, seed=seed, classes=None)
    if parts[0].y.dtype.kind == "U":
        return _dataset(name, name, parts, seed=seed, classes=told(names))
    made = _dataset(name, name, parts, seed=seed, classes=told(len(names)))
    return replace(made, classes=tuple(map(str, names)))


def hold_out(
    examples: Examples, classes: Sequence[str], share: float, seed: int
) -> tuple[Tensor, Tensor]:
    """Return the rows to train and to test on, in the order of the file.

    Each record decides for itself, by a hash, with the given share as its chance: one record more,
    less or other moves no other one. So a small class may be in one part only.
    """
    is_test = torch.from_numpy(places(examples, classes, seed=seed, use="hold-out") < share)
    return torch.nonzero(~is_test)[:, 0], torch.nonzero(is_test)[:, 0]


def _dataset(
    name: str,
    source: str,
    parts: Sequence[Read],
    *,
    seed: int,
    classes: tuple[str, ...] | None,
    folders: bool = False,
) -> Dataset:
    """Check what was read from ``source`` and make a data set of it.

    Args:
        name: what the data set is called.
        source: the file, for messages.
        parts: to train on and, if there is more than one, to test on.
        seed: of what is held out if there is only one.
        classes: all of them, if they are stated.
        folders: images by class, channels first, their labels as they stand.
    """
    wheres = [f"{source} train", f"{source} test"] if len(parts) > 1 else [source]
    both = list(zip(parts, wheres, strict=True))
    inputs = [_inputs(part.x, where, folders) for part, where in both]
    written = [Labels(_flat(part.y), where, part.spot, folders) for part, where in both]
    labels, names = numbered(written, classes)
    made = [_examples(x, y, where) for x, y, where in zip(inputs, labels, wheres, strict=True)]
    owners = None
    if len(made) == 1:
        made, rows = _split(made[0], names, source, seed)
        owners = _owners(parts[0].owners, rows)
    first, second = made
    if _kind(first.x) != _kind(second.x):
        raise BadInput(
            f"{source}: test inputs are {_kind(second.x)}: "
            f"must be {_kind(first.x)} like the train inputs"
        )
    half = (0.5,) * (first.x.shape[1] if first.x.dtype == torch.uint8 else 1)
    return Dataset(
        name,
        first,
        second,
        names,
        half,
        half,
        inferred=classes is None,
        owners=owners,
        columns=parts[0].columns,
    )


def _flat(y: Array) -> Array:
    """Return a column of labels as a row."""
    return y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y


def _examples(x: Tensor, y: Tensor, where: str) -> Examples:
    """Pair inputs with labels, which must be as many."""
    if len(x) != len(y):
        raise BadInput(f"{where}: {len(x):,} inputs but {len(y):,} labels: must be as many")
    return Examples(x, y)


def _split(
    everything: Examples, classes: Sequence[str], source: str, seed: int
) -> tuple[list[Examples], tuple[Tensor, Tensor]]:
    """Hold a test part out; return the parts and which rows they are."""
    rows = hold_out(everything, classes, HELD_OUT, seed)
    parts = [everything.take(some) for some in rows]
    for part, use in zip(parts, ("train", "test"), strict=True):
        if not len(part):
            raise BadInput(
                f"{source}: none of its {len(everything)} records is in the {use} part (each is "
                f"held out with a chance of {HELD_OUT:g}): must have more, "
                "or a test part of its own"
            )
    return parts, rows


def _kind(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape[1:])}"


def _inputs(x: Array, where: str, channels_first: bool) -> Tensor:
    """Return uint8 images as (n, channels, height, width), other numbers as finite float32."""
    if x.ndim < 1 or x.size == 0:
        raise BadInput(
            f"{where}: inputs of shape {x.shape} are empty: "
            "must have at least one example and one value"
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
            f"{where}: images of shape {x.shape}: {why}; must be (n, c, h, w) or (n, h, w, c), "
            "c = 1 or 3"
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


def read_arrays(path: Path, names: Sequence[str]) -> tuple[dict[str, Array], list[str]]:
    """Return arrays of an .npz by their names, and which it has; pickles are never read."""
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as opened:
            arrays = {key: opened[key] for key in names if key in opened}
            return arrays, sorted(opened.files)
    except (
        OSError,
        ValueError,
        EOFError,
        TypeError,
        RuntimeError,
        MemoryError,  # a damaged header says how large it is
        SyntaxError,
        tokenize.TokenError,
        zlib.error,
        zipfile.BadZipFile,
    ) as error:
        why = " ".join(str(error).split())
        raise BadInput(
            f"{path}: cannot be read as .npz ({why}); write plain arrays with numpy.savez"
        ) from None


def _read_npz(path: Path) -> list[Read]:
    """Return the arrays of an .npz by their names."""
    every = ("x", "y", "x_train", "y_train", "x_test", "y_test")
    arrays, found = read_arrays(path, every)
    names = set(arrays)
    if {"x_train", "y_train", "x_test", "y_test"} <= names:
        return [Read(arrays[f"x_{use}"], arrays[f"y_{use}"]) for use in ("train", "test")]
    for x, y in (("x_train", "y_train"), ("x", "y")):
        if {x, y} <= names and not names & {"x_test", "y_test"}:
            return [Read(arrays[x], arrays[y])]
    raise BadInput(
        f"{path}: holds {found}: must hold x and y, or x_train, y_train, x_test and y_test"
    )


def _from_folder(path: Path, seed: int, classes: Stated | None) -> Dataset:
    """Return a folder of images by class, divided into ``train`` and ``test`` or not."""
    roots = [path]  # also where a class is called train
    if _class_folders(path / "train"):
        roots = [path / use for use in ("train", "test") if _class_folders(path / use)]
    stated = None if classes is None else told(classes, literal=True)
    if classes == FOLDERS:
        stated = tuple(sorted({kind.name for root in roots for kind in _class_folders(root)}))
    parts = [_read_images(root, stated is not None) for root in roots]
    name = path.resolve().name
    return _dataset(name, str(path), parts, seed=seed, classes=stated, folders=True)


def _class_folders(folder: Path) -> list[Path]:
    """Return the folders in a folder, if it is one."""
    if not folder.is_dir():
        return []
    return sorted(
        entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")
    )


def _read_images(folder: Path, may_lack: bool) -> Read:
    """Return every image below a folder, with the name of its class folder.

    ``may_lack``: folders of classes may be empty, since somebody has stated the classes.
    """
    kinds = _class_folders(folder)
    if not kinds:
        raise BadInput(f"{folder}: no class folders: must have images as {folder.name}/CLASS/*.png")
    files = [file for kind in kinds for file in _images(kind, may_lack)]
    if not files:
        raise BadInput(f"{folder}: no images in its folders: must have at least one")
    images = [read_image(file) for file in files]
    for file, image in zip(files, images, strict=True):
        _check_alike(image, images[0], file)
    labels = np.array([file.parent.name for file in files])
    return Read(np.stack(images), labels, lambda row: str(files[row]))


def _images(kind: Path, may_lack: bool) -> list[Path]:
    """Return the images of one class."""
    files = sorted(
        f for f in kind.iterdir() if f.suffix.lower() in IMAGES and not f.name.startswith(".")
    )
    if not files and not may_lack:
        raise BadInput(f"{kind}: no images: must have at least one of {', '.join(sorted(IMAGES))}")
    return files


def read_image(file: Path) -> NDArray[np.uint8]:
    """Return one image as (channels, height, width), grey or RGB."""
    from PIL import Image  # here because it takes long to import

    try:
        with Image.open(file) as image:
            if image.mode.startswith(("I", "F")):
                raise BadInput(
                    f"{file}: pixels of mode {image.mode}: must be 8 bits per channel; "
                    "convert it first"
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
        f"{file}: {kind}, but the first image is {wanted}: must all be alike; "
        "resize or convert them first"
    )


def _read_csv(path: Path, column: str, reading: Reading) -> Read:
    """Return the numeric columns of a CSV file and its label column.

    The first line names the columns.
    """
    table = read_table(path)
    header = list(table.columns)
    _check_label_in(path, header, column)
    names = _features(path, header, column, reading)
    labels = [_csv_label(table, column, row) for row in range(len(table))]
    features = np.array([numbers_in(table, name) for name in names]).T
    return Read(features, np.array(labels), table.spot, reading.owners(table), tuple(names))


def _csv_label(table: Table, column: str, row: int) -> str:
    """Return the label of a row, which must be there."""
    label = table.columns[column][row]
    if label.lower() in ("", "nan"):
        raise BadInput(
            f"{table.spot(row)}: {column} = {label!r} is missing: must be a whole number or a word"
        )
    return label


def numbers_in(table: Table, name: str) -> list[float]:
    """Return one feature of all rows, naming the first cell that is not a finite number."""
    values = []
    for row, cell in enumerate(table.columns[name]):
        try:
            value = float(cell)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise BadInput(
                f"{table.spot(row)}: {name} = {cell!r}: must be a finite number; fill or drop it, "
                f"or use a schema (`tacit data schema {Path(table.where).name}`)"
            )
        values.append(value)
    return values


def _features(path: Path, header: list[str], column: str, reading: Reading) -> list[str]:
    """Return the names of the features, of which there must be one."""
    names = reading.features(path, header, column)
    if not names:
        raise BadInput(
            f"{path}: only the column {column!r}: must have at least one column of numbers besides"
        )
    return names


def _check_label_in(path: Path, header: list[str], column: str) -> None:
    """Refuse a table without its label."""
    if column not in header:
        near = difflib.get_close_matches(column, header, n=1)
        hint = f"did you mean {path.name}:{near[0]}?" if near else f"name it as {path.name}:COLUMN;"
        raise BadInput(f"{path}: no label column {column!r}: {hint} It has {some(header)}")


def _read_parquet(path: Path, column: str, reading: Reading) -> Read:
    """Return the numeric columns of a Parquet file and its label column."""
    table = parquet_table(path)
    header = list(table.column_names)
    check_header(path, header)
    _check_label_in(path, header, column)
    names = _features(path, header, column, reading)
    if not table.num_rows:
        raise BadInput(f"{path}: no rows: must have at least one")
    for name in [*names, column]:
        if table[name].null_count:
            raise BadInput(
                f"{path}: column {name!r} has {table[name].null_count:,} missing values: "
                "fill or drop them, or use a schema"
            )
    features = [_parquet_numbers(path, name, table[name].to_numpy()) for name in names]
    labels = np.array(table[column].to_pylist())
    owners = reading.owners(read_table(path)) if reading.owner else None
    spot = lambda row: f"{path} row {row}"  # noqa: E731
    return Read(np.stack(features, axis=1), labels, spot, owners, tuple(names))


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


def _read_torch(data: TorchDataset[Any], where: str) -> Read:
    """Return every item of a torch data set that has a length."""
    size = len(data) if hasattr(data, "__len__") else None
    if not size:
        why = "no length" if size is None else "no items"
        raise BadInput(
            f"{where}: {type(data).__name__} has {why}: "
            "must be a map-style data set with at least one item"
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
                f"{where}: input {i} is {inputs[-1].dtype} {inputs[-1].shape} and the first "
                f"{inputs[0].dtype} {inputs[0].shape}: must all be of one shape and type"
            )
    return Read(
        np.stack(inputs),
        np.array([label.item() if label.size == 1 else label for label in labels]),
    )
