"""The run directory: the interface between a run and everything that reads it.

Text and safetensors only.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from safetensors.torch import save as save_tensors

from tacit import codec
from tacit.core import AskId, BadInput, ClientId, Ledger, Nothing, Params, Release
from tacit.engines.store import Draws, read_ledger, to_text
from tacit.experiment.about import FILE as ABOUT
from tacit.experiment.about import note_start
from tacit.experiment.config import Experiment, read_experiment, to_toml

# what a run has written by the time that it asks its first client
OWN = ("config.toml", "ledger.jsonl", "metrics.jsonl", "model.safetensors", ABOUT, ".lock")
SEVERAL = ("comparison.json", "sweep.json")  # beside the folders of runs that are compared


class Busy(BadInput):
    """Another process works on this run."""


class RunDir:
    """A folder with config.toml, metrics.jsonl, ledger.jsonl, checkpoint/ and model.safetensors."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clients = folder / "checkpoint" / "clients"
        self._lock: IO[str] | None = None
        self._appended = 0
        self._made: list[Path] = []  # folders that were not there before

    @classmethod
    def create(cls, folder: Path, experiment: Experiment) -> RunDir:
        """Make a new run directory; one that is there already is never touched."""
        run = cls(folder)
        if any(file.exists() for file in (run._config, run._state, run._metrics)):
            raise BadInput(
                f"out = '{folder}': there is a run already; `tacit resume {folder}` continues it"
            )
        run.begin(experiment)
        return run

    def begin(self, experiment: Experiment) -> None:
        """Write what runs here."""
        self._made = [f for f in (self.folder, *self.folder.parents) if not f.exists()]
        try:
            self.clients.mkdir(parents=True, exist_ok=True)
            self.rewrite(experiment)
            (self.folder / "ledger.jsonl").touch()  # empty: nothing has left a client
        except OSError as e:
            raise BadInput(f"out = '{self.folder}': cannot be written ({e.strerror})") from None

    def rewrite(self, experiment: Experiment) -> None:
        """Replace what runs here by what goes on."""
        codec.write_atomically(self._config, to_toml(experiment).encode())

    def check_alone(self) -> None:
        """Refuse to change one of several runs that are compared."""
        for place in (self.folder, self.folder.parent):
            for name in SEVERAL:
                if (place / name).exists():
                    raise BadInput(
                        f"'{self.folder}': one of several runs, which are alike ({name})"
                    )

    def discard(self) -> None:
        """Remove what a run has written that was refused before anything left a client."""
        told = any(not isinstance(line.event, Nothing) for line in self.ledger())
        if self._state.exists() or told:
            return
        for name in OWN:
            (self.folder / name).unlink(missing_ok=True)
        shutil.rmtree(self.folder / "checkpoint", ignore_errors=True)
        for folder in self._made:
            with contextlib.suppress(OSError):  # somebody else has put something there
                folder.rmdir()

    @classmethod
    def open(cls, folder: Path) -> RunDir:
        """Open an existing run directory."""
        run = cls(folder)
        if not run.begun:
            raise BadInput(f"'{folder}': not a run directory (there is no config.toml in it)")
        return run

    @property
    def begun(self) -> bool:
        """Whether there is a run here."""
        return self._config.exists()

    @property
    def _config(self) -> Path:
        return self.folder / "config.toml"

    @property
    def _state(self) -> Path:
        return self.folder / "checkpoint" / "state.safetensors"

    @property
    def _metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    def lock(self) -> None:
        """Refuse to let two processes write into one run.

        The lock ends with the process, however it ends.
        """
        if self._lock is not None:
            return
        try:
            import fcntl
        except ImportError:  # not on this platform
            return
        self._lock = (self.folder / ".lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.unlock()
            raise Busy(f"'{self.folder}': another process is running it") from None

    def unlock(self) -> None:
        """Let others write."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def experiment(self) -> Experiment:
        """Return what runs here."""
        return read_experiment(self._config)

    def checkpoint(self) -> tuple[Any, dict[ClientId, AskId]] | None:
        """Return the last saved state and the engine's snapshot, if a round has been finished."""
        if not self._state.exists():
            return None
        saved = codec.load(self._state)
        try:
            return saved["state"], saved["accepted"]
        except (KeyError, TypeError):
            raise BadInput(f"'{self._state}': not a checkpoint") from None

    @property
    def draws(self) -> Draws:
        """What the server's seeded noise was drawn for."""
        return Draws(self.folder / "checkpoint" / "draws.json")

    def save(self, state: Any, accepted: dict[ClientId, AskId]) -> None:
        """Replace the checkpoint in one step."""
        codec.save({"state": state, "accepted": accepted}, self._state, durable=True)

    def save_model(self, x: Params) -> None:
        """Write the shared model's parameters as a plain safetensors file."""
        tensors = {k: v.contiguous() for k, v in x.items()}
        codec.write_atomically(self.folder / "model.safetensors", save_tensors(tensors))

    def ledger(self) -> Ledger:
        """Return every release so far.

        While a run goes on, or if it was killed, clients may have released what the server has not
        heard of yet: then their own ledgers count too.
        """
        found = read_ledger(self.folder / "ledger.jsonl")
        if self._open.exists():
            found.add(line for own in self.client_ledgers() for line in own)
        return found

    def client_ledgers(self) -> Iterator[Ledger]:
        """Yield the ledgers that clients on this machine keep themselves."""
        return (read_ledger(file) for file in sorted(self.clients.glob("*/ledger.jsonl")))

    @property
    def _open(self) -> Path:
        return self.folder / "checkpoint" / "open"

    def note_start(self) -> None:
        """Note when, by which command and with which versions the run is started."""
        note_start(self.folder)

    def mark_open(self) -> None:
        """Note that the run goes on, so that whoever reads it after a kill looks everywhere.

        A ledger that cannot be read is refused first.
        """
        self.ledger()
        self._open.touch()

    def settle(self) -> None:
        """Bring the ledger up to what clients themselves have written, now that none works."""
        every = self.ledger()
        codec.write_atomically(self.folder / "ledger.jsonl", to_text(every).encode(), durable=True)
        self._open.unlink(missing_ok=True)

    def record(self, lines: Sequence[Release], ledger: Ledger) -> None:
        """Add lines as they now stand to the file; a reader joins them.

        It is rewritten when it has doubled.
        """
        file = self.folder / "ledger.jsonl"
        self._appended += len(lines)
        if self._appended > 1000 + 2 * len(ledger):
            codec.write_atomically(file, to_text(ledger).encode(), durable=True)
            self._appended = 0
        elif lines:
            with file.open("a", encoding="utf-8") as f:
                f.write(to_text(lines))

    def metrics(self) -> list[dict[str, Any]]:
        """Return the lines of metrics.jsonl; one that a kill cut short is left out."""
        if not self._metrics.exists():
            return []
        try:
            whole, _, _ = self._metrics.read_text().rpartition("\n")
            lines = [restore(json.loads(line)) for line in whole.splitlines()]
        except ValueError as e:
            raise BadInput(f"'{self._metrics}': not a metrics file ({e})") from None
        for n, line in enumerate(lines, 1):
            if not (isinstance(line, dict) and {"round", "accuracy", "epsilon"} <= line.keys()):
                raise BadInput(
                    f"'{self._metrics}': not a metrics file (line {n} is not the line of a round)"
                )
        return lines

    def add_metrics(self, line: dict[str, Any]) -> None:
        """Add the line of one round."""
        with self._metrics.open("a") as f:
            f.write(json.dumps(plain(line)) + "\n")
            f.flush()
            os.fsync(f.fileno())

    def drop_metrics_after(self, round: int) -> None:
        """Forget lines of rounds that were measured but not saved before a kill.

        They will be run again.
        """
        lines = [line for line in self.metrics() if line["round"] <= round]
        text = "".join(json.dumps(plain(line)) + "\n" for line in lines)
        codec.write_atomically(self._metrics, text.encode())


def plain(value: Any) -> Any:
    """JSON has no infinity and no NaN: write them as words."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def restore(value: Any) -> Any:
    """Return what was written, with numbers for the words of :func:`plain`."""
    if isinstance(value, dict):
        return {k: restore(v) for k, v in value.items()}
    if isinstance(value, list):
        return [restore(v) for v in value]
    return float(value) if value in ("inf", "-inf", "nan") else value


def free_folder(wanted: Path) -> Path:
    """Return ``wanted``, or the first of ``wanted-2``, ``wanted-3``, ... that is not there yet."""
    folder, n = wanted, 1
    while folder.exists():
        n += 1
        folder = wanted.with_name(f"{wanted.name}-{n}")
    return folder
