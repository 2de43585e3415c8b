"""Published beside measured: tables, claims and pages of a paper's tables and figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Literal

from tacit.papers.measured import Measured
from tacit.papers.published import Cell, Claim, Item, Paper, Scale
from tacit.report.tables import Form, formatted

Found = Mapping[str, Measured]  # by the key of the cell
Verdict = Literal["held", "did not hold", "not decided", "not measured"]
SCALES: tuple[Scale, ...] = ("full", "short")
WIDEST = 8  # columns of one table
VAST = 1e6  # from here on powers of ten say more than digits


def found(records: Sequence[Measured], item: str, scale: Scale) -> dict[str, Measured]:
    """Return what was measured of an item at a scale."""
    return {r.cell: r for r in records if r.item == item and r.scale == scale}


def number(value: float, cell: Cell) -> str:
    """Return a value with as many digits as the paper prints."""
    if math.isnan(value):
        return "-"
    percent = cell.measure in ("accuracy", "own data", "pseudo-labels", "pre-processing", "attack")
    digits = 4 if cell.measure in ("uplink", "traffic") else 1 if cell.measure == "seconds" else 2
    kind = "g" if abs(value) >= VAST else f".{digits}f"
    return f"{value:{kind}}{' %' * (percent and cell.item.unit != '%')}"


def shown(m: Measured, cell: Cell) -> str:
    """Return a mean, with the standard deviation where there are several seeds.

    Where some gave nothing, that of the others, and how many gave nothing.
    """
    given = m.given
    if not given.values:
        return "ended early*" if m.stopped else "-"
    text = number(given.mean, cell)
    if len(given.values) > 1:
        text += f" ± {number(given.spread, cell)}"
    if lost := len(m.values) - len(given.values):
        why = "ended early*" if m.stopped else "gave none"
        return f"{text}, {lost} of {len(m.values)} {why}"
    return text + "*" * bool(m.stopped)


def cell_table(cells: Sequence[Cell], measured: Found, form: Form = "text") -> str:
    """Return published, measured, difference, one line for each cell."""
    rows = [["cell", "published", "measured", "difference", "seeds"]]
    for cell in cells:
        m = measured.get(cell.key)
        rows.append(
            [
                cell.key,
                number(cell.published, cell),
                shown(m, cell) if m else "-",
                _difference(cell, m),
                str(len(m.seeds)) if m else "-",
            ]
        )
    return formatted(rows, form)


def _difference(cell: Cell, m: Measured | None) -> str:
    if m is None or math.isnan(m.mean - cell.published):
        return "-"
    text = number(m.mean - cell.published, cell)
    return text if text.startswith("-") else f"+{text}"


def matrix(item: Item, measured: Found) -> str:
    """Return the item as it is printed, "published → measured" in each cell, as Markdown.

    A table that is too wide to be read is several, by the first parts of its columns' keys.
    """
    groups: dict[str, list[str]] = {}
    for at in item.columns:
        groups.setdefault(at.rpartition("/")[0], []).append(at)
    if len(item.columns) <= WIDEST or len(groups) == 1:
        return _matrix(item, "", list(item.columns), measured)
    return "\n\n".join(_matrix(item, name, some, measured) for name, some in groups.items())


def _matrix(item: Item, name: str, columns: Sequence[str], measured: Found) -> str:
    head = [name, *(at.removeprefix(f"{name}/") for at in columns)]
    body = [
        [row, *(_entry(item.cells[f"{at}/{row}"], measured) for at in columns)] for row in item.rows
    ]
    return formatted([head, *body], "md")


def _entry(cell: Cell, measured: Found) -> str:
    published, m = number(cell.published, cell), measured.get(cell.key)
    if m is None:
        return published
    return shown(m, cell) if published == "-" else f"{published} → {shown(m, cell)}"


def verdict(claim: Claim, measured: Found) -> Verdict:
    """Tell whether a claim held: not decided, where a difference is within the seeds' spread.

    One pair refutes it, whatever is not measured. What diverged, if only with one seed, is below
    what did not.
    """
    told = {k: m for k, m in measured.items() if m.stopped or not math.isnan(m.mean)}
    each = [_above(told.get(a), told.get(b)) for a, b in claim.ordered]
    if claim.cells:
        each.append(_near([told.get(key) for key in claim.cells], claim.within))
    order: tuple[Verdict, ...] = ("did not hold", "not measured", "not decided")
    return next((word for word in order if word in each), "held")


def _above(a: Measured | None, b: Measured | None) -> Verdict:
    if a is None or b is None:
        return "not measured"
    lost = math.isnan(a.mean), math.isnan(b.mean)
    if any(lost):
        return "not decided" if all(lost) else "did not hold" if lost[0] else "held"
    gap = a.mean - b.mean
    if abs(gap) <= math.hypot(a.spread, b.spread):
        return "not decided"
    return "held" if gap > 0 else "did not hold"


def _near(those: Sequence[Measured | None], within: float) -> Verdict:
    means = [m.mean for m in those if m is not None]
    diverged = any(map(math.isnan, means))
    if means and (diverged or max(means) - min(means) > within):
        return "did not hold"
    return "held" if len(means) == len(those) else "not measured"


def claims_table(item: Item, measured: Found) -> str:
    """Return every claim with the figures that it is about, as Markdown."""
    cells = item.cells
    rows = [["the paper says", "where", "here", "measured"]]
    for claim in item.claims:
        figures = [f"{k}: {shown(measured[k], cells[k])}" for k in claim.keys if k in measured]
        here: str = verdict(claim, measured)
        if here != "not measured":
            here += _of_one_seed([measured[k] for k in claim.keys if k in measured])
        rows.append([claim.says, claim.where, here, "; ".join(figures) or "-"])
    return formatted(rows, "md")


def _of_one_seed(records: Sequence[Measured]) -> str:
    """Say that a single run each decided: its spread is not known."""
    return " (one seed)" if any(len(m.seeds) == 1 for m in records) else ""


def state(item: Item, records: Sequence[Measured], key: str) -> str:
    """Say in a few words how much of an item was run, and why the rest was not."""
    by = {scale: found(records, key, scale) for scale in SCALES}
    full = [c for c in item.cells if c in by["full"]]
    short = [c for c in item.cells if c in by["short"] and c not in by["full"]]
    rest = [c for k, c in item.cells.items() if k not in full and k not in short]
    parts = [f"{len(full)} full"] * bool(full) + [f"{len(short)} short"] * bool(short)
    reasons = list(dict.fromkeys(c.why for c in rest if c.why))
    reasons += [item.why] if item.why and not item.cells else []
    open_ = sum(not c.why for c in rest)
    parts += [f"{len(rest) - open_} not run ({'; '.join(reasons)})"] * bool(reasons)
    parts += [f"{open_} not run yet"] * bool(open_)
    total = len(item.cells)
    return f"of {total} cells: {', '.join(parts)}" if total else f"not run: {item.why}"


def page(paper: Paper, records: Sequence[Measured], pictures: Mapping[str, str]) -> str:
    """Return a paper's page as Markdown; ``pictures`` are files by the key of their item."""
    ours = all(item.ours for item in paper.items.values())
    whose = f"*[{paper.by}](../papers.md)*; [how it works here](../methods/{paper.method}.md)."
    parts = [
        "# All methods at equal eps" if ours else f"# {paper.name}, published and measured",
        _prose(f"{'' if ours else whose} {_origin(paper)}"),
        _prose(paper.about),
    ]
    for key, item in paper.items.items():
        parts += _section(paper.method, key, item, records, pictures)
    return "\n\n".join(part for part in parts if part) + "\n"


def _origin(paper: Paper) -> str:
    """Say what a page is made of, and how it is read."""
    return (
        "This page is written by `python docs/reproduction.py` from the paper's values, "
        f"the records of what ran (`src/tacit/papers/{paper.method}.toml`, "
        f"`src/tacit/papers/results/{paper.method}.jsonl`) and from nothing else. An arrow "
        "leads from the published value to the measured one, a mean over seeds with its "
        "standard deviation where there are several. A star: the run ended before its last "
        "round. A claim is not decided where the difference is within the seeds' spread; "
        "what diverged is below what did not."
    )


def _section(
    paper: str, key: str, item: Item, records: Sequence[Measured], pictures: Mapping[str, str]
) -> list[str]:
    unit = f" ({item.unit})" if item.unit else ""
    parts = [
        f"## {key}: {item.title}{unit}",
        _prose(f"State: {state(item, records, key)}."),
        _prose(item.note),
    ]
    there = [scale for scale in SCALES if found(records, key, scale)]
    for scale in there:
        measured = found(records, key, scale)
        parts += [_prose(_ran(paper, key, item, scale, measured)), matrix(item, measured)]
        parts += [_prose(_spent(item, measured))] if item.ours else []
        parts += [claims_table(item, measured)] if item.claims else []
    if not there:
        printed = any(not math.isnan(cell.published) for cell in item.cells.values())
        parts += ["Published:", matrix(item, {})] if printed else []
        parts += [claims_table(item, {})] if item.claims else []
    parts += [f"![{key}]({pictures[key]})"] if key in pictures else []
    return [*parts, _prose(item.explanation)]


def _ran(paper: str, key: str, item: Item, scale: Scale, measured: Found) -> str:
    """Say by which command, on which commit and in which precision something ran."""
    seeds = max(len(m.seeds) for m in measured.values())
    repeats = f" --repeats {seeds}" if seeds else ""
    how = f"`tacit reproduce {paper}/{key} --scale {scale}{repeats}`"
    precisions = sorted({m.precision for m in measured.values()} - {""})
    commits = sorted({c[:10] for m in measured.values() for c in m.commit.split(", ") if c})
    dates = sorted({m.date for m in measured.values()})
    less = ", ".join(f"{k} = {v}" for k, v in item.short.items())
    reduced = f" (with {less})" if scale == "short" and less else ""
    ran = ", ".join(
        [*(f"in {p}" for p in precisions), f"commit {', '.join(commits)}", " to ".join(dates[:1])]
    )
    return f"{scale.capitalize()}{reduced}: {how}, {ran}."


def _spent(item: Item, measured: Found) -> str:
    """Say of which rows the ledgers had more than the eps of a column."""
    most: dict[str, float] = {}
    for key, m in measured.items():
        cell = item.cells[key]
        if any(spent > (cell.column.x or 0.0) for spent in m.spent):
            most[cell.row] = max(most.get(cell.row, 0.0), *m.spent)
    more = ", ".join(f"{row} ({spent:.4g})" for row, spent in most.items())
    kept = "By the ledgers every run kept the eps of its column"
    return f"{kept}, but {more}." if more else f"{kept}."


def _prose(text: str) -> str:
    """Return a paragraph in lines of 100 columns, which never begin like a list."""
    return fill(" ".join(text.split()), 100, break_long_words=False, break_on_hyphens=False)
