"""A first schema for a table, read off the table itself: a draft, to be made public by hand.

Ranges and categories of a draft are those of the records, and a single record may decide them. So a
draft is marked as one, and no site takes it before somebody has put public values in their place.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from tacit.core.data import Goal
from tacit.core.errors import BadInput
from tacit.data.columns import Column
from tacit.data.labels import name_of
from tacit.data.reading import listed
from tacit.data.schema import GAPS, Schema
from tacit.data.tables import Table

MOST_CATEGORIES = 50  # with more different words a column is a text
ENOUGH = 20  # rows from which on a column of all different words is taken for one of names
FORMATS = ("%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y")
NOTE = """\
# A draft: ranges and categories below are those of the records in this file. They are private data:
# one patient alone may decide them. Put public values in their place (what can occur at any site,
# from a text book or a form), then delete the line `draft = true`, and only then share this file.
# docs/data.md says what each key means.
"""


def draft(table: Table, label: str, task: Goal = "classes") -> Schema:
    """Return a schema that fits a table.

    Args:
        table: the table
        label: the column to predict, or several with commas between
        task: what is predicted
    """
    names = tuple(listed(label))
    for name in names:
        table.check_has(name)
    made = {
        name: _label(table, name, task) if name in names else _column(table, name)
        for name in table.columns
    }
    labels = tuple(made[name].name for name in names)
    return Schema(tuple(made.values()), labels, task, draft=True)


def _there(table: Table, name: str) -> list[str]:
    return [cell for cell in table.columns[name] if cell.lower() not in GAPS]


def _label(table: Table, name: str, task: Goal) -> Column:
    cells = _there(table, name)
    if task == "regression":
        return replace(_number(name, cells), missing=False)
    return Column(name, "category", categories=_categories(table, name, cells))


def _column(table: Table, name: str) -> Column:
    """Return a column with the kind that its cells look like."""
    cells = _there(table, name)
    gaps = len(cells) < len(table)
    words = {name_of(cell) for cell in cells}
    if _is_id(name, words, cells):
        return Column(name, "id")
    if all(map(_is_number, cells)):
        return replace(_number(name, cells), missing=gaps)
    if format := _format(cells):
        first, last = _days(cells, format)
        return Column(name, "date", gaps, format=format, first=first, last=last)
    if len(words) <= MOST_CATEGORIES:
        return Column(name, "category", gaps, categories=_categories(table, name, cells))
    return Column(name, "text", gaps)


def _is_id(name: str, words: set[str], cells: Sequence[str]) -> bool:
    """Tell whether a column says who somebody is, by its name or as all its words differ."""
    if not cells or re.search(r"(^|[_\s-])(id|uuid|guid|mrn)$", name, re.IGNORECASE):
        return True
    alike = len(words) == len(cells) and len(cells) >= ENOUGH
    one_word = not any(" " in cell for cell in cells)
    return alike and one_word and not _is_number(cells[0]) and not _format(cells)


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


def _number(name: str, cells: Sequence[str]) -> Column:
    """Return a column of numbers from the smallest to the largest; `weight [kg]` names a unit."""
    if not cells or not all(map(_is_number, cells)):
        raise BadInput(f"column {name!r}: must be numbers for regression")
    low, high = (f(map(float, cells)) for f in (min, max))
    named = re.fullmatch(r"(.*?)\s*[\[(]([^\])]*)[\])]", name)
    plain, unit = (named[1], named[2].strip()) if named else (name, "")
    return Column(plain, "number", low=low, high=high if high > low else low + 1, unit=unit)


def _categories(table: Table, name: str, cells: Sequence[str]) -> tuple[str, ...]:
    words = sorted({name_of(cell) for cell in cells})
    if len(words) < 2:
        raise BadInput(
            f"{table.where}: column {name!r} has {len(words)} different words: must have at least "
            "two; leave it out with --drop"
        )
    return tuple(words)


def _format(cells: Sequence[str]) -> str:
    """Return the format of dates in which all cells are, if there is one."""
    return next((f for f in FORMATS if cells and all(_is_date(cell, f) for cell in cells)), "")


def _is_date(cell: str, format: str) -> bool:
    try:
        datetime.strptime(cell, format)
    except ValueError:
        return False
    return True


def _days(cells: Sequence[str], format: str) -> tuple[str, str]:
    days = sorted({datetime.strptime(cell, format) for cell in cells})
    last = days[-1] if len(days) > 1 else days[0].replace(year=days[0].year + 1)
    return days[0].strftime(format), last.strftime(format)
