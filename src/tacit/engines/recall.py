"""What a table's runs have in common is made once: generators, mostly, which take the longest.

Only where whoever starts the runs names a folder for it, as `tacit reproduce` does, of published
data, and with seeded noise, which makes the same each time: nothing of that is private. What is
found there is what would have been made, to the bit, on the same machine.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tacit.core import Client
from tacit.data import tensor_cache
from tacit.privacy.products import kernels

SLOW = 2.0  # seconds of work from which on its result is kept
AT_ONCE = 1 << 12  # examples that are looked at together
MARK = "recalled"  # beside a client's state: something of its work was made in another run
STREAM = "stream"  # what is noted with the tensors: where the client's randomness stood then


PACKAGE = Path(__file__).parents[1]
BEGAN = time.time()  # when this process imported what makes things


def source() -> str:
    """Return a digest of this package's source: other code may make something else."""
    digest = hashlib.blake2b(digest_size=16)
    for file in sorted(PACKAGE.rglob("*.py")):
        digest.update(f"{file.relative_to(PACKAGE)}\n".encode() + file.read_bytes())
    return digest.hexdigest()


def is_edited() -> bool:
    """Tell whether the source may be another by now than the one that this process runs."""
    return any(file.stat().st_mtime > BEGAN for file in PACKAGE.rglob("*.py"))


@dataclass(frozen=True)
class Made:
    """Where what was made is kept, and by which code."""

    folder: Path
    code: str = field(default_factory=source)


@dataclass(frozen=True)
class Recall:
    """Makes something for a client, or finds what was made of the same data and randomness."""

    made: Made
    state: Path  # the folder of the client's state

    def __call__(
        self, me: Client, what: str, make: Callable[[], Mapping[str, Tensor]]
    ) -> Mapping[str, Tensor]:
        """Return what ``make`` would, and leave the client's randomness where it would."""
        if me.noise != "seeded" or me.data.device != "cpu" or is_edited():
            return make()
        file = self.made.folder / f"{self._digest(me, what)}{tensor_cache.SUFFIX}"
        found = tensor_cache.read(file)
        if found is not None and STREAM in found[1]:
            _go_on_from(me.rng, found[1][STREAM])
            self.state.mkdir(parents=True, exist_ok=True)
            (self.state / MARK).touch()
            return found[0]
        began = time.monotonic()
        new = make()
        if time.monotonic() - began > SLOW and not is_edited():
            tensor_cache.keep(file, new, {STREAM: _stand_of(me.rng)})
        return new

    def _digest(self, me: Client, what: str) -> str:
        """Return a name for all that the outcome depends on."""
        scale = (me.data.mean, me.data.std)
        each = (what, self.made.code, _machine(), scale, _stand_of(me.rng))
        digest = hashlib.blake2b(repr(each).encode(), digest_size=16)
        for start in range(0, len(me.data), AT_ONCE):
            for part in me.data.batch(slice(start, start + AT_ONCE)):
                digest.update(f"{tuple(part.shape)} {part.dtype}".encode())
                digest.update(tensor_cache.bits(part))
        return digest.hexdigest()


def was_recalled(clients: Path) -> bool:
    """Tell whether something of a run's work was made in another one: its times say too little."""
    return next(clients.glob(f"*/{MARK}"), None) is not None


def _machine() -> tuple[object, ...]:
    """Return what decides the last bits of a product."""
    return (
        torch.__version__,
        np.__version__,
        torch.backends.cpu.get_cpu_capability(),
        torch.get_num_threads(),
        torch.backends.mkldnn.enabled,
        torch.get_float32_matmul_precision(),
        kernels(),
        last_bits(torch.get_num_threads()),
    )


@cache
def last_bits(threads: int) -> str:
    """Return a digest of some sums of products: environment variables can change their order."""
    draw = torch.Generator().manual_seed(0)
    x, w = torch.randn(8, 16, 16, 16, generator=draw), torch.randn(32, 16, 3, 3, generator=draw)
    found = [torch.conv2d(x, w), x.flatten(1) @ x.flatten(1).t(), torch.bmm(x[0], x[0].mT)]
    digest = hashlib.blake2b(digest_size=16)
    for part in found:
        digest.update(tensor_cache.bits(part))
    return digest.hexdigest()


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
