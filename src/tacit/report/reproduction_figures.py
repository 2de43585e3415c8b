"""A paper's figure beside what was measured: lines, curves over rounds, or bars."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tacit.core import Array, Json
from tacit.papers.measured import Measured
from tacit.papers.published import Cell, Item
from tacit.report.pictures import new_axes, save_figure

Found = Mapping[str, Measured]
NEAR = 90.0  # percent
PERCENT = (0, 50, 80, 90, 95, 98, 99)  # on an axis that is stretched towards 100
MARKS, LINES = ("o", "s", "^"), ("-", "--", ":")  # of the first ten methods, the next ...


def draw_item(item: Item, measured: Found, stem: Path) -> list[Path]:
    """Draw published values on the left where there are any, and measured ones on the right.

    Nothing is drawn of a table, or where nothing was measured.
    """
    groups = _groups(item)
    if not item.is_figure or not any(cell.key in measured for g in groups.values() for cell in g):
        return []
    shown = {name: g for name, g in groups.items() if any(c.key in measured for c in g)}
    if item.ours and item.draws == "lines":
        return save_figure(_compared(item, shown, measured), stem)
    printed = any(not math.isnan(cell.published) for g in shown.values() for cell in g)
    alone = "measured" if item.ours else "measured; the paper prints no numbers"
    sides = ["published", "measured"] if printed else [alone]
    figure, axes = new_axes(5.0 * len(sides), 3.6 * len(shown), rows=len(shown), columns=len(sides))
    table = np.reshape(axes, (len(shown), len(sides)))
    for row, (name, cells) in zip(table, shown.items(), strict=True):
        if printed:
            _published(row[0], item, cells)
        _DRAWN[item.draws](row[-1], cells, measured)
        if item.draws == "curves":
            row[0].set_xlim(row[-1].get_xlim())
        for at, what in zip(row, sides, strict=True):
            _label(at, item, f"{name} {what}".strip())
        row[-1].legend(frameon=False, fontsize=7)
    return save_figure(figure, stem)


def _label(at: Any, item: Item, title: str) -> None:
    at.set(title=title, ylabel=item.unit or "value")
    at.set_xlabel("round" if item.draws == "curves" else item.axis)
    if item.draws == "lines" and (even := _even_places(item)):
        at.set_xticks(range(len(even)), [f"{x:g}" for x in even])
        at.set_xlim(-0.5, len(even) - 0.5)
    at.grid(alpha=0.3)


def _compared(item: Item, shown: Mapping[str, list[Cell]], measured: Found) -> object:
    """Draw many methods over eps: a panel for each division of the data, and one list of names.

    Where many are near 100 %, the nearer the more room: what is left to gain is what they differ
    in.
    """
    columns = min(2, len(shown))
    rows = -(-len(shown) // columns)
    figure, axes = new_axes(4.2 * columns + 1.8, 3.8 * rows, rows=rows, columns=columns)
    panels = list(np.ravel(axes))
    for at in panels[len(shown) :]:
        at.set_visible(False)
    for at, (name, cells) in zip(panels, shown.items(), strict=False):
        _many(at, item, cells, measured)
        _label(at, item, name)
        places = sorted({place_of(cell, n) for n, cell in enumerate(cells)})
        at.set_xscale("log")
        at.set_xticks(places, [f"{x:g}" for x in places])
        if sum(measured[c.key].mean > NEAR for c in cells if c.key in measured) > len(cells) / 3:
            at.set_yscale("function", functions=(_stretched, _squeezed))
            at.set_yticks(PERCENT)
            at.set_ylim(0, 99.5)
        at.minorticks_off()
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right center", frameon=False, fontsize=8)
    return figure


def _many(at: Any, item: Item, cells: list[Cell], measured: Found) -> None:
    """Draw a line for each method, with a colour and a mark of its own in every panel."""
    for name, points in _rows(cells).items():
        n = list(item.rows).index(name)
        ten = n // 10 % len(MARKS)
        style: Json = {"color": f"C{n % 10}", "marker": MARKS[ten], "markersize": 4}
        style |= {"linestyle": LINES[ten], "linewidth": 1, "label": name}
        at.errorbar(*_points(points, measured), **style)


def _stretched(percent: Array) -> Array:
    return np.asarray(-np.log10(100.5 - np.minimum(percent, 100.0)))


def _squeezed(height: Array) -> Array:
    return np.asarray(100.5 - 10.0 ** -np.asarray(height))


def _groups(item: Item) -> dict[str, list[Cell]]:
    """Return the panels: the first parts of the columns' keys, or whole columns of curves."""
    found: dict[str, list[Cell]] = {}
    for cell in item.cells.values():
        panel = cell.at if item.draws == "curves" else cell.at.rpartition("/")[0]
        found.setdefault(panel, []).append(cell)
    return found


def _published(at: Any, item: Item, cells: list[Cell]) -> None:
    """Draw the printed values as measured ones are drawn; of a curve, the number at its end."""
    printed = [c for c in cells if not math.isnan(c.published)]
    if not printed:
        at.text(0.5, 0.5, "no numbers are printed", ha="center", transform=at.transAxes)
        at.set_axis_off()
        return
    if item.draws == "curves":
        for name, points in _rows(printed).items():
            style: Json = {"color": _colour(points[0]), "linestyle": "--"}
            at.axhline(points[0].published, **style, label=f"{name} (last round)")
    else:
        values = {c.key: Measured("", c.key, "full", [c.published]) for c in printed}
        _DRAWN[item.draws](at, cells, values)
    at.legend(frameon=False, fontsize=7)


def _rows(cells: list[Cell]) -> dict[str, list[Cell]]:
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        found.setdefault(cell.row, []).append(cell)
    return found


def _colour(cell: Cell) -> str:
    """Return the colour of a cell's row, the same wherever it is drawn."""
    return f"C{list(cell.item.rows).index(cell.row) % 10}"


def place_of(cell: Cell, n: int) -> float:
    """Return where a cell lies on the axis; where nobody says so, by its number."""
    if cell.column.x is None:
        return float(n)
    even = _even_places(cell.item)
    return float(even.index(cell.column.x)) if even else cell.column.x


def _even_places(item: Item) -> list[float]:
    """Return the places along the axis if one of them is infinite: they are drawn evenly then."""
    places = sorted({c.column.x for c in item.cells.values() if c.column.x is not None})
    return places if places and math.isinf(places[-1]) else []


def _lines(at: Any, cells: list[Cell], measured: Found) -> None:
    for name, points in _rows(cells).items():
        x, means, spreads = _points(points, measured)
        if x:
            at.errorbar(x, means, spreads, fmt="o-", color=_colour(points[0]), label=name)


def _points(cells: list[Cell], measured: Found) -> tuple[list[float], list[float], list[float]]:
    """Return where a row's cells lie, what they gave, and its spread; those that were measured."""
    there = [(place_of(c, k), measured[c.key]) for k, c in enumerate(cells) if c.key in measured]
    return [x for x, _ in there], [m.mean for _, m in there], [m.spread for _, m in there]


def _bars(at: Any, cells: list[Cell], measured: Found) -> None:
    there = [c for c in cells if c.key in measured]
    rows, found = _rows(there), {c.at for c in there}
    names = [name for name in dict.fromkeys(c.at for c in cells) if name in found]
    for n, (name, points) in enumerate(rows.items()):
        width = 1 / (len(rows) + 1)
        x = [names.index(c.at) + (n - (len(rows) - 1) / 2) * width for c in points]
        heights = [measured[c.key].mean for c in points]
        at.bar(x, heights, width, color=_colour(points[0]), label=name)
    at.set_xticks(range(len(names)), [name.rpartition("/")[2] for name in names])
    at.margins(y=0.25)  # room for the names of rows


def _curves(at: Any, cells: list[Cell], measured: Found) -> None:
    for cell in cells:
        m = measured.get(cell.key)
        if m and m.curves:
            table = np.array(m.curves)
            colour = _colour(cell)
            at.plot(m.at, table.mean(0), color=colour, label=cell.row)
            style: Json = {"color": colour, "alpha": 0.2, "linewidth": 0}
            at.fill_between(m.at, table.min(0), table.max(0), **style)


_DRAWN = {"lines": _lines, "bars": _bars, "curves": _curves}
