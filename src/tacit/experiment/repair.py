"""Repair of a run directory: what it says was spent never gets less.

A run of before there were manifests is taken over as it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from tacit import codec
from tacit.core import BadInput, ClientId, Damaged
from tacit.engines.salvage import marks_of, pays, salvage, taken_over
from tacit.engines.sealed import Log, Mark, chained, digest, reaches, whole_lines
from tacit.engines.store import LEDGER, ClientStore
from tacit.experiment.config import read_experiment
from tacit.experiment.manifest import Manifest, State, read_manifest, write_manifest
from tacit.experiment.rundir import ABOUT_MODEL, MODEL, SCHEMA, RunDir

Say = Callable[[str], None]
MADE = (MODEL, ABOUT_MODEL)  # from the last checkpoint
# files with a checksum of their own
WHOLE = ("config.toml", "sites.json", "samples.secret", MODEL, SCHEMA)


def repair_run(folder: Path, say: Say) -> None:
    """Bring a run directory into order, and say what became of each part that was not."""
    directory = RunDir.open(folder)
    directory.lock()
    try:
        manifest: Manifest | None = None
        with contextlib.suppress(Damaged):
            manifest = read_manifest(folder)
        old = manifest is None and not (folder / "ledger.mark").exists()
        found = manifest or Manifest(files=_as_they_are(folder))
        if old:
            say(f"{folder}: a run of an earlier version, taken over as it is")
        ledger = _repair_ledger(Log(folder / LEDGER, "ledger"), found.ledger, None, old, say)
        clients = {i: _repair_client(directory, i, found, old, say) for i in _clients(directory)}
        metrics = _repair_metrics(folder / "metrics.jsonl", found.metrics, say)
        states, last = _old_states(directory) if old else (found.states, found.last)
        after = found.after(
            ledger=ledger, clients=clients, metrics=metrics, states=states, last=last
        )
        write_manifest(folder, after)
        for name in after.files:
            _check_whole(directory, name, say)
    finally:
        directory.unlock()


def _check_whole(directory: RunDir, name: str, say: Say) -> None:
    """Say of a file that it is not as it was written; a changed config.toml counts from now on."""
    try:
        directory.get(name)
    except Damaged:
        file = directory.folder / name
        if name == "config.toml":
            directory.rewrite(read_experiment(file))
            say(f"{file}: not as it was written; taken as it is now")
            return
        how = "`tacit resume` makes it anew" if name in MADE else "put it back from a copy"
        say(f"{file}: not as it was written; {how}")


def _as_they_are(folder: Path) -> dict[str, str]:
    files = [folder / name for name in WHOLE]
    return {file.name: digest(file.read_bytes()) for file in files if file.exists()}


def _clients(directory: RunDir) -> list[ClientId]:
    return sorted(folder.name for folder in directory.clients.glob("*") if folder.is_dir())


def _repair_ledger(log: Log, known: Mark, client: ClientId | None, old: bool, say: Say) -> Mark:
    """Return where a ledger stands that was mended, if it had to be."""
    try:
        log.read()
        log.check(known)
        if known == Mark() and not old and not log.mark_file.exists():
            raise Damaged("nothing vouches for it")
    except Damaged:
        marks = [*marks_of(log), *([known] if known != Mark() else [])]
        saved = (taken_over(log.file) if old else None) or salvage(log, [], marks, pays(client))
        saved.write(log, marks)
        if not saved.whole:
            say(f"{log.file}: not whole: what was spent is not known, and counts as infinite")
    return log.known()


def _repair_client(
    directory: RunDir, client: ClientId, manifest: Manifest, old: bool, say: Say
) -> Mark:
    store = ClientStore(directory.clients / client)
    if old:
        for file in store.folder.glob("*.safetensors"):
            _seal(file, f"{store.place}/{file.stem}")
    return _repair_ledger(store.log, manifest.clients.get(client, Mark()), client, old, say)


def _repair_metrics(file: Path, known: Mark, say: Say) -> Mark:
    """Put metrics aside that are not as they were written."""
    try:
        lines, _ = whole_lines(file)
    except Damaged:
        lines = []
    if known == Mark() or reaches(known, "metrics", lines):
        return Mark(0, len(lines), chained("metrics", lines)[-1])
    if file.exists():
        file.replace(file.with_name(f"{file.name}.damaged"))
    say(f"{file}: not as it was written; put aside as {file.name}.damaged")
    return Mark()


def _old_states(directory: RunDir) -> tuple[tuple[State, ...], int]:
    """Take over the one checkpoint that a run of an earlier version has."""
    old = directory.folder / "checkpoint" / "state.safetensors"
    if not old.exists():
        return (), 0
    read_experiment(
        directory.folder / "config.toml"
    )  # a state can be read once its method is known
    blob = codec.unpack(old.read_bytes())
    try:
        state = State(1, blob["state"].round, "")
    except (KeyError, TypeError, AttributeError):
        raise BadInput(f"'{old}': not a checkpoint") from None
    file = old.with_name(state.file)
    seal = codec.save(blob, file, place=state.place, durable=True)
    return (State(1, state.round, seal),), 1


def _seal(file: Path, place: str) -> None:
    """Seal a file of an earlier version; one that cannot be read stays as it is, and is refused."""
    with contextlib.suppress(BadInput):
        codec.save(codec.unpack(file.read_bytes()), file, place=place)
