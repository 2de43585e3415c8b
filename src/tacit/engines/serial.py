"""Every client in this process, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch

from tacit.codec import Blob
from tacit.core import (
    Call,
    ClientId,
)
from tacit.core.data import Examples
from tacit.engines.client_host import World, one_thread
from tacit.engines.config import Config
from tacit.engines.messages import Head
from tacit.engines.server import Engine, Results

T = TypeVar("T")


class Serial(Engine):
    """Every client in this process, one after the other: for tests and for debugging a task."""

    def __init__(self, world: World, config: Config | None = None) -> None:
        super().__init__(config or world.config())
        self.world = world
        world.model.to(world.device)

    def own(self, call: Call[T], data: Examples, round: int) -> T:
        """Run a task here."""
        return self.world.own(call, data, round)

    def close(self) -> None:
        """Have nothing to close."""

    def exchange(self, kind: str, call: bytes, heads: Sequence[Head]) -> Results:
        """Answer each head in turn."""
        got: dict[ClientId, Blob] = {}
        failed: dict[ClientId, str] = {}
        for head in heads:
            fault = self.config.fault(head.client, head.round) if kind == "ask" else None
            if fault in ("crash", "die"):
                failed[head.client] = fault
                continue
            with torch.random.fork_rng(devices=[]), one_thread():
                blob = self.world.serve(kind, head, call)
            if fault == "lost":
                failed[head.client] = fault
            else:
                got[head.client] = blob
            self.config.on_answer(len(got) + len(failed), len(heads))
        return got, failed
