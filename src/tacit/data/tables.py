"""Tables as files have them: named columns of cells, each a text, CSV and Parquet alike."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

from tacit.core.errors import BadInput

SEPARATORS = (",", ";", "\t", "|")
_PLAIN = "a comma, a semicolon, a tab or |"


@dataclass(frozen=True)
class Table:
    """Columns by name, and what a message calls a row."""

    where: str  # the file
    columns: Mapping[str, Sequence[str]]  # cells as texts without blanks around; "": missing
    lines: Sequence[int] | None = None  # of a CSV file, one for each row

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def spot(self, row: int) -> str:
        """Return what a message calls a row."""
        if self.lines is None:
            return f"{self.where} row {row}"
        return f"{self.where} line {self.lines[row]}"

    def without(self, names: Iterable[str]) -> Table:
        """Return the table without some columns, which must be there."""
        gone = set(names)
        for name in gone:
            self.check_has(name)
        kept = {name: cells for name, cells in self.columns.items() if name not in gone}
        return Table(self.where, kept, self.lines)

    def check_has(self, name: str) -> None:
        """Refuse the name of a column that is not there."""
        if name not in self.columns:
            raise BadInput(f"{self.where}: no column {name!r}: it has {some(list(self.columns))}")


def read_table(path: str | Path) -> Table:
    """Return the table of a ``.csv`` or ``.parquet`` file."""
    path = Path(path)
    kind = path.suffix.lower()
    if kind == ".csv":
        return _read_csv(path)
    if kind == ".parquet":
        return _read_parquet(path)
    raise BadInput(f"data = {str(path)!r}: must be a .csv or .parquet file to be read as a table")


def is_table(path: Path) -> bool:
    """Tell whether a path is that of a table, by its ending."""
    return path.suffix.lower() in (".csv", ".parquet")


def some(names: Sequence[str]) -> str:
    """Return the first few names, so that the line stays a line."""
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def check_header(where: object, header: Sequence[str]) -> None:
    """Refuse a header that does not tell columns apart."""
    if not header:
        raise BadInput(f"{where}: empty: must have a header line and rows")
    if twice := sorted({name for name in header if header.count(name) > 1}):
        raise BadInput(
            f"{where}: column {twice[0]!r} is there more than once: must have different names"
        )


def _read_csv(path: Path) -> Table:
    """Return a CSV file; the first line names the columns and tells what stands between them."""
    rows, lines = [], []
    try:
        with path.open(encoding="utf-8-sig", newline="") as opened:
            separator = _separator(next((line for line in opened if line.strip()), ""))
            opened.seek(0)
            reader = csv.reader(opened, delimiter=separator)
            header = [name.strip() for name in next((r for r in reader if not _blank(r)), [])]
            check_header(path, header)
            for row in reader:
                if _blank(row) and len(row) < len(header):
                    continue
                if len(row) != len(header):
                    raise BadInput(
                        f"{path} line {reader.line_num}: {len(row)} values: must be {len(header)}, "
                        "as in the header"
                    )
                rows.append([cell.strip() for cell in row])
                lines.append(reader.line_num)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(
            f"{path}: cannot be read as CSV in UTF-8 ({' '.join(str(error).split())})"
        ) from None
    if not rows:
        raise BadInput(f"{path}: no rows below the header: must have at least one")
    columns = dict(zip(header, map(list, zip(*rows, strict=True)), strict=True))
    return Table(str(path), columns, lines)


def _blank(row: Sequence[str]) -> bool:
    """Tell whether a line has nothing in it: a spreadsheet leaves some behind."""
    return not row or (len(row) == 1 and not row[0].strip())


def _separator(first: str) -> str:
    """Return what stands between the names of the first line: what makes most columns of it.

    >>> _separator("age;sex;weight, in kg"), _separator("age,sex"), _separator("age")
    (';', ',', ',')
    """
    return max(SEPARATORS, key=lambda s: len(next(csv.reader([first], delimiter=s), [])))


def one_column(table: Table) -> str:
    """Return a hint where a table has a single column: its separator may not be known."""
    if len(table.columns) > 1:
        return ""
    return f" (one column was found: what stands between columns must be {_PLAIN})"


def _read_parquet(path: Path) -> Table:
    table = parquet_table(path)
    check_header(path, list(table.column_names))
    if not table.num_rows:
        raise BadInput(f"{path}: no rows: must have at least one")
    return Table(
        str(path),
        {name: [_text(v) for v in table[name].to_pylist()] for name in table.column_names},
    )


def parquet_table(path: Path) -> Any:
    """Return the whole table of one Parquet file, as pyarrow has it."""
    try:
        import pyarrow
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise BadInput(
            f"{path}: reading Parquet needs pyarrow: pip install 'tacit[parquet]', or give a CSV"
        ) from None
    try:
        with ParquetFile(path) as opened:
            return opened.read()
    except (OSError, pyarrow.ArrowException) as error:
        raise BadInput(
            f"{path}: cannot be read as Parquet ({' '.join(str(error).split())})"
        ) from None


def _text(value: object) -> str:
    """Return a cell as a text; a day is one without its midnight.

    >>> _text(None), _text(2.5), _text(True), _text(datetime(2024, 5, 1)), _text(" ward 3 ")
    ('', '2.5', 'true', '2024-05-01', 'ward 3')
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime) and value.time() == datetime.min.time():
        return value.date().isoformat()
    return value.isoformat(" ") if isinstance(value, datetime) else _plain(value)


def _plain(value: object) -> str:
    return value.isoformat() if isinstance(value, date) else str(value).strip()
