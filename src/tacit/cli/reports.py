"""report: one page of runs that needs nothing but a browser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from tacit.cli.flags import parse
from tacit.core import BadInput
from tacit.report.page import write_report


@dataclass(frozen=True)
class ReportFlags:
    """Flags of ``tacit report``."""

    # folders of runs, comparisons or sweeps, or folders of such folders
    folders: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="DIR...")]
    out: Path | None = None  # the page; default: report.html in DIR


def report(args: Sequence[str]) -> None:
    """Write a report."""
    about = "Write one page with figures, tables and ledgers of runs. It needs no network."
    examples = ["tacit report runs/demo", "tacit report runs/a runs/b --out both.html"]
    given = parse(ReportFlags, args, prog="tacit report", about=about, examples=examples)
    if not given.folders:
        raise BadInput("DIR: missing; name a folder of a run, such as `tacit report runs/demo`")
    print(f"report: {write_report(given.folders, given.out)}")
