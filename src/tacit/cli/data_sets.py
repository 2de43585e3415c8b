"""data, split: data sets on this machine, and who would hold what."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.progress import DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from tacit.cli.flags import parse
from tacit.cli.listings import plain_help
from tacit.core import BadInput, check
from tacit.core.data import Goal
from tacit.data import KNOWN, Reading, load, read_table
from tacit.data.federated import federate
from tacit.data.files import FILES, data_folder, ensure, locate, verify
from tacit.data.reading import listed
from tacit.data.schema_draft import NOTE, draft
from tacit.data.splits import BY_COLUMN, SCHEMES, clients_of, owner_column
from tacit.experiment.config import Setting
from tacit.report.pictures import draw_split, text_split

DATA_HELP = f"""usage: tacit data [list]        what is in the data folder
       tacit data get NAME      download a data set
       tacit data check NAME    verify its files
       tacit data schema FILE --label COLUMN > schema.toml
                                draft a schema for a table

NAME is one of: {", ".join(KNOWN)}
The data folder is $TACIT_DATA, else a folder of the user's cache directory. Your own data need no
command: give --data a .npz, .csv or .parquet file, or a folder of images by class.

A schema says what the columns of a .csv or .parquet are, for tables with words, gaps, dates or
numbers of patients. A draft is made from your records: its ranges and categories are private data,
and must be replaced by public ones before it is shared: `tacit data schema --help`."""


def data(args: Sequence[str]) -> None:
    """List, get or check data sets."""
    if args[:1] == ["schema"]:
        _schema(args[1:])
        return
    if plain_help(args, DATA_HELP, most=2):
        return
    verb = args[0] if args else "list"
    check.choice("data command", verb, ["list", "get", "check", "schema"])
    if verb == "list":
        _list_data()
        return
    if len(args) < 2:
        raise BadInput(f"data {verb}: name a data set; allowed: {', '.join(KNOWN)}")
    check.choice("data set", args[1], KNOWN)
    if verb == "get":
        _get_data(args[1])
    _check_data(args[1])


@dataclass(frozen=True)
class SchemaFlags:
    """Flags of ``tacit data schema``."""

    # the table: a .csv or .parquet file
    file: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE")]
    label: str = "label"  # the column to predict, or several with commas between
    drop: str = ""  # columns to leave out, with commas between
    task: Goal = "classes"  # what is predicted: one class, numbers, or yes or no for each label


def _schema(args: Sequence[str]) -> None:
    """Print a draft of a schema; it goes to a file, and what is to be done with it to the user."""
    about = "Draft a schema for a table: the draft holds private data until you have edited it."
    given = parse(SchemaFlags, args, prog="tacit data schema", about=about)
    table = read_table(given.file).without(listed(given.drop))
    print(NOTE + draft(table, given.label, given.task).to_toml(), end="")
    print(
        "a draft: its ranges and categories are taken from private data; replace them by public "
        "ones and delete the line `draft = true` before you share it",
        file=sys.stderr,
    )


def _list_data() -> None:
    folder = data_folder()
    print(f"data folder: {folder}\n  {'digits':14} embedded: 1,797 scans of 8x8, no file needed")
    for name, files in FILES.items():
        missing = [f for f in files if locate(f, folder) is None]
        state = (
            "here"
            if not missing
            else f"{len(missing)} of {len(files)} files missing; `tacit data get {name}`"
        )
        print(f"  {name:14} {state}")


def _get_data(name: str) -> None:
    if name not in FILES:
        return
    columns = (
        *Progress.get_default_columns()[:2],
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, disable=not sys.stderr.isatty()) as progress:
        bars = {f.name: progress.add_task(f.name, total=None) for f in FILES[name]}

        def moved(file: str, done: int, of: int | None) -> None:
            if file not in bars:
                bars[file] = progress.add_task(file, total=of)
            progress.update(bars[file], completed=done, total=of)

        ensure(name, data_folder(), moved)


def _check_data(name: str) -> None:
    for file in FILES.get(name, ()):
        if locate(file, data_folder()) is None:
            raise BadInput(
                f"{data_folder() / file.path}: missing; `tacit data get {name}` downloads it"
            )
        verify(file, data_folder())
    found = load(name)
    shape = "x".join(map(str, found.shape))
    print(
        f"{name}: {len(found.train):,} train and {len(found.test):,} test examples of {shape}, "
        f"{len(found.classes)} classes; files are whole"
    )


@dataclass(frozen=True)
class SplitFlags:
    """Flags of ``tacit split``."""

    data: str = "digits"  # a known data set or a path to your own
    split: str = "label:1"  # who holds what; the schemes are listed above
    schema: str = ""  # the schema file that says what columns of a table are
    clients: int = 10  # number of clients
    seed: int = 0  # the same seed gives the same split in every command
    out: Path = Path("split.png")  # the picture; an .svg is written beside it


def split(args: Sequence[str]) -> None:
    """Draw who holds what."""
    schemes = "\n".join(f"  {usage:24} {about}" for usage, about in (SCHEMES | BY_COLUMN).items())
    own = "Your own data are divided record by record, so sizes are near what a scheme says."
    about = f"Draw who holds what. {own} Schemes:\n{schemes}"
    given = parse(SplitFlags, args, prog="tacit split", about=about)
    if not given.out.name:
        raise BadInput(f"out = '{given.out}': must be the name of a picture, such as split.png")
    Setting(split=given.split, clients=given.clients)  # refuses what contradicts
    reading = Reading(schema=given.schema, owner=owner_column(given.split))
    dataset = load(given.data, reading=reading)
    federation = federate(
        dataset, given.split, clients=clients_of(given.split, given.clients), seed=given.seed
    )
    counts = federation.counts()
    print(text_split(counts))
    title = f"{given.data}, {given.split}, seed {given.seed}"
    given.out.parent.mkdir(parents=True, exist_ok=True)
    png, svg = draw_split(counts, dataset.classes, given.out, title)
    print(f"picture: {png}, {svg}")
