"""What was measured of the papers' cells: one line of JSON each, kept beside the papers' files.

A record says with which commit, precision, seeds and settings, so that nothing stands alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev

from tacit import codec
from tacit.core import BadInput
from tacit.methods.spec import validated
from tacit.papers.published import FOLDER, Scale

KEPT = FOLDER / "results"


@dataclass(frozen=True)
class Measured:
    """One cell, at one scale."""

    item: str
    cell: str
    scale: Scale
    values: list[float]  # one for each seed
    seeds: list[int] = field(default_factory=list)  # none: no run was needed
    word: str = ""  # of the method that ran; of several the best
    settings: str = ""  # a digest of all of them, so that a record of others is known
    split: str = ""
    rounds: int = 0
    precision: str = ""
    commit: str = ""
    date: str = ""
    # the most that anybody has spent, from the ledgers; one for each seed
    spent: list[float] = field(default_factory=list)
    seconds: float = 0.0  # of training, all seeds together
    stopped: str = ""  # why a run ended before its last round
    at: list[int] = field(default_factory=list)  # rounds of the curves
    curves: list[list[float]] = field(default_factory=list)  # one for each seed

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return fmean(self.values)

    @property
    def spread(self) -> float:
        """The standard deviation over seeds; 0 where there is only one, nan where one gave none."""
        if math.isnan(self.mean):
            return math.nan
        return stdev(self.values) if len(self.values) > 1 else 0.0

    @property
    def given(self) -> Measured:
        """The same of the seeds alone that gave a value."""
        return replace(self, values=[value for value in self.values if not math.isnan(value)])

    @property
    def key(self) -> tuple[str, str, str]:
        """What it is of."""
        return self.item, self.cell, self.scale


def read_results(file: Path) -> list[Measured]:
    """Read records; none where there is no file."""
    if not file.exists():
        return []
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
        return [validated(Measured, json.loads(line)) for line in lines]
    except (ValueError, OSError) as e:
        raise BadInput(f"{file}: not results ({e})") from None


def write_results(file: Path, records: Iterable[Measured]) -> None:
    """Write records in a steady order, so that a difference shows what is new."""
    lines = [json.dumps(_rounded(asdict(r))) for r in sorted(records, key=lambda r: r.key)]
    file.parent.mkdir(parents=True, exist_ok=True)
    codec.write_atomically(file, "".join(f"{line}\n" for line in lines).encode())


def add_results(file: Path, records: Sequence[Measured]) -> None:
    """Write records beside those that are there; several processes may do so at once.

    One of the same settings that has more seeds stays.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with alone(file.with_suffix(".lock")):
        there = read_results(file)
        fuller = {r.key: r for r in there}
        write_results(file, merged(there, [r for r in records if not _less(r, fuller.get(r.key))]))


def _less(record: Measured, other: Measured | None) -> bool:
    """Tell whether another record of the same settings has all of its seeds, and more."""
    if other is None or record.settings != other.settings:
        return False
    return set(record.seeds) < set(other.seeds)


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Wait until no other process is within, where the platform can tell."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _rounded(value: object) -> object:
    """Keep six digits of a number, and leave out what says nothing."""
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items() if v not in ("", [], 0, 0.0)}
    if isinstance(value, list):
        return [_rounded(v) for v in value]
    return float(f"{value:.6g}") if isinstance(value, float) and math.isfinite(value) else value


def merged(old: Sequence[Measured], new: Sequence[Measured]) -> list[Measured]:
    """Return records in which a new one takes the place of an old one of the same cell."""
    return list({r.key: r for r in [*old, *new]}.values())


def results_of(paper: str, folder: Path = KEPT) -> list[Measured]:
    """Return what is kept of a paper."""
    return read_results(folder / f"{paper}.jsonl")
