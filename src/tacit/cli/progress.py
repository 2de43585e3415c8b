"""Progress on long work: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from tacit.core import Json
from tacit.experiment.watch import Watcher
from tacit.privacy import show_epsilon

LONG = 600.0  # seconds that are left of a run after which one asks how it could be shorter


def watcher(label: str) -> Bar | Lines:
    """Return what fits the place: a bar on a terminal or in a notebook, lines otherwise."""
    return Bar(label) if sys.stderr.isatty() or Console().is_jupyter else Lines(label)


@dataclass
class Suggesting:
    """Watches as another does, and says once in a long run what could make it shorter."""

    watch: Watcher
    suggestion: Callable[[], str]  # "": nothing would
    began: float = field(default_factory=time.monotonic)
    done: bool = False

    def begin(self, label: str, rounds: int) -> None:
        """Start a run."""
        self.watch.begin(label, rounds)
        self.began = time.monotonic()

    def answered(self, done: int, of: int) -> None:
        """Pass it on."""
        self.watch.answered(done, of)

    def finished_round(self, line: Json, rounds: int) -> None:
        """Pass it on; after the first round, say what there is to say."""
        self.watch.finished_round(line, rounds)
        left = (time.monotonic() - self.began) * (rounds - line["round"])
        if not self.done and left > LONG and (words := self.suggestion()):
            print(words, file=sys.stderr, flush=True)
        self.done = True


def _percent(line: Json) -> str:
    if line["accuracy"] is None:
        return f"mean squared error {line['mse']:.4g}" if "mse" in line else ""
    noise = f" ± {100 * line['noise']:.1f} (noisy)" if "noise" in line else ""
    return f"accuracy {100 * line['accuracy']:.1f}%{noise}"


def _epsilon(line: Json) -> str:
    return f"eps {show_epsilon(line['spent'])}"


class Bar:
    """A live bar: round, accuracy, epsilon, elapsed and remaining time."""

    def __init__(self, label: str) -> None:
        self.progress = Progress(
            TextColumn("{task.description:24}"),
            BarColumn(bar_width=24),
            TextColumn("round {task.fields[round]}/{task.fields[rounds]}  {task.fields[note]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self.task: TaskID = self.progress.add_task(
            label, total=None, round=0, rounds="?", note="starting"
        )
        self.round, self.note = 0, ""

    def __enter__(self) -> Bar:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.progress.stop()

    def begin(self, label: str, rounds: int) -> None:
        """Start a run."""
        self.round, self.note = 0, ""
        self.progress.reset(
            self.task, total=rounds, description=label, round=0, rounds=rounds, note=""
        )

    def answered(self, done: int, of: int) -> None:
        """Move a part of a round."""
        self.progress.update(self.task, completed=self.round + 0.99 * done / of)

    def finished_round(self, line: Json, rounds: int) -> None:
        """Move to the end of a round."""
        self.round = line["round"]
        if line["accuracy"] is not None or "mse" in line:
            self.note = f"{_percent(line)}  {_epsilon(line)}"
        self.progress.update(self.task, completed=self.round, round=self.round, note=self.note)


class Lines:
    """A line per round, at most one every two seconds; a sign of life where rounds are long."""

    def __init__(self, label: str) -> None:
        self.label, self.rounds = label, 0
        self.last = self.began = time.monotonic()
        self.first_round = 0

    def __enter__(self) -> Lines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        pass

    def begin(self, label: str, rounds: int) -> None:
        """Start a run."""
        self.label, self.rounds, self.first_round = label, rounds, -1
        self.last = self.began = time.monotonic()

    def answered(self, done: int, of: int) -> None:
        """Show that a long round is alive."""
        if time.monotonic() - self.last > 30:
            self._print(f"{done}/{of} clients of this round")

    def finished_round(self, line: Json, rounds: int) -> None:
        """Say how a round went."""
        now, t = time.monotonic(), line["round"]
        self.first_round = t - 1 if self.first_round < 0 else self.first_round
        if now - self.last < 2 and t != rounds:
            return
        left = (now - self.began) / max(t - self.first_round, 1) * (rounds - t)
        parts = [
            f"round {t}/{rounds}",
            _percent(line),
            _epsilon(line),
            f"{line['seconds']:.2f} s",
        ]
        failed = [f"failed: {', '.join(line['failed'])}"] if line.get("failed") else []
        self._print("  ".join(filter(None, [*parts, f"{left:.0f} s left", *failed])))

    def _print(self, text: str) -> None:
        print(f"{self.label}: {text}", file=sys.stderr, flush=True)
        self.last = time.monotonic()
