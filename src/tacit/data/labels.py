"""Labels as the user wrote them: the name of each, and the numbers of the classes."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.core import Array
from tacit.core.errors import BadInput

Stated = str | int | Sequence[str]  # classes as a user states them

MOST_CLASSES = 65_536  # a label above is an identifier by mistake, not a class
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?")


@dataclass(frozen=True)
class Labels:
    """The labels of one part of the data."""

    y: Array  # numbers or words, one for each record
    where: str  # the file, for messages
    # what a message calls a record, such as "visits.csv line 7"; None: the file and a number
    spot: Callable[[int], str] | None = None
    literal: bool = False  # names of folders: "07" is not the number 7

    @property
    def names(self) -> list[str]:
        """The name of each label, which no other label has a say in."""
        return [str(v) for v in self.y] if self.literal else [name_of(v) for v in self.y.tolist()]

    @property
    def numeric(self) -> bool:
        """Whether labels are the numbers of their classes."""
        if self.literal:
            return False
        return self.y.dtype.kind != "U" or all(
            _NUMBER.fullmatch(word.strip()) for word in self.y.tolist()
        )

    def refusal(self, row: int, allowed: str) -> BadInput:
        """Return the error that names one label and what is allowed in its place."""
        value = self.y[row]
        label = repr(str(value)) if isinstance(value, str) else str(value)
        if self.spot is None:
            return BadInput(f"{self.where}: label {label} of example {row}: must be {allowed}")
        return BadInput(f"{self.spot(row)}: label {label}: must be {allowed}")


def name_of(label: object) -> str:
    """Return the name of a label; a whole number has one, however it is written.

    >>> name_of(7.0), name_of("07"), name_of(" well "), name_of(True), name_of("-1")
    ('7', '7', 'well', '1', '-1')
    """
    text = str(int(label) if isinstance(label, bool) else label).strip()
    if not _NUMBER.fullmatch(text):
        return text
    number = float(text)
    return str(int(number)) if number.is_integer() and abs(number) < 2**53 else text


def told(classes: Stated, *, literal: bool = False) -> tuple[str, ...]:
    """Return the names of classes that the user states, so that no data need to tell them.

    Args:
        classes: names, in the order of their numbers; or such names in one text, with commas
            between them; or how many there are, which are then called 0, 1, 2 and so on.
        literal: names are those of folders, in which "07" is not 7.

    >>> told("benign, malignant"), told(3), told('"ill, badly",well')
    (('benign', 'malignant'), ('0', '1', '2'), ('ill, badly', 'well'))
    """
    if isinstance(classes, int) or (isinstance(classes, str) and classes.strip().isdecimal()):
        return tuple(map(str, range(_allowed(int(classes)))))
    texts = _listed(classes) if isinstance(classes, str) else classes
    names = tuple(str(text).strip() if literal else name_of(text) for text in texts)
    _allowed(len(names))
    if "" in names:
        raise BadInput(f"classes = {classes!r}: must be names with commas between, none empty")
    if twice := [name for name, many in Counter(names).items() if many > 1]:
        raise BadInput(f"classes = {classes!r}: {twice[0]!r} is there twice: must all differ")
    return names


def _listed(text: str) -> list[str]:
    """Return the parts of a text between commas; one with a comma in it stands in quotes."""
    return next(csv.reader([text], skipinitialspace=True), [])


def _allowed(many: int) -> int:
    if not 1 <= many <= MOST_CLASSES:
        raise BadInput(f"classes: {many} of them: must be between 1 and {MOST_CLASSES}")
    return many


def numbered(
    parts: Sequence[Labels], classes: tuple[str, ...] | None
) -> tuple[list[Tensor], tuple[str, ...]]:
    """Return the class numbers of all labels, and the names of the classes.

    Without ``classes`` they are those that the data have: 0 up to the largest number, or the words
    in sorted order. That is itself something about the data.
    """
    for part in parts:
        _check_column(part)
    if classes is None:
        classes = _found(parts)
    return [_numbers(part, classes) for part in parts], classes


def _found(parts: Sequence[Labels]) -> tuple[str, ...]:
    """Return the classes that the data have."""
    if not all(part.numeric for part in parts):
        return tuple(sorted({name for part in parts for name in part.names}))
    largest = max(_largest(part) for part in parts)
    return tuple(map(str, range(largest + 1)))


def _largest(part: Labels) -> int:
    """Return the largest class number, refusing what is none."""
    wide = part.y.astype(np.float64)
    good = (wide >= 0) & (wide < MOST_CLASSES) & (wide == np.floor(wide))
    if not good.all():
        allowed = f"a whole number from 0 to {MOST_CLASSES - 1}, or a word"
        raise part.refusal(int((~good).argmax()), allowed)
    return int(wide.max())


def _numbers(part: Labels, classes: tuple[str, ...]) -> Tensor:
    """Return each label's place among the classes, refusing one that is not there."""
    number = {name: i for i, name in enumerate(classes)}
    found = [number.get(name, -1) for name in part.names]
    if -1 in found:
        raise part.refusal(found.index(-1), f"one of the classes {_some(classes)}")
    return torch.tensor(found, dtype=torch.int64)


def _some(names: tuple[str, ...]) -> str:
    """Return the first few names, so that the line stays a line."""
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _check_column(part: Labels) -> None:
    """Refuse what is not one label for each record, without gaps."""
    y, where = part.y, part.where
    if y.ndim != 1:
        raise BadInput(f"{where}: labels of shape {y.shape}: must be one label per example, (n,)")
    if not len(y):
        raise BadInput(f"{where}: no labels: must have at least one")
    if y.dtype.kind not in "biufU":
        raise BadInput(f"{where}: labels of type {y.dtype}: must be whole numbers or words")
    gaps = _gaps(y)
    if gaps.any():
        raise part.refusal(int(gaps.argmax()), "a whole number or a word; it is missing")


def _gaps(y: Array) -> NDArray[np.bool_]:
    """Tell which labels are missing."""
    if y.dtype.kind == "U":
        return np.isin(np.char.lower(np.char.strip(y)), ("", "nan"))
    return np.isnan(y) if y.dtype.kind == "f" else np.zeros(len(y), np.bool_)
