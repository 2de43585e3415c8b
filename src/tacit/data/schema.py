"""The schema of a table: its columns as everybody knows them, the same file at all sites.

How cells become numbers follows from the schema alone, so that sites agree without looking at each
other's data. ``Schema.encode`` puts columns in order by their names and refuses what does not fit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import get_type_hints

import numpy as np

from tacit.core import Array, check
from tacit.core.data import GOALS, Goal
from tacit.core.errors import BadInput
from tacit.core.loose import Json
from tacit.core.schema import check_value
from tacit.core.toml import read_toml, toml_value
from tacit.data.columns import KINDS, Column, Encoder, Numbers
from tacit.data.tables import Table, one_column, some

GAPS = ("", "na", "n/a", "nan", "null")  # what stands for a missing cell, if nothing else is said
MOST_COLUMNS = 10_000
MOST_FEATURES = 1_000_000  # a schema may come from elsewhere


@dataclass(frozen=True)
class Encoded:
    """A table as numbers."""

    x: Numbers  # (n, width)
    y: Array | None  # classes: numbers of classes (n,); else float32 (n, labels); None: unlabelled


@dataclass(frozen=True)
class Schema:
    """All that is public about a table."""

    columns: tuple[Column, ...]
    label: tuple[str, ...]  # the column, or columns, that are to be predicted
    task: Goal = "classes"
    gaps: tuple[str, ...] = GAPS  # what stands for a missing cell; capitals do not matter
    draft: bool = False  # ranges and categories were read off data, and may tell of single records

    def __post_init__(self) -> None:
        check.choice("schema: task", self.task, GOALS)
        names = [column.name for column in self.columns]
        if twice := [name for name in names if names.count(name) > 1]:
            raise BadInput(f"schema: column {twice[0]!r} is there twice: must all differ")
        if not self.label or (len(self.label) > 1 and self.task == "classes"):
            raise BadInput("schema: label: must name one column, or several for other tasks")
        for name in self.label:
            check.choice("schema: label", name, names)
            _check_label(self[name], self.task)
        check.number("schema: features", sum(c.size for c in self.columns), at_most=MOST_FEATURES)
        if not self.inputs:
            raise BadInput("schema: no features: must have a column besides labels and ids")

    def __getitem__(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)

    @property
    def inputs(self) -> tuple[Column, ...]:
        """The columns that features are made of, in order."""
        return tuple(c for c in self.columns if c.name not in self.label and c.kind != "id")

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the numbers that a row becomes, in order."""
        return tuple(name for column in self.inputs for name in column.features)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of what is predicted: classes, or the columns of labels."""
        return self[self.label[0]].categories if self.task == "classes" else self.label

    def encode(
        self, table: Table, *, labelled: bool = True, own: Mapping[str, Encoder] | None = None
    ) -> Encoded:
        """Return a table as numbers, or refuse it with a line that names the column.

        Args:
            table: of any site; the order of its columns does not matter
            labelled: whether the columns of labels must be there, or are not looked at
            own: encoders of texts, by the words that name them (:func:`own_encoder`)
        """
        self._check_columns(table, labelled)
        parts = [column.encode(table, self._gaps, own) for column in self.inputs]
        return Encoded(np.concatenate(parts, axis=1), self._labels(table) if labelled else None)

    @property
    def _gaps(self) -> frozenset[str]:
        return frozenset(word.lower() for word in self.gaps) | {""}

    def _check_columns(self, table: Table, labelled: bool) -> None:
        needed = [*self.inputs, *(self[name] for name in self.label if labelled)]
        for column in needed:
            try:
                column.in_table(table)
            except BadInput as e:
                raise BadInput(f"{e}{one_column(table)}") from None
        extra = [header for header in table.columns if not self._knows(header)]
        if extra:
            raise BadInput(
                f"{table.where}: column {extra[0]!r} is not in the schema: must be one of "
                f"{some([c.name for c in self.columns])}, or left out with --drop"
            )

    def _knows(self, header: str) -> bool:
        return any(c.name == header or c.unit_in(header) is not None for c in self.columns)

    def _labels(self, table: Table) -> Array:
        found = [self._label(table, self[name]) for name in self.label]
        return found[0] if self.task == "classes" else np.stack(found, 1).astype(np.float32)

    def _label(self, table: Table, column: Column) -> Array:
        cells = column.in_table(table)
        rows = np.flatnonzero(column.there(table, cells, self._gaps))
        if self.task == "regression":
            return column.scaled(table, cells, rows)
        return column.numbers(table, cells, rows)

    def without(self, *names: str) -> Schema:
        """Return it with some columns as ids, which are no features."""
        gone = [self[name].name for name in names if name in [c.name for c in self.columns]]
        return replace(
            self,
            columns=tuple(Column(c.name, "id") if c.name in gone else c for c in self.columns),
        )

    def to_dict(self) -> Json:
        """Return it as plain values, without what does not concern a column's kind."""
        head: Json = {"task": self.task, "label": list(self.label), "gaps": list(self.gaps)}
        if self.draft:
            head["draft"] = True
        return head | {"column": [_plain(column) for column in self.columns]}

    @classmethod
    def from_dict(cls, raw: object) -> Schema:
        """Return a schema from plain values; whatever is wrong is named."""
        if not isinstance(raw, Mapping):
            raise BadInput("schema: must be a table")
        given = dict(raw)
        columns = given.pop("column", None)
        if not isinstance(columns, list) or not 1 <= len(columns) <= MOST_COLUMNS:
            raise BadInput("schema: must have [[column]] tables, one for each column")
        if isinstance(given.get("label"), str):
            given["label"] = [given["label"]]
        made = _checked(cls, {**given, "columns": []}, "schema")
        return cls(**made | {"columns": tuple(_column(i, c) for i, c in enumerate(columns))})

    def to_json(self) -> str:
        """Return it as one line, the same for equal schemas."""
        return json.dumps(self.to_dict(), sort_keys=True, ensure_ascii=False)

    def to_toml(self) -> str:
        """Return it as a file."""
        raw = self.to_dict()
        columns = raw.pop("column")
        return "\n".join([*_lines(raw), *(line for c in columns for line in _table(c))]) + "\n"

    def differences(self, other: Schema) -> Iterator[str]:
        """Yield the columns, or other parts, in which two schemas differ."""
        mine, others = ({c.name: c for c in s.columns} for s in (self, other))
        for name in [*mine, *(name for name in others if name not in mine)]:
            if mine.get(name) != others.get(name):
                yield f"column {name!r}"
        for what in ("task", "label", "gaps"):
            if getattr(self, what) != getattr(other, what):
                yield what
        if list(mine) != list(others):
            yield "order of columns"


def _lines(raw: Json) -> list[str]:
    return [f"{key} = {toml_value(value)}" for key, value in raw.items()]


def _table(column: Json) -> list[str]:
    return ["", "[[column]]", *_lines(column)]


def read_schema(file: str | Path) -> Schema:
    """Read a schema file."""
    return read_toml(Path(file), Schema.from_dict, f"schema = '{file}'")


def _check_label(column: Column, task: Goal) -> None:
    """Refuse a column that a task cannot predict."""
    wanted = "number" if task == "regression" else "category"
    if column.kind != wanted or column.missing:
        raise BadInput(
            f"schema: label {column.name!r} is a {column.kind}: for {task} it must be a {wanted} "
            "without gaps"
        )
    if task == "multilabel" and len(column.categories) != 2:
        raise BadInput(
            f"schema: label {column.name!r}: must have two categories, first no and then yes"
        )


def _plain(column: Column) -> Json:
    kept = ("name", "kind", "missing", *KINDS[column.kind])
    values = {key: getattr(column, key) for key in kept}
    said = {k: v for k, v in values.items() if k in ("name", "kind", "low", "high") or v}
    return {k: list(v) if isinstance(v, tuple) else v for k, v in said.items()}


def _column(number: int, raw: object) -> Column:
    where = f"column {number + 1}"
    if not isinstance(raw, Mapping) or not {"name", "kind"} <= raw.keys():
        raise BadInput(f"schema: {where}: must have a name and a kind")
    where = f"column {str(raw['name'])[:80]!r}"
    made = _checked(Column, dict(raw), where)
    foreign = [key for key in made if key not in ("name", "kind", "missing", *KINDS[made["kind"]])]
    if foreign:
        raise BadInput(f"{where}: {foreign[0]} is not for a {made['kind']}")
    needed = {"number": ("low", "high"), "date": ("first", "last"), "category": ("categories",)}
    if lacks := [key for key in needed.get(made["kind"], ()) if key not in made]:
        raise BadInput(f"{where}: {lacks[0]}: missing; a {made['kind']} needs it")
    return Column(**made)


def _checked(cls: type, raw: Json, where: str) -> Json:
    """Return the fields of a dataclass, of the right types and no others."""
    hints = get_type_hints(cls)
    made: Json = {}
    for key, value in raw.items():
        check.choice(f"{where}: key", key, [f.name for f in fields(cls)])
        given: object = tuple(value) if isinstance(value, list) else value
        check_value(given, hints[key], f"{where}: {key}")
        made[key] = float(value) if hints[key] is float else given
    return made
