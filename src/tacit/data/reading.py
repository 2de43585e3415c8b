"""How a table is to be read: which columns, which of them is the label, by which schema."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tacit.core.data import Goal
from tacit.core.errors import BadInput
from tacit.data.columns import own_encoder
from tacit.data.schema import Encoded, Schema, read_schema
from tacit.data.tables import Table


@dataclass(frozen=True)
class Reading:
    """What a user says of the columns of a table; empty: nothing."""

    label: str = ""  # the column to predict
    columns: str = ""  # the features, with commas between
    drop: str = ""  # columns to leave out, with commas between
    schema: str = ""  # a schema file, which says all of this
    encoder: str = ""  # the user's own encoder of texts, if the schema names one
    owner: str = ""  # the column that says whose row it is; no feature
    task: Goal = "classes"  # what is predicted; the schema says it, if there is one

    def __post_init__(self) -> None:
        for what in ("label", "columns"):
            if self.schema and getattr(self, what):
                raise BadInput(
                    f"{what} = {getattr(self, what)!r}: the schema says it; leave it out"
                )
        if self.schema and self.task != "classes":
            raise BadInput(f"task = {self.task!r}: the schema says it; leave it out")
        if self.encoder and not self.schema:
            raise BadInput(f"encoder = {self.encoder!r}: is for columns of texts in a schema")

    @property
    def said(self) -> str:
        """The first thing that was said, by its name; empty: nothing was."""
        said = ("label", "columns", "drop", "schema", "owner")
        return next((what for what in said if getattr(self, what)), "")

    def features(self, where: object, header: Sequence[str], label: str) -> list[str]:
        """Return the names of the features in a header."""
        known = [*header]
        for name in [*listed(self.columns), *listed(self.drop), *filter(None, [self.owner])]:
            if name not in known:
                Table(str(where), {name: [] for name in known}).check_has(name)
        gone = {label, self.owner, *listed(self.drop)}
        return [n for n in listed(self.columns) or header if n not in gone]

    def owners(self, table: Table) -> list[str] | None:
        """Return whose each row is, if a column says so."""
        if not self.owner:
            return None
        table.check_has(self.owner)
        cells = list(table.columns[self.owner])
        if "" in cells:
            raise BadInput(
                f"{table.spot(cells.index(''))}: {self.owner} is missing: must say whose row it is"
            )
        return cells

    def encoded(self, table: Table) -> tuple[Schema, Encoded]:
        """Return the schema, and a table as numbers by it."""
        schema = read_schema(Path(self.schema).expanduser())
        gone = [*listed(self.drop), *filter(None, [self.owner])]
        if self.owner:
            schema = schema.without(self.owner)
        return schema, schema.encode(table.without(gone), own=own_encoder(self.encoder))


def listed(text: str) -> list[str]:
    """Return the names between commas; one with a comma in it stands in quotes.

    >>> listed('age, "weight, kg"'), listed("")
    (['age', 'weight, kg'], [])
    """
    return [name.strip() for name in next(csv.reader([text], skipinitialspace=True), [])]
