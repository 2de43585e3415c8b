"""What a paper has published: tables and figures, cell by cell, read from its file of data."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

from tacit.core import BadInput, Keywords, check
from tacit.methods.spec import validated

FOLDER = Path(__file__).parent
Scale = Literal["full", "short"]
# of a finished run, or by formula alone (`formula`): see experiment/measures.py
Measure = Literal[
    "accuracy",
    "own data",
    "pseudo-labels",
    "uplink",
    "traffic",
    "seconds",
    "pre-processing",
    "attack",
    "at target",
    "formula",
]


@dataclass(frozen=True)
class Line:
    """A row of a table, or a curve of a figure."""

    method: str | list[str] = ""  # a word, or several of which the best result is taken
    published: list[float] = field(default_factory=list)  # by column; nan: no number is printed
    setting: Keywords = field(default_factory=dict)  # of the experiment
    formula: str = ""  # one of experiment/formulas.py, for what no run is needed for
    given: Keywords = field(default_factory=dict)  # what the formula is given
    why: str = ""  # it was not run
    ours: bool = False  # not in the paper: for comparison

    @property
    def words(self) -> list[str]:
        """The words of its methods."""
        return [self.method] if isinstance(self.method, str) else self.method


@dataclass(frozen=True)
class Column:
    """A column of a table, or a place on the axis of a figure."""

    x: float | None = None  # on the axis
    method: Keywords = field(default_factory=dict)  # settings of every method that has them
    setting: Keywords = field(default_factory=dict)  # of the experiment
    measure: Measure | None = None  # another one than that of the whole item
    given: Keywords = field(default_factory=dict)  # what a formula is given
    why: str = ""  # it was not run


@dataclass(frozen=True)
class Claim:
    """What the paper concludes, as something that can be looked up in the cells."""

    says: str
    where: str = ""
    order: list[str] = field(default_factory=list)  # each of these cells above the next one
    above: list[str] = field(default_factory=list)  # each of these ...
    below: list[str] = field(default_factory=list)  # ... above each of these
    pairs: list[tuple[str, str]] = field(default_factory=list)  # the first above the second
    cells: list[str] = field(default_factory=list)  # no two of these further apart ...
    within: float = 0.0  # ... than this

    @property
    def ordered(self) -> list[tuple[str, str]]:
        """The pairs of cells of which the first is said to be above the second."""
        chain = list(zip(self.order, self.order[1:], strict=False))
        return [*chain, *self.pairs, *((a, b) for a in self.above for b in self.below)]

    @property
    def keys(self) -> list[str]:
        """All cells that it is about."""
        some = (*self.order, *self.above, *self.below, *self.cells)
        return list(dict.fromkeys([*some, *(key for pair in self.pairs for key in pair)]))


@dataclass(frozen=True)
class Item:
    """A table or a figure."""

    title: str
    measure: Measure = "accuracy"
    unit: str = "%"
    axis: str = ""  # what x is
    # a figure of bars, of lines over x, or of curves over rounds; a table needs none
    draws: Literal["nothing", "lines", "curves", "bars"] = "nothing"
    method: Keywords = field(default_factory=dict)  # settings of every method that has them
    setting: Keywords = field(default_factory=dict)  # of the experiment
    # the reduction, the same for all cells; `setting.` is before what is the experiment's
    short: Keywords = field(default_factory=dict)
    why: str = ""  # it was not run
    full_why: str = ""  # it was not run in full
    note: str = ""  # how it is read, and what is not said in the paper
    explanation: str = ""  # why what was measured differs from what is published
    columns: dict[str, Column] = field(default_factory=dict)
    rows: dict[str, Line] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name, row in self.rows.items():
            if row.published and len(row.published) != len(self.columns):
                raise BadInput(
                    f"{name}.published: has {len(row.published)} values, "
                    f"must have one for each of {len(self.columns)} columns"
                )
        for claim in self.claims:
            for key in claim.keys:
                check.choice(f"cell of claim {claim.says!r}", key, self.cells)

    @property
    def cells(self) -> dict[str, Cell]:
        """All cells by key: the column's, then the row's, such as mnist/1-label/fedavg."""
        return {
            f"{at}/{name}": Cell(f"{at}/{name}", name, at, self)
            for name in self.rows
            for at in self.columns
        }

    @property
    def ours(self) -> bool:
        """Whether no paper has published any of it."""
        return all(line.ours for line in self.rows.values())

    @property
    def is_figure(self) -> bool:
        """Whether it is drawn."""
        return self.draws != "nothing"


@dataclass(frozen=True)
class Cell:
    """One value of a table, or one point or curve of a figure."""

    key: str
    row: str
    at: str
    item: Item

    @property
    def line(self) -> Line:
        """Its row."""
        return self.item.rows[self.row]

    @property
    def column(self) -> Column:
        """Its column."""
        return self.item.columns[self.at]

    @property
    def measure(self) -> Measure:
        """What of a run it shows."""
        return self.column.measure or self.item.measure

    @property
    def published(self) -> float:
        """The printed value; nan: none."""
        values = self.line.published
        return values[list(self.item.columns).index(self.at)] if values else float("nan")

    @property
    def why(self) -> str:
        """Why it was not run, if there is a reason; it runs where it is named."""
        return self.item.why or self.column.why or self.line.why


@dataclass(frozen=True)
class Paper:
    """A paper: who wrote it, where its method is, and all it has published."""

    name: str
    by: str
    method: str  # its own
    about: str = ""  # how settings were read that the paper leaves open
    rules: Keywords = field(default_factory=dict)  # settings of every method that has them
    setting: Keywords = field(default_factory=dict)  # of every experiment
    presets: dict[str, str] = field(default_factory=dict)  # name to item/column
    items: dict[str, Item] = field(default_factory=dict)

    def item(self, key: str) -> Item:
        """Return a table or figure by its key."""
        check.choice(f"item of {self.name}", key, self.items)
        return self.items[key]


def papers() -> list[str]:
    """Return the keys of all papers, which are the names of their methods."""
    return sorted(file.stem for file in FOLDER.glob("*.toml"))


@cache
def paper(key: str) -> Paper:
    """Return a paper by its key."""
    check.choice("paper", key, papers())
    return read_paper(FOLDER / f"{key}.toml")


def read_paper(file: Path) -> Paper:
    """Read a paper's file; what is wrong with it is said in one line."""
    try:
        raw = tomllib.loads(file.read_text(encoding="utf-8"))
        found: Paper = validated(Paper, _completed(raw))
    except (tomllib.TOMLDecodeError, BadInput) as e:
        raise BadInput(f"{file}: {e}") from None
    return found


def _completed(raw: Mapping[str, object]) -> Keywords:
    """Give items that are made of another one's cells (``like``) its columns and rows.

    ``only`` and ``curves`` name which, ``printed`` has other values, and ``more`` other rows.
    """
    items = raw.get("items", {})
    if not isinstance(items, dict):
        return dict(raw)
    return {**raw, "items": {key: _like(item, items) for key, item in items.items()}}


def _like(item: Keywords, items: Mapping[str, Keywords]) -> Keywords:
    """Return an item with what it takes over from another, less what it leaves out."""
    if "like" not in item:
        return item
    check.choice("like", item["like"], items)
    base = {k: v for k, v in items[item["like"]].items() if k not in ("claims", "explanation")}
    own = {k: v for k, v in item.items() if k not in ("like", "only", "curves", "printed", "more")}
    at = item.get("only", list(base["columns"]))
    places = [list(base["columns"]).index(key) for key in at]
    every = {k: _part(row, places) for k, row in base["rows"].items()} | item.get("more", {})
    rows = {k: every[k] for k in item.get("curves", every)}
    printed = {k: {"published": values} for k, values in item.get("printed", {}).items()}
    return {
        **base,
        **own,
        "columns": {key: base["columns"][key] for key in at},
        "rows": {k: row | printed.get(k, {}) for k, row in rows.items()},
    }


def _part(row: Keywords, places: list[int]) -> Keywords:
    """Return a row with the printed values of some of its columns."""
    published = row.get("published")
    return {**row, "published": [published[i] for i in places]} if published else row
