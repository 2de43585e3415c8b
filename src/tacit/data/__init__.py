"""Data sets, the user's own data, and splits into clients. May import core."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from tacit.core import check, own_code
from tacit.core.errors import BadInput
from tacit.core.registry import Registry
from tacit.data.examples import Dataset, Examples
from tacit.data.labels import Stated, told
from tacit.data.official import KNOWN, load_official
from tacit.data.reading import Reading
from tacit.data.schema import Schema, read_schema
from tacit.data.tables import Table, read_table
from tacit.data.user_data import check_is_table, from_torch, load_own, split_column

__all__ = [
    "KNOWN",
    "Dataset",
    "Examples",
    "Reading",
    "Schema",
    "Table",
    "anywhere",
    "can_load",
    "from_torch",
    "is_here",
    "load",
    "load_official",
    "load_own",
    "read_schema",
    "read_table",
]

# functions that return data sets; those of the package are read from files: see tacit.data.official
_FUNCTIONS: Registry[Callable[[], Dataset]] = Registry("data", group="tacit.data")
_OWN = (
    "or the path of a .npz, .csv or .parquet file or of a folder of images by class, "
    "or a function of your own as file.py:function"
)


def load(
    name_or_path: str,
    folder: Path | None = None,
    *,
    classes: Stated | None = None,
    reading: Reading | None = None,
) -> Dataset:
    """Return a public data set by name, or the user's own data at a path.

    Args:
        name_or_path: one of ``KNOWN``, or the path of a file or folder.
        folder: where the files of public data sets are, if not in the data folder.
        classes: all classes of own data, stated: names, a number, or ``folders``. None: those that
            the records have. A public data set has its own.
        reading: of a table: which columns, and by which schema.

    >>> load("digits").shape
    (1, 8, 8)
    """
    if reading is not None and not is_here(name_or_path):
        check_is_table(split_column(name_or_path)[0], reading)
    if name_or_path in KNOWN:
        check_is_table(Path(name_or_path), reading or Reading())
        return _with_own_classes(load_official(name_or_path, folder), classes)
    if is_here(name_or_path):
        return load_own(name_or_path, classes=classes, reading=reading)
    if _is_own_code(name_or_path):
        return _from_code(name_or_path)
    if re.search(r"[/\\.]", name_or_path):
        raise BadInput(
            f"data = {name_or_path!r}: no such file or folder; known names: {', '.join(KNOWN)}"
        )
    check.choice("data", name_or_path, (*KNOWN, *_FUNCTIONS.installed(), _OWN))
    raise AssertionError("unreachable: check.choice refused the name")


def _is_own_code(name: str) -> bool:
    """Tell whether a name is a function of the user's own, and not a table and its column."""
    table = name.rpartition(":")[0].lower().endswith((".csv", ".parquet"))
    return not table and _FUNCTIONS.is_own(name)


def _from_code(name: str) -> Dataset:
    made = _FUNCTIONS.own(name)()
    if not isinstance(made, Dataset):
        raise BadInput(f"data = {name!r}: returns a {type(made).__name__}; must be a Dataset")
    return made


def _with_own_classes(dataset: Dataset, classes: Stated | None) -> Dataset:
    if classes is not None and told(classes) != dataset.classes:
        raise BadInput(f"classes = {classes!r}: {dataset.name} has its own; leave them out")
    return dataset


def is_here(name_or_path: str) -> bool:
    """Tell whether a name is known, or a path leads somewhere from the current folder."""
    return name_or_path in KNOWN or bool(
        name_or_path and os.path.exists(split_column(name_or_path)[0])
    )


def can_load(name_or_path: str) -> bool:
    """Tell whether :func:`load` has something to try: data that are here, or code."""
    return is_here(name_or_path) or _is_own_code(name_or_path)


def anywhere(name_or_path: str) -> str:
    """Return a known name as it is, and the path of the user's data as it holds in any folder.

    >>> anywhere("digits")
    'digits'
    """
    if name_or_path in KNOWN or not is_here(name_or_path):
        return own_code.anywhere(name_or_path)
    path, column = split_column(name_or_path)
    return os.path.abspath(path) + (
        "" if os.path.exists(os.path.expanduser(name_or_path)) else f":{column}"
    )
