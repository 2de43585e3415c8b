"""Pictures: accuracy over rounds or swept numbers, and who holds what.

Matplotlib is imported when one is drawn.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tacit.core import Array
from tacit.experiment.curves import axis_of, over_rounds

if TYPE_CHECKING:
    from torch import Tensor

    from tacit.experiment.compare import Row
    from tacit.experiment.result import Run
    from tacit.experiment.sweep import Point


def new_axes(width: float, height: float, rows: int = 1, columns: int = 1) -> tuple[Any, Any]:
    """Return a new figure and its axes."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "tacit"  # the same picture gives the same file
    from matplotlib import pyplot as plt

    return plt.subplots(rows, columns, figsize=(width, height), layout="constrained")


def save_figure(figure: Any, stem: Path) -> list[Path]:
    """Write a figure as PNG and SVG, and let go of it."""
    from matplotlib import pyplot as plt

    files = [stem.with_suffix(end) for end in (".png", ".svg")]
    for file in files:
        figure.savefig(file, dpi=150, metadata={"Date": None} if file.suffix == ".svg" else None)
    plt.close(figure)
    return files


def draw_accuracy(
    runs: Mapping[str, Sequence[Run]], stem: Path, title: str = "", metric: str = "accuracy"
) -> list[Path]:
    """Draw accuracy, or another metric, over rounds.

    One line per method with a band of one standard deviation, as PNG and SVG.
    """
    return save_figure(over_rounds(runs, title, metric), stem)


def draw_epsilon(
    curves: Mapping[str, Sequence[tuple[int, float]]], file: Path, unit: str
) -> list[Path]:
    """Draw epsilon over rounds or steps."""
    figure, axes = new_axes(7.0, 4.0)
    for label, curve in curves.items():
        axes.plot(
            [t for t, _ in curve], [e for _, e in curve], label=label, marker="o", markersize=3
        )
    axes.set(xlabel=unit, ylabel="epsilon", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return save_figure(figure, file)


def draw_sweep(rows: Sequence[tuple[Point, Row]], stem: Path, title: str = "") -> list[Path]:
    """Draw accuracy over the first swept field with error bars of one standard deviation.

    PNG and SVG.

    A line for each method and each value of the other fields; dashed, what the methods measure of
    themselves.
    """
    figure, axes = new_axes(7.5, 4.5)
    word, unit = axis_of(rows[0][1].metric)
    field = next(iter(rows[0][0].values))
    lines: dict[str, list[tuple[float, Row]]] = {}
    for point, row in rows:
        rest = ", ".join(f"{k} = {v:g}" for k, v in point.values.items() if k != field)
        lines.setdefault(point.word + (f", {rest}" if rest else ""), []).append(
            (point.values[field], row)
        )
    for label, line in lines.items():
        bars = _bars(axes, [(x, r.shown) for x, r in line], unit, label=label)
        for name in line[0][1].measured:
            measured = [(x, r.measured.get(name, [])) for x, r in line]
            style = {"linestyle": "--", "color": bars[0].get_color()}
            _bars(axes, measured, label=f"{label}: {name}", **style)
    places = [point.values[field] for point, _ in rows]
    if min(places) > 0 and max(places) > 30 * min(places):
        axes.set_xscale("log")
    axes.set(xlabel=field, ylabel=f"test {word}", title=title)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return save_figure(figure, stem)


def _bars(
    axes: Any, points: Sequence[tuple[float, Sequence[float]]], unit: int = 100, **style: Any
) -> Any:
    """Draw means with error bars; what was not measured is left out."""
    there = sorted((x, unit * np.array(values)) for x, values in points if len(values))
    middles = [values.mean() for _, values in there]
    spreads = [values.std(ddof=1) if len(values) > 1 else 0.0 for _, values in there]
    return axes.errorbar(
        [x for x, _ in there], middles, spreads, marker="o", markersize=4, capsize=3, **style
    )


def draw_split(counts: Array, classes: Sequence[str], stem: Path, title: str = "") -> list[Path]:
    """Draw who holds what: clients across, classes up, a dot as large as the number of examples."""
    clients, kinds = counts.shape
    figure, axes = new_axes(min(14.0, 2.5 + 0.35 * clients), min(12.0, 1.8 + 0.32 * kinds))
    if clients <= 60 and kinds <= 60:
        at = np.argwhere(counts)
        sizes = counts[counts > 0]
        axes.scatter(
            at[:, 0], at[:, 1], s=220 * sizes / max(counts.max(), 1), c=at[:, 1], cmap="turbo"
        )
        axes.set(xlim=(-0.7, clients - 0.3), ylim=(-0.7, kinds - 0.3))
    else:
        axes.imshow(counts.T, aspect="auto", origin="lower", cmap="magma", interpolation="nearest")
    if kinds <= 60:
        axes.set_yticks(range(kinds), classes)
    axes.set(xlabel="client", ylabel="class", title=title)
    axes.xaxis.get_major_locator().set_params(integer=True)
    return save_figure(figure, stem)


SHADES = " .:-=+*#%@"
SIDE = 96  # pixels of an image in a sheet, which shows it half an inch large


def text_split(counts: Array, most: int = 40) -> str:
    """Return the same picture in characters: one row per client, darker is more."""
    top = max(counts.max(), 1)
    rows = [
        (
            f"{i:>5}  {''.join(SHADES[int(np.ceil(9 * n / top))] for n in row)}  {row.sum():>7,} "
            f"examples, {(row > 0).sum()} classes"
        )
        for i, row in enumerate(counts[:most])
    ]
    more = [f"  ... and {len(counts) - most:,} more clients"] if len(counts) > most else []
    return "\n".join(["client  classes", *rows, *more])


def draw_sheet(
    x: Tensor, y: Tensor, classes: Sequence[str], stem: Path, each: int = 12
) -> list[Path]:
    """Draw a few examples of every class, a row for each; nothing where they are not images."""
    return save_figure(_sheet(x, y, classes, each), stem) if x.dim() == 4 else []


def sheet_png(x: Tensor, y: Tensor, classes: Sequence[str], each: int = 12) -> bytes:
    """Return the same, of images alone, as the bytes of a small PNG."""
    from matplotlib import pyplot as plt

    figure, blob = _sheet(x, y, classes, each), io.BytesIO()
    figure.savefig(blob, format="png")
    plt.close(figure)
    return blob.getvalue()


def _sheet(x: Tensor, y: Tensor, classes: Sequence[str], each: int) -> Any:
    figure, axes = new_axes(0.5 * each + 1, 0.5 * len(classes))
    tiles = tiles_of(x, y, len(classes), each)
    axes.imshow(tiles.clip(0, 1), interpolation="nearest")
    height = len(tiles) // len(classes)
    axes.set(
        xticks=[], yticks=[(c + 0.5) * height for c in range(len(classes))], yticklabels=classes
    )
    return figure


def tiles_of(x: Tensor, y: Tensor, classes: int, each: int) -> Array:
    """Return a few images of every class side by side, a row of them for each.

    Of images that are larger than anybody would see here, every k-th pixel.
    """
    step = -(-max(x.shape[2:]) // SIDE)
    x = x[:, :, ::step, ::step]
    height, width = x.shape[2:]
    tiles = np.ones((classes * height, each * width, 3))
    for c in range(classes):
        images = x[y == c][:each].float() / (255.0 if x.dtype == torch.uint8 else 1.0)
        for k, image in enumerate(images):
            tile = image.expand(3, -1, -1).permute(1, 2, 0).numpy()
            tiles[c * height : (c + 1) * height, k * width : (k + 1) * width] = tile
    return tiles
