"""reproduce: the papers' tables and figures, published beside measured."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from tacit import codec
from tacit.cli.flags import parse
from tacit.cli.runs import Interrupted
from tacit.cli.tracking import watcher
from tacit.core import check
from tacit.experiment.config import to_toml
from tacit.experiment.reproduce import RUNS, Reproduction, able, chosen, experiments_of, item_of
from tacit.experiment.work import seconds_of, work_of
from tacit.papers.measured import Measured, read_results, results_of
from tacit.papers.published import Cell, Item, Paper, Scale, paper, papers
from tacit.report.page import write_report
from tacit.report.reproduction import (
    cell_table,
    claims_table,
    found,
    matrix,
    number,
    shown,
    state,
    verdict,
)
from tacit.report.reproduction_figures import draw_item
from tacit.report.tables import formatted

MOST_REPORTED = 60  # runs in one report: more take minutes, and nobody reads them

HELP = """usage: tacit reproduce                          list all papers, tables and figures
       tacit reproduce PAPER                    list those of one paper
       tacit reproduce PAPER/ITEM --cells       list the cells of one of them
       tacit reproduce PAPER/ITEM [options]     run its cells: published | measured | difference

Cells are named COLUMN/ROW, such as mnist/1-label/fedavg. A killed command goes on where it was when
it is given again, and may run in several processes at once: they share the runs that are left.
`short` is a reduction, the same for all cells of an item; `--cells` says which.

examples:
  tacit reproduce dafl/table3 --only mnist/1-label --scale short
  tacit reproduce kd_dpfl/figure3 --scale full --repeats 3 --out runs/papers
  tacit reproduce cuag/table2 --only accuracy/cuag --scale full --files experiments
  tacit run dafl --preset paper:mnist-1label
"""

ONLY = "a part of cell names, such as mnist/1-label or fedavg; default: all that can run here"
Only = Annotated[
    tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(help=ONLY, metavar="CELL")
]


@dataclass(frozen=True)
class ReproduceFlags:
    """Flags of ``tacit reproduce``."""

    # PAPER/ITEM, such as dafl/table3
    item: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="PAPER/ITEM")]
    only: Only = ()
    # full: as published; short: the reduction that the item names
    scale: Scale = "short"
    repeats: int = 1  # runs of each cell, with seeds 0, 1, ...
    out: Path = Path("runs/reproduce")  # folder for all runs, results and pages
    cells: bool = False  # list the cells and run nothing
    # a folder for experiment files of the cells, which `tacit run` takes; nothing is run
    files: Path | None = None
    # processes; auto: one per processor
    workers: int | Literal["auto"] = "auto"
    # networks compute in; auto: bf16 where a trial shows that it is faster
    precision: Literal["f32", "bf16", "auto"] = "f32"


def reproduce(args: Sequence[str]) -> None:
    """List the papers' tables and figures, or run some."""
    words = [arg for arg in args if not arg.startswith("-")]
    if {"-h", "--help"} & set(args) and not words:
        print(HELP, end="")
        return
    if not args or (len(args) == 1 and "/" not in args[0] and not args[0].startswith("-")):
        print(_listing([paper(args[0])] if args else [paper(key) for key in papers()]))
        return
    about = "Run cells of a paper's table or figure: published, measured, difference."
    given = parse(ReproduceFlags, args, prog="tacit reproduce", about=about)
    check.number("repeats", given.repeats, at_least=1, whole=True)
    key, name = item_of(given.item)
    item = paper(key).items[name]
    cells = chosen(item, given.only)
    if given.cells:
        print(_cells(paper(key), name, item, cells, given.scale))
        return
    if given.files:
        print("\n".join(map(str, _files(paper(key), cells, given.scale, given.files))))
        return
    for cell in cells if given.only else []:
        if cell.why and cell not in able(cells):
            print(f"{cell.key}: not run, {cell.why}", file=sys.stderr)
    machine = {"workers": given.workers, "precision": given.precision}
    work = Reproduction(
        paper(key), name, able(cells), given.scale, given.repeats, given.out, machine
    )
    try:
        with watcher(given.item) as watch:
            measured = work.conduct(watch)
    except KeyboardInterrupt:
        raise Interrupted("stopped; the same command goes on where it was") from None
    _show(work, item, measured)
    say_what_stayed(work, measured)


def say_what_stayed(work: Reproduction, measured: Sequence[Measured]) -> None:
    """Name the cells whose record on file is another, with more seeds, perhaps of older code."""
    on_file = {r.cell: r for r in read_results(work.file)}
    for m in measured:
        kept = on_file.get(m.cell, m)
        if len(kept.seeds) > len(m.seeds):
            of = f"of {len(kept.seeds)} seeds (commit {kept.commit[:10]}, {kept.date})"
            print(f"{m.cell}: {work.file} keeps its record {of}", file=sys.stderr)


def _listing(which: Sequence[Paper]) -> str:
    """Return all items with their state and how long they would take here."""
    parts = ["hours on one processor of this machine, one seed; all cells that can run here\n"]
    for of in which:
        records = results_of(of.method)
        head = ["item", "cells", "full, h", "short, h"]
        rows, remarks = [head], ["state"]
        for key, item in of.items.items():
            if sys.stderr.isatty():
                print(f"\restimating {of.method}/{key:20}", end="\r", file=sys.stderr, flush=True)
            cells = [cell for cell in item.cells.values() if not cell.why]
            hours = [_hours(of, cells, scale) for scale in ("full", "short")]
            rows.append([f"{of.method}/{key}", str(len(item.cells)), *hours])
            remarks.append(f"{item.title}; {state(item, records, key)}")
        parts.append(f"{of.name} ({of.by})\n{formatted(rows, 'text', remarks)}\n")
    return "\n".join(parts)


def _hours(of: Paper, cells: Sequence[Cell], scale: Scale) -> str:
    """Return an estimate; the same experiment counts once."""
    each = {repr(e): e for cell in cells for e in experiments_of(of, cell, scale)}
    work = [work_of(e) for e in each.values()]
    if not work:
        return "-"
    return "?" if None in work else f"{sum(seconds_of(w) for w in work if w) / 3600:.1f}"


def _cells(of: Paper, key: str, item: Item, cells: Sequence[Cell], scale: Scale) -> str:
    """Return the cells of an item with what is published, measured, and how long each takes."""
    measured = found(results_of(of.method), key, scale)
    rows, remarks = [["cell", "published", "measured", "minutes"]], ["method"]
    for cell in cells:
        m = measured.get(cell.key)
        works = [work_of(e) for e in experiments_of(of, cell, scale)]
        minutes = sum(seconds_of(w) for w in works if w) / 60
        rows.append(
            [
                cell.key,
                number(cell.published, cell),
                shown(m, cell) if m else "-",
                f"{minutes:.1f}" if works else "-",
            ]
        )
        words = ", ".join(map(brief, cell.line.words))
        remarks.append(words + (f" ({cell.why})" if cell.why else ""))
    short = ", ".join(f"{k} = {v}" for k, v in item.short.items())
    head = f"{of.name}, {key}: {item.title}\nshort: {short or 'the same as full'}\n"
    return "\n".join([head, formatted(rows, "text", remarks)])


def brief(word: str) -> str:
    """Return a method's word with long lists cut short.

    >>> brief("cuag:mus=[0.1, 0.2, 0.3, 0.4]"), brief("cuag:mus=[1,2,3]")
    ('cuag:mus=[0.1, ..., 0.4]', 'cuag:mus=[1,...,3]')
    """
    return re.sub(r"\[([^],]*),[^]]*,( *)([^],]*)\]", r"[\1,\2...,\2\3]", word)


def _files(of: Paper, cells: Sequence[Cell], scale: Scale, folder: Path) -> Iterator[Path]:
    """Write each cell's experiments as files, and yield them."""
    folder.mkdir(parents=True, exist_ok=True)
    for cell in cells:
        each = experiments_of(of, cell, scale)
        for n, experiment in enumerate(each, 1):
            more = f"-{n}" if len(each) > 1 else ""
            file = folder / f"{of.method}-{cell.key.replace('/', '-')}{more}.toml"
            codec.write_atomically(file, to_toml(experiment).encode())
            yield file


def _show(work: Reproduction, item: Item, measured: Sequence[Measured]) -> None:
    """Print what came out, and write it as a page with a picture."""
    by = {m.cell: m for m in measured}
    print(f"{work.paper.name}, {work.item_key}, {work.scale}: {item.title}\n")
    print(cell_table(work.cells, by) + "\n")
    for key in work.untimed():
        print(f"{key}: no time, as generators of another run were found; another --out takes it")
    for claim in item.claims:
        print(f"{verdict(claim, by)}: {claim.says}")
    folder = work.out / f"{work.paper.method}-{work.item_key}-{work.scale}"
    folder.mkdir(parents=True, exist_ok=True)
    files = draw_item(item, by, folder / "figure")
    text = "\n".join(_page(work, item, by, bool(files)))
    codec.write_atomically(folder / "page.md", f"{text}\n".encode())
    print(f"page: {folder / 'page.md'}; results: {work.file}")
    runs = [work.out / RUNS / name for name in work.runs()]
    if len(runs) > MOST_REPORTED:
        print(f"report: none of {len(runs)} runs; `tacit report` takes some of {work.out / RUNS}")
    elif runs:
        print(f"report: {write_report(runs, folder / 'report.html')}")


def _page(work: Reproduction, item: Item, by: dict[str, Measured], drawn: bool) -> Iterator[str]:
    """Yield the lines of a small page of its own."""
    yield f"# {work.paper.name}, {work.item_key}: {item.title} ({work.scale})\n"
    yield cell_table(work.cells, by, "md") + "\n"
    yield matrix(item, by) + "\n"
    if item.claims:
        yield claims_table(item, by) + "\n"
    if drawn:
        yield f"![{item.title}](figure.png)\n"
    yield item.note or ""
