"""What seeded noise makes the same each time is made once, and kept for the next run.

A generator's training may be longer than all that follows, and tables compare what follows. Only
what was made of published data is kept, and only where noise is seeded: nothing of that is private.
With noise of the operating system each run has its own.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import tacit
from tacit.core.data import LocalData
from tacit.data import tensor_cache

SLOW = 2.0  # seconds of work from which on its result is kept
AT_ONCE = 1 << 12  # examples that are looked at together
MARK = "recalled"  # beside a client's state: something of its work was made in another run
STREAM = "stream"  # what is noted with the tensors: where the client's randomness stood then


@dataclass(frozen=True)
class Recall:
    """Makes something for a client, or finds what was made of the same data and randomness."""

    folder: Path  # of the client's state
    rng: np.random.Generator
    data: LocalData

    def __call__(self, what: str, make: Callable[[], Mapping[str, Tensor]]) -> Mapping[str, Tensor]:
        file = tensor_cache.place_of("trained", self._digest(what))
        found = tensor_cache.read(file)
        if found is not None:
            _go_on_from(self.rng, found[1][STREAM])
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / MARK).touch()
            return found[0]
        began = time.monotonic()
        made = make()
        if time.monotonic() - began > SLOW:
            tensor_cache.keep(file, made, {STREAM: _stand_of(self.rng)})
        return made

    def _digest(self, what: str) -> str:
        """Return a name for all that the outcome depends on."""
        digest = hashlib.blake2b(digest_size=16)
        machine = (torch.__version__, torch.backends.cpu.get_cpu_capability(), self.data.device)
        digest.update(repr((what, _code(), machine, _stand_of(self.rng))).encode())
        for start in range(0, len(self.data), AT_ONCE):
            for part in self.data.batch(slice(start, start + AT_ONCE)):
                digest.update(f"{tuple(part.shape)} {part.dtype}".encode())
                digest.update(part.cpu().contiguous().numpy().data)
        return digest.hexdigest()


def was_recalled(clients: Path) -> bool:
    """Tell whether something of a run's work was made in another one: its times say too little."""
    return next(clients.glob(f"*/{MARK}"), None) is not None


def _stand_of(rng: np.random.Generator) -> str:
    """Return where a generator stands: its numbers, and how many streams came out of it."""
    seeds = rng.bit_generator.seed_seq
    assert isinstance(seeds, np.random.SeedSequence)
    born = [str(seeds.entropy), list(seeds.spawn_key), seeds.n_children_spawned]
    return json.dumps([rng.bit_generator.state, born])


def _go_on_from(rng: np.random.Generator, stand: str) -> None:
    """Let a generator stand where another one of the same seed stood."""
    state, (*_, spawned) = json.loads(stand)
    seeds = rng.bit_generator.seed_seq
    assert isinstance(seeds, np.random.SeedSequence)
    rng.bit_generator.state = state
    if spawned > seeds.n_children_spawned:
        seeds.spawn(spawned - seeds.n_children_spawned)


@cache
def _code() -> str:
    """Return a digest of this package's source: other code may make something else."""
    folder = Path(tacit.__file__).parent
    digest = hashlib.blake2b(digest_size=16)
    for file in sorted(folder.rglob("*.py")):
        digest.update(f"{file.relative_to(folder)}\n".encode() + file.read_bytes())
    return digest.hexdigest()
