"""A small world, held in memory: six clients of unequal sizes, and a public set.

Four features, three classes, a network with one hidden layer.
"""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tacit.core import Method, params_of
from tacit.data.examples import Dataset, Examples
from tacit.data.federated import Federation
from tacit.data.splits import Split
from tacit.engines.client_host import World
from tacit.engines.config import Fault, no_fault
from tacit.engines.serial import Serial
from tacit.engines.workers import Workers
from tacit.models import build

SEED = 7
SIZES = (6, 9, 12, 15, 18, 21)
PUBLIC = 8
DELTA = 1e-5


def federation() -> Federation:
    """Return the clients with their data, and examples that belong to nobody."""
    rng = np.random.default_rng(0)
    n = sum(SIZES)
    own = _drawn(rng, n)
    every = own.plus(_drawn(rng, PUBLIC))
    edges = [0, *itertools.accumulate(SIZES)]
    rows = tuple(np.arange(a, b) for a, b in itertools.pairwise(edges))
    split = Split(rows, rows, public=np.arange(n, n + PUBLIC))
    return Federation(Dataset("tiny", every, own, ("a", "b", "c")), split, SEED)


def _drawn(rng: np.random.Generator, n: int) -> Examples:
    """Return examples whose classes lie apart."""
    y = rng.integers(0, 3, n)
    x = rng.normal(size=(n, 4)) + np.eye(3, 4)[y]
    return Examples(torch.tensor(x, dtype=torch.float32), torch.tensor(y))


class Sandbox:
    """Makes engines whose clients live in folders that outlast the engine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0
        self.open: list[Workers] = []
        self.model = build("mlp", (4,), 3, SEED)
        self.x0 = params_of(self.model)

    def federation(self, method: Method | None) -> Federation:
        """Return who holds what under a method."""
        whole = federation()
        return whole.pooled() if method is not None and method.pooled else whole

    def world(self, method: Method | None, folder: Path) -> World:
        """Return the world of a method, its clients' memories in a folder."""
        return World(self.federation(method), self.model, SEED, folder, delta=DELTA)

    def fresh(self) -> Path:
        """Return a folder that nobody has used yet."""
        self.count += 1
        return self.folder / str(self.count)

    def serial(
        self,
        method: Method | None,
        fault: Fault = no_fault,
        folder: Path | None = None,
        **how: Any,
    ) -> Serial:
        """Return an engine that works in this process, ``how`` as in its configuration."""
        world = self.world(method, folder or self.fresh())
        return Serial(world, world.config(fault=fault, **how))

    def workers(
        self,
        method: Method | None,
        fault: Fault = no_fault,
        folder: Path | None = None,
        count: int = 2,
    ) -> Workers:
        """Return an engine with processes of its own."""
        world = self.world(method, folder or self.fresh())
        engine = Workers(world, count, world.config(fault=fault))
        self.open.append(engine)
        return engine

    def close(self) -> None:
        """End all processes and remove all folders."""
        for engine in self.open:
            engine.close()
        shutil.rmtree(self.folder, ignore_errors=True)
