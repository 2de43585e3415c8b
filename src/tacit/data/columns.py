"""One column of a table: what its cells must be, and the numbers that they become.

What a cell becomes follows from the cell and from public constants, never from other rows. A cell
that is missing, where that is allowed, is zeros and a 1 in a feature of its own.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tacit.core import check, own_code
from tacit.core.errors import BadInput
from tacit.data.labels import name_of
from tacit.data.tables import Table, some

Kind = Literal["number", "category", "date", "text", "id"]
KINDS: dict[Kind, tuple[str, ...]] = {  # what each says of itself, besides name, kind and missing
    "number": ("low", "high", "unit", "outside"),
    "category": ("categories",),
    "date": ("format", "first", "last", "outside"),
    "text": ("encoder", "width"),
    "id": (),  # no feature: it says who somebody is
}
HASHED = "hashed"  # the encoder of texts that everybody has
Numbers = NDArray[np.float32]
MOST_WIDTH = 65_536


@dataclass(frozen=True)
class Column:
    """What everybody knows of a column, before anybody looks at data."""

    name: str
    kind: Kind
    missing: bool = False  # whether cells may be missing
    low: float = 0.0  # number: its public range, which becomes -1..1
    high: float = 0.0
    unit: str = ""  # number: such as kg; a table may name it in the header, as weight [kg]
    categories: tuple[str, ...] = ()  # category: all there can be, in order
    format: str = "%Y-%m-%d"  # date: as of Python's strptime
    first: str = ""  # date: its public range, in this format
    last: str = ""
    # number, date: what becomes of a value outside of the range; clip: the nearest one inside
    outside: Literal["refuse", "clip"] = "refuse"
    encoder: str = HASHED  # text: hashed, or a function of your own as module:function
    width: int = 64  # text: how many numbers the encoder makes of it

    def __post_init__(self) -> None:
        check.choice(f"column {self.name!r}: kind", self.kind, KINDS)
        if self.kind == "number":
            self._check_range(self.low, self.high)
        elif self.kind == "date":
            self._check_range(self._day("first", self.first), self._day("last", self.last))
        elif self.kind == "category":
            self._check_categories()
        elif self.kind == "text":
            check.number(f"column {self.name!r}: width", self.width, at_least=1, at_most=MOST_WIDTH)

    def _check_range(self, low: float, high: float) -> None:
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            what = "low and high" if self.kind == "number" else "first and last"
            raise BadInput(f"column {self.name!r}: {what} must be a range, the first the smaller")

    def _check_categories(self) -> None:
        known = [name_of(word) for word in self.categories]
        if len(known) < 2 or "" in known or len(set(known)) < len(known):
            raise BadInput(
                f"column {self.name!r}: categories must be at least two, none empty, all different"
            )

    def _day(self, what: str, text: str) -> float:
        try:
            return _days(text, self.format)
        except ValueError:
            raise BadInput(
                f"column {self.name!r}: {what} = {text!r}: must be a date as {self.format}"
            ) from None

    @property
    def size(self) -> int:
        """How many numbers a cell becomes."""
        inner = {
            "number": 1,
            "date": 1,
            "category": len(self.categories),
            "text": self.width,
            "id": 0,
        }
        return inner[self.kind] + (self.missing and self.kind != "id")

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the numbers that a cell becomes."""
        inner = {
            "number": (self.name,),
            "date": (self.name,),
            "category": tuple(f"{self.name}={word}" for word in self.categories),
            "text": tuple(f"{self.name}[{i}]" for i in range(self.width)),
            "id": (),
        }[self.kind]
        return (*inner, f"{self.name} missing") if inner and self.missing else inner

    def in_table(self, table: Table) -> Sequence[str]:
        """Return this column's cells, found by its name, with its unit behind it or without."""
        if self.name in table.columns:
            return table.columns[self.name]
        for header, cells in table.columns.items():
            if (unit := self.unit_in(header)) is not None:
                if unit != self.unit:
                    wanted = repr(self.unit) if self.unit else "none"
                    raise BadInput(
                        f"{table.where}: column {self.name!r}: unit {unit!r}: must be {wanted}"
                    )
                return cells
        raise BadInput(
            f"{table.where}: column {self.name!r} is missing: it has {some(list(table.columns))}"
        )

    def unit_in(self, header: str) -> str | None:
        """Return the unit that a header names behind this column's name; None: it is another's."""
        named = re.fullmatch(re.escape(self.name) + r"\s*[\[(]([^\])]*)[\])]", header)
        return named[1].strip() if named else None

    def encode(
        self, table: Table, gaps: frozenset[str], own: Mapping[str, Encoder] | None = None
    ) -> Numbers:
        """Return the features of all rows, or refuse the first cell that does not fit.

        Args:
            table: the table
            gaps: what stands for a missing cell, in small letters
            own: encoders of texts that the owner of this process has named
        """
        cells = self.in_table(table)
        made = np.zeros((len(cells), self.size), np.float32)
        there = self.there(table, cells, gaps)
        if self.missing and self.kind != "id":
            made[~there, -1] = 1.0
        rows = np.flatnonzero(there)
        if self.kind == "category":
            made[rows, self.numbers(table, cells, rows)] = 1.0
        elif self.kind in ("number", "date"):
            made[rows, 0] = self.scaled(table, cells, rows)
        elif self.kind == "text" and len(rows):
            made[rows, : self.width] = self._encoded(
                [cells[row] for row in rows.tolist()], own or {}
            )
        return made

    def there(self, table: Table, cells: Sequence[str], gaps: frozenset[str]) -> NDArray[np.bool_]:
        """Tell which cells are there, refusing a gap where none may be."""
        there = np.array([cell.lower() not in gaps for cell in cells], np.bool_)
        if not self.missing and self.kind != "id" and not there.all():
            row = int((~there).argmax())
            raise BadInput(
                f"{table.spot(row)}: {self.name} is missing: the schema allows no gaps here"
            )
        return there

    def numbers(
        self, table: Table, cells: Sequence[str], rows: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return each cell's place among the categories."""
        place = {name_of(word): i for i, word in enumerate(self.categories)}
        found = np.array([place.get(name_of(cells[row]), -1) for row in rows], np.int64)
        if (found < 0).any():
            allowed = f"one of {some(self.categories)}"
            raise self._refusal(table, cells, int(rows[(found < 0).argmax()]), allowed)
        return found

    def scaled(
        self, table: Table, cells: Sequence[str], rows: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return numbers or days, brought from their public range to -1..1."""
        values = np.array([self._value(table, cells, int(row)) for row in rows], np.float64)
        low, high = self._range
        wrong = (values < low) | (values > high)
        if wrong.any() and self.outside == "refuse":
            raise self._refusal(table, cells, int(rows[wrong.argmax()]), self._allowed)
        scaled: NDArray[np.float64] = 2 * (np.clip(values, low, high) - low) / (high - low) - 1
        return scaled

    def unscaled(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return numbers in this column's own unit again."""
        low, high = self._range
        return (values + 1) / 2 * (high - low) + low

    @property
    def _range(self) -> tuple[float, float]:
        if self.kind == "number":
            return self.low, self.high
        return self._day("first", self.first), self._day("last", self.last)

    @property
    def _allowed(self) -> str:
        if self.kind == "date":
            return f"from {self.first} to {self.last}"
        unit = f" {self.unit}" if self.unit else ""
        return f"from {self.low:g} to {self.high:g}{unit}; is it in another unit?"

    def _value(self, table: Table, cells: Sequence[str], row: int) -> float:
        try:
            value = _days(cells[row], self.format) if self.kind == "date" else float(cells[row])
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            date = f"a date as {self.format}"
            allowed = date if self.kind == "date" else "a finite number, with a point for decimals"
            raise self._refusal(table, cells, row, allowed)
        return value

    def _refusal(self, table: Table, cells: Sequence[str], row: int, allowed: str) -> BadInput:
        cell = cells[row] if len(cells[row]) <= 40 else cells[row][:40] + "..."
        return BadInput(f"{table.spot(row)}: {self.name} = {cell!r}: must be {allowed}")

    def _encoded(self, texts: list[str], own: Mapping[str, Encoder]) -> Numbers:
        if self.encoder == HASHED:
            return hashed(texts, self.width)
        mine = own.get(short(self.encoder))
        if mine is None:
            raise BadInput(
                f"column {self.name!r}: encoder = {self.encoder!r} is code of somebody's: "
                f"name it yourself, with --encoder {self.encoder}"
            )
        return _by_own(mine, texts, self)


Encoder = Callable[[list[str]], object]  # texts -> numbers (n, width)


def own_encoder(word: str) -> Mapping[str, Encoder]:
    """Return the encoder that the owner of this process has named; none where nothing is named."""
    if not word:
        return {}
    if not own_code.is_code(word):
        raise BadInput(f"encoder = {word!r}: must be module:function or file.py:function")
    return {short(word): own_code.load(word, "encoder")}


def short(word: str) -> str:
    """Return code by the name of its file: where that lies is each site's own affair.

    >>> short("/home/me/words.py:lengths"), short("package.words:lengths")
    ('words.py:lengths', 'package.words:lengths')
    """
    where, colon, name = word.rpartition(":")
    return f"{os.path.basename(where)}{colon}{name}"


def _by_own(encode: Encoder, texts: list[str], column: Column) -> Numbers:
    """Return what a function of the user's own makes of texts, each for itself."""
    made = _of(encode, texts, column)
    for i in sorted({0, len(texts) // 2, len(texts) - 1}):
        alone = _of(encode, [texts[i]], column)
        if not np.allclose(alone[0], made[i], rtol=1e-4, atol=1e-5):
            raise BadInput(
                f"encoder = {column.encoder!r}: what it makes of a text depends on the others: "
                "must not"
            )
    return made


def _of(encode: Encoder, texts: list[str], column: Column) -> Numbers:
    try:
        made = np.asarray(encode(list(texts)), np.float32)
    except Exception as e:  # it is the user's code: anything can happen
        why = f"{type(e).__name__}: {' '.join(str(e).split())}"
        raise BadInput(f"encoder = {column.encoder!r}: fails ({why})") from None
    if made.shape != (len(texts), column.width) or not np.isfinite(made).all():
        raise BadInput(
            f"encoder = {column.encoder!r}: returns {made.shape} for {len(texts)} texts: must be "
            f"finite numbers of shape (n, {column.width}), as column {column.name!r} says"
        )
    return made


def hashed(texts: Sequence[str], width: int) -> Numbers:
    """Return texts as bags of words in a few numbers: each word's hash says which, and its sign.

    Rows have norm 1. Learnt from nobody's data (Weinberger et al. 2009).
    """
    made = np.zeros((len(texts), width), np.float32)
    for row, text in enumerate(texts):
        for word in re.findall(r"\w+", text.lower()):
            digest = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "big")
            made[row, (digest >> 1) % width] += 1.0 if digest & 1 else -1.0
    norms = np.linalg.norm(made, axis=1, keepdims=True)
    unit: Numbers = (made / np.where(norms > 0, norms, 1)).astype(np.float32)
    return unit


def _days(text: str, format: str) -> float:
    """Return a date as days since year 1.

    >>> _days("2024-03-01", "%Y-%m-%d") - _days("2024-02-28", "%Y-%m-%d")
    2.0
    """
    if not text:
        raise ValueError("no date")
    try:
        since = datetime.strptime(text, format).replace(tzinfo=None) - datetime.min
    except re.error:  # of formats that say something twice
        raise ValueError(f"format {format!r}") from None
    return since.total_seconds() / 86400
