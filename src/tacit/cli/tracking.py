"""--track: the curves of a run for TensorBoard or MLflow, epsilon among them.

Files on this machine; MLflow writes elsewhere only if MLFLOW_TRACKING_URI says so.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import tyro

from tacit.cli import progress
from tacit.cli.help_groups import Flag
from tacit.cli.progress import Bar, Lines
from tacit.core import BadInput, Json
from tacit.experiment.rundir import free_folder
from tacit.experiment.watch import Watcher

Track = Literal["none", "tensorboard", "mlflow"]
ABOUT = "curves for TensorBoard or MLflow too, in runs/"
# the flag, for commands whose flags are put together
TRACK: Flag = ("track", Annotated[Track, tyro.conf.arg(help=ABOUT)], "none")
ROOT = Path("runs")
SHOWN = ("accuracy", "loss", "spent", "bytes_up", "bytes_down", "seconds", "macro_f1",
         "balanced_accuracy", "auroc", "calibration_error")  # fmt: skip


class Tracker(Protocol):
    """Where numbers go."""

    def begin(self, name: str) -> None: ...
    def log(self, numbers: dict[str, float], round: int) -> None: ...
    def close(self) -> None: ...


class TensorBoard:
    """Event files in runs/tensorboard, a folder for each run."""

    def __init__(self) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise BadInput(_missing("tensorboard")) from None
        self.make: Any = SummaryWriter
        self.writer: Any = None

    def begin(self, name: str) -> None:
        """Start a run."""
        self.close()
        self.writer = self.make(str(free_folder(ROOT / "tensorboard" / name)))

    def log(self, numbers: dict[str, float], round: int) -> None:
        """Write the numbers of a round."""
        for key, value in numbers.items():
            self.writer.add_scalar(key, value, round)
        self.writer.flush()

    def close(self) -> None:
        """End a run."""
        if self.writer is not None:
            self.writer.close()
            self.writer = None


class MLflow:
    """The data base runs/mlflow.db, or where MLFLOW_TRACKING_URI says."""

    def __init__(self) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # nothing leaves unasked
        try:
            import mlflow
        except ImportError:
            raise BadInput(_missing("mlflow")) from None
        self.mlflow: Any = mlflow
        if not os.environ.get("MLFLOW_TRACKING_URI"):
            ROOT.mkdir(exist_ok=True)
            mlflow.set_tracking_uri(f"sqlite:///{(ROOT / 'mlflow.db').absolute()}")
        mlflow.set_experiment("tacit")

    def begin(self, name: str) -> None:
        """Start a run."""
        self.close()
        self.mlflow.start_run(run_name=name)

    def log(self, numbers: dict[str, float], round: int) -> None:
        """Write the numbers of a round."""
        self.mlflow.log_metrics(numbers, step=round)

    def close(self) -> None:
        """End a run."""
        if self.mlflow.active_run() is not None:
            self.mlflow.end_run()


def _missing(name: str) -> str:
    return f"track = {name!r}: not installed; pip install 'tacit[{name}]'"


class Tracking:
    """Tells a watcher and a tracker how a run goes."""

    def __init__(self, watch: Watcher, tracker: Tracker) -> None:
        self.watch, self.tracker = watch, tracker

    def begin(self, label: str, rounds: int) -> None:
        """Start a run."""
        self.tracker.begin(label)
        self.watch.begin(label, rounds)

    def answered(self, done: int, of: int) -> None:
        """Pass on a reply."""
        self.watch.answered(done, of)

    def finished_round(self, line: Json, rounds: int) -> None:
        """Write the numbers of a round."""
        self.tracker.log(numbers(line), line["round"])
        self.watch.finished_round(line, rounds)


def numbers(line: Json) -> dict[str, float]:
    """Return what can be drawn of a round: finite numbers, epsilon by unit and observer.

    >>> numbers({"round": 1, "accuracy": 0.5, "loss": None, "epsilon": {"client/server": 3.0}})
    {'accuracy': 0.5, 'epsilon/client/server': 3.0}
    """
    flat = {key: line.get(key) for key in SHOWN}
    flat |= {f"epsilon/{key}": value for key, value in line.get("epsilon", {}).items()}
    return {k: float(v) for k, v in flat.items() if isinstance(v, int | float) and math.isfinite(v)}


@contextmanager
def watcher(label: str, track: Track = "none") -> Iterator[Watcher]:
    """Yield who shows how a run goes and, if that was asked for, also writes its curves."""
    with ExitStack() as held:
        tracker: Tracker | None = TRACKERS[track]() if track != "none" else None
        shown: Bar | Lines = progress.watcher(label)
        held.enter_context(shown)
        watch: Watcher = shown
        if tracker is not None:
            held.callback(tracker.close)
            watch = Tracking(watch, tracker)
        yield watch


TRACKERS: dict[str, type[TensorBoard] | type[MLflow]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
}
