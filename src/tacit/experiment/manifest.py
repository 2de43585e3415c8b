"""The manifest of a run directory: what its files must be, in two copies.

Writing it is what makes a checkpoint count. Whatever is written after it belongs to a round that is
not finished.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tacit.core import ClientId, Damaged, Json
from tacit.engines.sealed import Mark, read_sealed, write_sealed

NAME = "manifest.json"
PLACE = "manifest of a run"


@dataclass(frozen=True)
class State:
    """A checkpoint that the run can go back to."""

    number: int  # checkpoints are counted, and no number is used twice
    round: int
    seal: str

    @property
    def file(self) -> str:
        """Its name in the folder of checkpoints."""
        return f"state-{self.number:06d}.safetensors"

    @property
    def place(self) -> str:
        """What its seal says that it is."""
        return f"state {self.number}"


@dataclass(frozen=True)
class Manifest:
    """What is known of a run's files, apart from the files."""

    writes: int = 0
    open: bool = False  # the run goes on, or was killed: clients may know of more releases
    files: dict[str, str] = field(default_factory=dict)  # checksums of whole files
    soon: dict[str, str] = field(default_factory=dict)  # of those that are about to be replaced
    states: tuple[State, ...] = ()  # checkpoints, the newest last
    last: int = 0  # the number of the newest checkpoint that there ever was
    ledger: Mark = field(default_factory=Mark)
    metrics: Mark = field(default_factory=Mark)
    clients: dict[ClientId, Mark] = field(default_factory=dict)  # where their own ledgers stood
    draws: int = 0  # how often the server's seeded draws were written

    @classmethod
    def of(cls, raw: Json) -> Manifest:
        """Return a manifest from plain values."""
        return cls(
            **{
                **raw,
                "states": tuple(State(**s) for s in raw["states"]),
                "ledger": Mark(**raw["ledger"]),
                "metrics": Mark(**raw["metrics"]),
                "clients": {i: Mark(**m) for i, m in raw["clients"].items()},
            }
        )

    def plain(self) -> Json:
        """Return it as plain values; ``asdict`` would copy all of them first."""
        return {
            **vars(self),
            "states": [vars(s) for s in self.states],
            "ledger": vars(self.ledger),
            "metrics": vars(self.metrics),
            "clients": {i: vars(m) for i, m in self.clients.items()},
        }

    def after(self, **changes: Any) -> Manifest:
        """Return the next one."""
        return replace(self, writes=self.writes + 1, **changes)


def copies(folder: Path) -> tuple[Path, Path]:
    """Return where the two copies are, the first one first."""
    return folder / "checkpoint" / NAME, folder / NAME


def read_manifest(folder: Path) -> Manifest | None:
    """Return the newer of two copies; None: there is none. One that is damaged is not needed."""
    found, wrong = [], []
    for file in copies(folder):
        try:
            raw = read_sealed(file, PLACE)
            found += [Manifest.of(raw)] if raw is not None else []
        except Damaged as e:
            wrong.append(e)
    if not found and wrong:
        raise wrong[0]
    return max(found, key=lambda m: m.writes, default=None)


def write_manifest(folder: Path, manifest: Manifest, *, durable: bool = True) -> None:
    """Write both copies, the second when the first is safe."""
    first, second = copies(folder)
    first.parent.mkdir(parents=True, exist_ok=True)
    value = manifest.plain()
    write_sealed(first, PLACE, value, durable=durable)
    write_sealed(second, PLACE, value, durable=False)
