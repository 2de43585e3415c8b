"""The run directory: the interface between a run and everything that reads it.

Text and safetensors only.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from safetensors.torch import save as save_tensors
from torch import Tensor

from tacit import codec, core
from tacit.codec import remove_parts, write_atomically
from tacit.core import (
    FEDERATION,
    AskId,
    BadInput,
    ClientId,
    Damaged,
    Json,
    Ledger,
    Nothing,
    Release,
    check,
)
from tacit.data.schema import Schema
from tacit.engines.sealed import TRIES, Log, Mark, chained, digest, reaches, whole_lines
from tacit.engines.store import LEDGER, ClientStore, Draws, from_lines, to_lines
from tacit.experiment.about import FILE as ABOUT
from tacit.experiment.about import note_start
from tacit.experiment.config import Experiment, read_experiment, to_toml
from tacit.experiment.kept_code import CODE, ENCODER, keep_code
from tacit.experiment.manifest import NAME as MANIFEST
from tacit.experiment.manifest import Manifest, State, read_manifest, write_manifest

MODEL = "model.safetensors"
SCHEMA = "schema.toml"  # what the columns of the run's table are
ABOUT_MODEL = "model.json"  # what its numbers mean
# what a run has written by the time that it asks its first client
OWN = (
    "config.toml",
    MANIFEST,
    LEDGER,
    "ledger.mark",
    "metrics.jsonl",
    MODEL,
    SCHEMA,
    ABOUT_MODEL,
    CODE,
    ENCODER,
    ABOUT,
    ".lock",
)
SEVERAL = ("comparison.json", "sweep.json")  # beside the folders of runs that are compared
CHOICE = "choice.json"  # beside them: what choosing among the runs of a sweep has cost
Checkpoint = tuple[core.State, dict[ClientId, AskId]]  # and where each client's last reply is


class Busy(BadInput):
    """Another process works on this run."""


class RunDir:
    """A folder with config.toml, metrics.jsonl, ledger.jsonl, checkpoint/ and model.safetensors.

    `manifest.json` says what they must be; what is not as it was written is refused.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clients = folder / "checkpoint" / "clients"
        self._lock: IO[str] | None = None
        self._log = Log(folder / LEDGER, "ledger")
        self._appended = 0
        self._heard: set[ClientId] = set()  # owners of releases since the last checkpoint
        self._made: list[Path] = []  # folders that were not there before
        self._measured: list[tuple[int, Mark]] = []  # where metrics.jsonl stood after each round

    @classmethod
    def create(cls, folder: Path, experiment: Experiment) -> RunDir:
        """Make a new run directory; one that is there already is never touched."""
        run = cls(folder)
        if run.begun or run._metrics.exists() or any(run._checkpoints.glob("state*")):
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
            if (old := read_manifest(self.folder)) is not None and old.files:
                raise Damaged(f"'{self.folder}': a run whose config.toml is gone")
            write_manifest(self.folder, Manifest())
            (self.folder / LEDGER).touch()  # empty: nothing has left a client
            self.rewrite(experiment)
            keep_code(self, experiment.setting.model)
            keep_code(self, experiment.setting.features)
        except OSError as e:
            raise BadInput(f"out = '{self.folder}': cannot be written ({e.strerror})") from None

    def rewrite(self, experiment: Experiment) -> None:
        """Replace what runs here by what goes on."""
        self.put("config.toml", to_toml(experiment).encode())

    def put(self, name: str, blob: bytes, *, private: bool = False) -> None:
        """Write a file that must stay as it is."""
        self._commit(soon={**self._manifest.soon, name: digest(blob)})
        write_atomically(self.folder / name, blob, durable=True, private=private)
        m = self._manifest
        soon = {k: v for k, v in m.soon.items() if k != name}
        self._commit(files={**m.files, name: digest(blob)}, soon=soon)

    def get(self, name: str) -> bytes:
        """Read a file that :meth:`put` wrote, or refuse it."""
        file = self.folder / name
        try:
            blob = file.read_bytes()
        except OSError as e:
            raise Damaged(f"{file}: cannot be read ({e.strerror}){self._way_back}") from None
        m = self._manifest
        if digest(blob) not in (m.files.get(name), m.soon.get(name)):
            raise Damaged(f"{file}: not as it was written{self._way_back}")
        return blob

    def put_schema(self, schema: Schema | None) -> None:
        """Write what the columns of the run's table are, if it has one."""
        if schema is not None:
            self.put(SCHEMA, schema.to_toml().encode())

    def schema(self) -> Schema | None:
        """Return what the columns of the run's table are, if it has one."""
        if not (self.folder / SCHEMA).exists():
            return None
        return Schema.from_dict(tomllib.loads(self.get(SCHEMA).decode()))

    def schema_file(self, given: str) -> str:
        """Return the run's own copy of a schema file: the one it was given may have changed."""
        return str(self.folder / SCHEMA) if self.schema() is not None else given

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
        if self._manifest.states or told:
            return
        for name in OWN:
            (self.folder / name).unlink(missing_ok=True)
        shutil.rmtree(self._checkpoints, ignore_errors=True)
        shutil.rmtree(self.folder / "code", ignore_errors=True)
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
        return (self.folder / "config.toml").exists()

    @property
    def _checkpoints(self) -> Path:
        return self.folder / "checkpoint"

    @property
    def _metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def _way_back(self) -> str:
        return f"; `tacit privacy {self.folder} --repair` saves what can be saved"

    @property
    def _manifest(self) -> Manifest:
        """What the files must be."""
        found = read_manifest(self.folder)
        if found is None:
            raise Damaged(
                f"'{self.folder}': no manifest.json; a run of an earlier version, or damaged; "
                f"`tacit privacy {self.folder} --repair` takes it over as it is"
            )
        return found

    def _commit(self, *, durable: bool = True, **changes: Any) -> None:
        """Write the manifest with changes."""
        write_manifest(self.folder, self._manifest.after(**changes), durable=durable)

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
        remove_parts(self.folder)

    def unlock(self) -> None:
        """Let others write."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def experiment(self) -> Experiment:
        """Return what runs here."""
        self.get("config.toml")
        return read_experiment(self.folder / "config.toml")

    def checkpoint(self) -> Checkpoint | None:
        """Return the last saved state and the engine's snapshot, if a round has been finished."""
        states = self._manifest.states
        return self._load(states[-1]) if states else None

    def _load(self, state: State) -> Checkpoint:
        file = self._checkpoints / state.file
        saved, seal = codec.load_sealed(file, state.place)
        if seal != state.seal:
            raise Damaged(f"{file}: not the one that was saved")
        try:
            return saved["state"], saved["accepted"]
        except (KeyError, TypeError):
            raise Damaged(f"{file}: not a checkpoint") from None

    def go_back(self, checkpoints: int) -> None:
        """Forget the last checkpoints, so that the run goes on from an earlier one."""
        self.lock()
        try:
            states = self._manifest.states
            most = max(len(states) - 1, 0)
            check.number("back", checkpoints, at_least=0, at_most=most, whole=True)
            if checkpoints:
                self._forget_after(states[:-checkpoints])
        finally:
            self.unlock()

    def last_good(self, say: Callable[[str], None]) -> list[Checkpoint]:
        """Return the checkpoints that a run can go on from, newest first; none before the first.

        What is damaged is left out, and ``say`` is told. A run that has finished rounds never
        starts again from none.
        """
        m, good, wrong = self._manifest, [], []
        for state in reversed(m.states):
            try:
                good.append((state, self._load(state)))
            except Damaged as e:
                wrong.append((state, e))
        if not good and (wrong or m.last):
            why = wrong[0][1] if wrong else f"'{self.folder}': its checkpoints are gone"
            raise Damaged(f"{why}; there is no other checkpoint to go back to")
        if wrong:
            for state, damage in wrong:
                say(f"checkpoint of round {state.round} left out: {damage}")
            say(f"going on from the checkpoint of round {good[0][0].round}")
            self._forget_after(tuple(state for state, _ in reversed(good)))
        return [saved for _, saved in good]

    def _forget_after(self, states: tuple[State, ...]) -> None:
        """Keep these checkpoints, and the metrics up to the last of them."""
        mark = self._metrics_until(states[-1].round)
        self._commit(states=states, metrics=mark)
        self._remove_old_states()

    @property
    def draws(self) -> Draws:
        """What the server's seeded noise was drawn for."""
        draws = Draws(self._checkpoints / "draws.json", "draws")
        draws.check(self._manifest.draws)
        return draws

    def save(self, state: core.State, accepted: dict[ClientId, AskId], *, keep: int = 1) -> None:
        """Add a checkpoint, in one step; of the older ones the last ``keep - 1`` stay."""
        m = self._manifest
        new = State(m.last + 1, state.round, "")
        file = self._checkpoints / new.file
        saved = {"state": state, "accepted": accepted}
        self._log.sync()
        seal = codec.save(saved, file, place=new.place, durable=True)
        self._commit(
            states=(*m.states, replace(new, seal=seal))[-keep:],
            last=new.number,
            metrics=self._metrics_until(state.round),
            **self._standing(),
        )
        self._remove_old_states()

    def _standing(self) -> Json:
        """Return where all ledgers stand."""
        own = {i: ClientStore(self.clients / i).log.marks_kept() for i in self._heard}
        self._heard = set()
        clients = {**self._manifest.clients, **{i: marks[0] for i, marks in own.items() if marks}}
        draws = Draws(self._checkpoints / "draws.json", "draws").writes()
        return {"ledger": self._log.known(), "clients": clients, "draws": draws}

    def _remove_old_states(self) -> None:
        wanted = {state.file for state in self._manifest.states}
        for file in self._checkpoints.glob("state-*.safetensors"):
            if file.name not in wanted:
                file.unlink(missing_ok=True)

    def save_model(self, numbers: Mapping[str, Tensor] | None, about: str) -> None:
        """Write a model as a plain safetensors file, and what its numbers mean.

        Without numbers there is no model that everybody has.
        """
        if numbers is None:
            self._drop(MODEL)
        else:
            self._put_anew(MODEL, save_tensors({k: v.contiguous() for k, v in numbers.items()}))
        self._put_anew(ABOUT_MODEL, about.encode())

    def _drop(self, name: str) -> None:
        """Remove a file that must not be there any more."""
        if name in (files := self._manifest.files):
            self._commit(files={k: v for k, v in files.items() if k != name})
            (self.folder / name).unlink(missing_ok=True)

    def _put_anew(self, name: str, blob: bytes) -> None:
        """Write a file, unless it is there as it should be."""
        if digest(blob) != self._manifest.files.get(name) or not self._intact(name):
            self.put(name, blob)

    def _intact(self, name: str) -> bool:
        try:
            self.get(name)
        except Damaged:
            return False
        return True

    def ledger(self) -> Ledger:
        """Return every release so far.

        While a run goes on, or if it was killed, clients may have released what the server has not
        heard of yet: then their own ledgers count too.
        """
        m = self._manifest
        log = self._log if self._lock is not None else Log(self._log.file, self._log.place)
        try:
            found = from_lines(log.read(), log.file)
            log.check(m.ledger)
            if m.open:
                found.add(line for own in self.client_ledgers() for line in own)
        except Damaged as e:
            raise Damaged(f"{e}{self._way_back}") from None
        return found

    def client_ledgers(self) -> Iterator[Ledger]:
        """Yield the ledgers that clients on this machine keep themselves."""
        known = self._manifest.clients
        there = {file.parent.name for file in self.clients.glob(f"*/{LEDGER}")}
        for client in sorted(there | known.keys()):
            store = ClientStore(self.clients / client)
            own = store.ledger()
            store.log.check(known.get(client, Mark()))
            yield own

    def note_start(self) -> None:
        """Note when, by which command and with which versions the run is started."""
        note_start(self.folder)

    def mark_open(self) -> None:
        """Note that the run goes on, so that whoever reads it after a kill looks everywhere."""
        if not self._manifest.open:
            self._commit(open=True)

    def settle(self) -> None:
        """Bring the ledger up to what clients themselves have written, now that none works."""
        every = to_lines(self.ledger())
        if every != self._log.read():
            self._log.replace(every, durable=True)
        if self._manifest.open:
            self._commit(open=False, **self._standing())

    def record(self, lines: Sequence[Release], ledger: Ledger) -> None:
        """Add lines as they now stand to the file; a reader joins them.

        What the server itself releases is there to stay before it is used. The file is rewritten
        when it has doubled.
        """
        self._heard |= {line.owner for line in lines if (self.clients / line.owner).is_dir()}
        self._appended += len(lines)
        if self._appended > 1000 + 2 * len(ledger):
            self._log.replace(to_lines(ledger), durable=True)
            self._appended = 0
        elif lines:
            own = any(line.owner == FEDERATION for line in lines)
            self._log.append(to_lines(lines), durable=own)

    def check(self) -> None:
        """Refuse a run that cannot go on, or whose releases are not known."""
        self.ledger()
        self.metrics()
        for _ in self.client_ledgers():
            pass

    def verify(self) -> None:
        """Refuse a run in which any file is not as it was written."""
        for name in self._manifest.files:
            self.get(name)
        self.experiment()  # a state can be read once its method is known
        for state in self._manifest.states:
            self._load(state)
        self.check()

    def metrics(self) -> list[Json]:
        """Return the lines of metrics.jsonl; one that a kill cut short is left out."""
        written = self._metric_lines()
        try:
            lines = [restore(json.loads(line)) for line in written]
        except ValueError as e:
            raise BadInput(f"'{self._metrics}': not a metrics file ({e})") from None
        for n, line in enumerate(lines, 1):
            if not (isinstance(line, dict) and {"round", "accuracy", "epsilon"} <= line.keys()):
                raise BadInput(
                    f"'{self._metrics}': not a metrics file (line {n} is not the line of a round)"
                )
        return lines

    def _metric_lines(self) -> list[str]:
        """Return the lines of metrics.jsonl as they were written."""
        for _ in range(TRIES):
            known = self._manifest.metrics
            lines, _ = whole_lines(self._metrics)
            # lines after the mark may be those of a kill, which writes none of them twice
            once = len(set(lines)) == len(lines)
            if once and (known == Mark() or reaches(known, "metrics", lines)):
                return lines
            if known == self._manifest.metrics:  # nobody has written meanwhile
                break
        raise Damaged(f"{self._metrics}: not as it was written{self._way_back}")

    def _metrics_until(self, round: int) -> Mark:
        """Return where metrics.jsonl stands after the lines of these rounds, which come first."""
        if self._lock is None or not self._measured:
            lines = self._metric_lines()
            marks = [Mark(0, n, seal) for n, seal in enumerate(chained("metrics", lines))]
            rounds = [-1, *(json.loads(line)["round"] for line in lines)]
            self._measured = list(zip(rounds, marks, strict=True))
        return [mark for of, mark in self._measured if of <= round][-1]

    def add_metrics(self, line: Json) -> None:
        """Add the line of one round."""
        last = self._metrics_until(line["round"])
        text = json.dumps(plain(line))
        with self._metrics.open("a", encoding="utf-8") as f:
            f.write(f"{text}\n")
            f.flush()
            os.fsync(f.fileno())
        seal = chained("metrics", [text], last.seal)[-1]
        self._measured.append((line["round"], Mark(0, last.lines + 1, seal)))

    def drop_metrics_after(self, round: int) -> None:
        """Forget lines of rounds that were measured but not saved before a kill.

        They will be run again.
        """
        lines = self._metric_lines()
        kept = lines[: self._metrics_until(round).lines]
        if kept != lines or not whole_lines(self._metrics)[1]:
            text = "".join(f"{line}\n" for line in kept)
            write_atomically(self._metrics, text.encode(), durable=True)
            self._measured = []


def plain(value: object) -> Any:
    """JSON has no infinity and no NaN: write them as words."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def restore(value: object) -> Any:
    """Return what was written, with numbers for the words of :func:`plain`."""
    if isinstance(value, str):
        return float(value) if value in ("inf", "-inf", "nan") else value
    if isinstance(value, dict):
        return {k: restore(v) for k, v in value.items()}
    return [restore(v) for v in value] if isinstance(value, list) else value


def free_folder(wanted: Path) -> Path:
    """Return ``wanted``, or the first of ``wanted-2``, ``wanted-3``, ... that is not there yet."""
    folder, n = wanted, 1
    while folder.exists():
        n += 1
        folder = wanted.with_name(f"{wanted.name}-{n}")
    return folder
