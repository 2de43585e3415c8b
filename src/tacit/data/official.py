"""Readers of the official file formats, and the data sets that the package knows by name."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tacit.core import Array, check
from tacit.core.errors import BadInput
from tacit.data.examples import Dataset, Examples
from tacit.data.files import Progress, data_folder, ensure

_PIXELS = 3 * 32 * 32  # of one CIFAR image, plane by plane

_TEN_DIGITS = tuple("0123456789")
_FASHION = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
_CIFAR10 = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
_CIFAR100 = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
    camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile
    cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp
    lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
    oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
    possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake
    spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor
    train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""


def read_idx(path: Path) -> Tensor:
    """Return the bytes of one idx file (plain or .gz) as a uint8 tensor of its header's shape."""
    raw = _read_bytes(path)
    if len(raw) < 4 or raw[:3] != b"\0\0\x08":
        raise BadInput(
            f"{path}: starts with {raw[:4].hex(' ') or 'nothing'}: "
            "must be an idx file of unsigned bytes"
        )
    start = 4 + 4 * raw[3]
    shape = [int.from_bytes(raw[i : i + 4], "big") for i in range(4, start, 4)]
    if len(raw) != start + math.prod(shape):
        raise BadInput(
            f"{path}: {len(raw):,} bytes where its header {tuple(shape)} needs "
            f"{start + math.prod(shape):,}: cut short or changed; delete it and fetch it again"
        )
    return torch.from_numpy(np.frombuffer(raw, np.uint8, offset=start).reshape(shape).copy())


def read_idx_pair(
    images: Path, labels: Path, classes: int, *, transposed: bool = False
) -> Examples:
    """Return the examples of an image file and its label file.

    EMNIST stores its images with rows as columns.
    """
    x, y = read_idx(images), read_idx(labels)
    if x.ndim != 3 or y.ndim != 1:
        found, file, shape = (
            (x, images, "(n, height, width)") if x.ndim != 3 else (y, labels, "(n,)")
        )
        raise BadInput(f"{file}: shape {tuple(found.shape)}: must be {shape}")
    if len(x) != len(y):
        raise BadInput(
            f"{images}: {len(x):,} images, but {labels.name} has {len(y):,} labels: must be as many"
        )
    if transposed:
        x = x.transpose(1, 2)
    return Examples(x.unsqueeze(1).contiguous(), _class_labels(y, classes, labels))


def read_cifar(paths: Sequence[Path], label_bytes: int, classes: int | None = None) -> Examples:
    """Return the records of CIFAR binary files: 1 label byte, or 2 (coarse, fine.

    Fine is used), then 3 planes.
    """
    parts = [_read_records(path, label_bytes, classes) for path in paths]
    if not parts:
        raise BadInput("paths = []: must name at least one CIFAR file")
    x, y = (torch.cat([part[i] for part in parts]) for i in (0, 1))
    return Examples(x, y)


def read_svhn(path: Path) -> Examples:
    """Return the examples of an SVHN cropped-digits file; its label 10 means the digit 0."""
    content = _read_mat(path)
    x, y = content.get("X"), content.get("y")
    if x is None or y is None:
        raise BadInput(
            f"{path}: holds {sorted(k for k in content if k[0] != '_')}: must hold X and y"
        )
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[2] != 3:
        raise BadInput(f"{path}: X is {x.dtype} {x.shape}: must be uint8 (height, width, 3, n)")
    if y.size != x.shape[3] or not y.size:
        raise BadInput(
            f"{path}: {x.shape[3]:,} images and {y.size:,} labels: must be as many, at least one"
        )
    if y.dtype.kind not in "iu" or y.min() < 1 or y.max() > 10:
        raise BadInput(f"{path}: labels {y.min()}..{y.max()}: must be whole numbers 1..10")
    pixels = np.ascontiguousarray(x.transpose(3, 2, 0, 1))
    return Examples(torch.from_numpy(pixels), torch.from_numpy(y.reshape(-1).astype(np.int64) % 10))


def load_official(
    name: str, folder: Path | None = None, progress: Progress | None = None
) -> Dataset:
    """Return a public data set by name, from verified official files, downloaded if need be.

    ``digits`` needs none.
    """
    check.choice("data", name, KNOWN)
    if name == "digits":
        return _digits()
    spec = _SPECS[name]
    paths = ensure(name, folder or data_folder(), progress)
    train, test = spec.read(paths, len(spec.classes))
    return Dataset(name, train, test, spec.classes, spec.mean, spec.std, own=False)


def _digits() -> Dataset:
    """Return scikit-learn's 1,797 scans, packed with the rows of a fixed stratified test set."""
    with np.load(Path(__file__).with_name("digits.npz"), allow_pickle=False) as packed:
        x, y, rows = packed["x"], packed["y"], packed["test"]
    everything = Examples(torch.from_numpy(x).unsqueeze(1), torch.from_numpy(y.astype(np.int64)))
    is_test = torch.zeros(len(y), dtype=torch.bool)
    is_test[torch.from_numpy(rows.astype(np.int64))] = True
    train, test = (
        everything.take(torch.nonzero(~is_test)[:, 0]),
        everything.take(torch.nonzero(is_test)[:, 0]),
    )
    return Dataset("digits", train, test, _TEN_DIGITS, (0.3053,), (0.3759,), own=False)


def _read_bytes(path: Path) -> bytes:
    """Return a file's bytes, unpacked if it is a .gz."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as opened:
            return opened.read()
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadInput(
            f"{path}: cut short or not a .gz file ({error}); delete it and fetch it again"
        ) from None
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})") from None


def _read_records(path: Path, label_bytes: int, classes: int | None) -> tuple[Tensor, Tensor]:
    """Return the pixels and the last label byte of each record of one CIFAR file."""
    raw, length = _read_bytes(path), label_bytes + _PIXELS
    if not raw or len(raw) % length:
        raise BadInput(
            f"{path}: {len(raw):,} bytes: must be a whole number of {length:,}-byte records; "
            "it is cut short or not a CIFAR binary file; delete it and fetch it again"
        )
    records = np.frombuffer(raw, np.uint8).reshape(-1, length)
    labels = torch.from_numpy(records[:, label_bytes - 1].copy())
    pixels = torch.from_numpy(records[:, label_bytes:].copy()).reshape(-1, 3, 32, 32)
    return pixels, _class_labels(labels, classes or (10 if label_bytes == 1 else 100), path)


def _read_mat(path: Path) -> dict[str, Array]:
    """Return the variables of a MATLAB 5 file."""
    from scipy.io import loadmat  # here because it takes long to import
    from scipy.io.matlab import MatReadError

    try:
        content: dict[str, Array] = loadmat(str(path), appendmat=False)
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file") from None
    except (
        OSError,
        EOFError,
        ValueError,
        TypeError,
        KeyError,
        NotImplementedError,
        MatReadError,
        zlib.error,
    ) as error:
        why = " ".join(str(error).split())
        raise BadInput(
            f"{path}: cut short or not a .mat file ({why}); delete it and fetch it again"
        ) from None
    return content


def _class_labels(labels: Tensor, classes: int, path: Path) -> Tensor:
    """Return labels as int64 once they are known to name a class each."""
    if not len(labels):
        raise BadInput(f"{path}: no labels: must have at least one")
    if int(labels.max()) >= classes:
        raise BadInput(f"{path}: label {int(labels.max())}: must be 0..{classes - 1}")
    return labels.long()


_Paths = Sequence[Path]
_Parts = tuple[Examples, Examples]


def _upright(paths: _Paths, classes: int) -> _Parts:
    return read_idx_pair(paths[0], paths[1], classes), read_idx_pair(paths[2], paths[3], classes)


def _transposed(paths: _Paths, classes: int) -> _Parts:
    train = read_idx_pair(paths[0], paths[1], classes, transposed=True)
    return train, read_idx_pair(paths[2], paths[3], classes, transposed=True)


def _cifar(paths: _Paths, classes: int) -> _Parts:
    label_bytes = 1 if classes == 10 else 2
    return read_cifar(paths[:-1], label_bytes, classes), read_cifar(
        paths[-1:], label_bytes, classes
    )


def _svhn(paths: _Paths, classes: int) -> _Parts:
    return read_svhn(paths[0]), read_svhn(paths[1])


@dataclass(frozen=True)
class _Spec:
    """How a set's files are read, and its public constants."""

    read: Callable[[_Paths, int], _Parts]
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]


_SPECS = {
    "mnist": _Spec(_upright, _TEN_DIGITS, (0.1307,), (0.3081,)),
    "fashion-mnist": _Spec(_upright, _FASHION, (0.2860,), (0.3530,)),
    "emnist-digits": _Spec(_transposed, _TEN_DIGITS, (0.1736,), (0.3317,)),
    "cifar10": _Spec(_cifar, _CIFAR10, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": _Spec(
        _cifar, tuple(_CIFAR100.split()), (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
    ),
    "svhn": _Spec(_svhn, _TEN_DIGITS, (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
}

KNOWN: tuple[str, ...] = ("digits", *_SPECS)


def classes_of(name: str) -> tuple[str, ...]:
    """Return the names of a public data set's classes, which are known without its files.

    >>> classes_of("cifar10")[:2], classes_of("mine.csv")
    (('airplane', 'automobile'), ())
    """
    if name == "digits":
        return _TEN_DIGITS
    return _SPECS[name].classes if name in _SPECS else ()
