"""report, view: runs in a browser, as one page or live."""

from __future__ import annotations

import contextlib
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from tacit.cli.flags import parse
from tacit.core import BadInput
from tacit.experiment.metrics import Metric
from tacit.report.page import results, write_report
from tacit.report.reading import read_all
from tacit.report.review import write_review
from tacit.report.tables import Form, formatted
from tacit.report.viewer import Viewer

DIRS = tyro.conf.arg(
    metavar="DIR...", help="folders of runs, comparisons or sweeps, or folders of such folders"
)
FOR = tyro.conf.arg(
    name="for", help="review: a document for whoever has to approve one run, to be printed"
)
DIR = tyro.conf.arg(metavar="DIR", help="the folder of the runs")


@dataclass(frozen=True)
class ReportFlags:
    """Flags of ``tacit report``."""

    folders: Annotated[tyro.conf.Positional[tuple[Path, ...]], DIRS] = ()
    out: Path | None = None  # the page; default: report.html or review.html in DIR
    for_: Annotated[Literal["us", "review"], FOR] = "us"
    # print the table of the runs like that, and write no page
    format: Form | None = None
    metric: Metric | None = None  # what tables and pictures show; default: what the run says


def report(args: Sequence[str]) -> None:
    """Write a report."""
    about = "Write one page with figures, tables and ledgers of runs. It needs no network."
    examples = [
        "tacit report runs/demo",
        "tacit report runs/a runs/b --out both.html",
        "tacit report runs/a --for review",
    ]
    given = parse(ReportFlags, args, prog="tacit report", about=about, examples=examples)
    if not given.folders:
        raise BadInput("DIR: missing; name a folder of a run, such as `tacit report runs/demo`")
    if given.for_ == "review":
        if len(given.folders) > 1:
            raise BadInput(f"DIR: a review is of one run, not of {len(given.folders)} folders")
        print(f"review: {write_review(given.folders[0], given.out)}")
        return
    if given.format is not None:
        runs = read_all(given.folders)
        table = results(runs, given.metric or runs[0].metric)
        cells = [[cell.text for cell in row] for row in table.rows]
        print(formatted([table.head, *cells], given.format))
        return
    print(f"report: {write_report(given.folders, given.out, given.metric)}")


@dataclass(frozen=True)
class ViewFlags:
    """Flags of ``tacit view``."""

    folder: Annotated[tyro.conf.Positional[Path], DIR] = Path("runs")
    port: int = 0  # where to listen, on this machine alone; 0: any that is free
    open: bool = False  # open it in the browser


def view(args: Sequence[str]) -> None:
    """Show the runs of a folder, live, until Ctrl-C."""
    about = "Show the runs of a folder in a browser on this machine, and follow those that go on."
    examples = ["tacit view", "tacit view runs/demo --open"]
    given = parse(ViewFlags, args, prog="tacit view", about=about, examples=examples)
    with Viewer(given.folder, given.port) as server:
        print(f"{server.address} shows the runs in {given.folder}; Ctrl-C ends it", flush=True)
        if given.open:
            webbrowser.open(server.address)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
