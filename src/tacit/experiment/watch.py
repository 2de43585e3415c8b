"""Who is told how a run goes."""

from __future__ import annotations

from typing import Protocol

from tacit.core import Json


class Watcher(Protocol):
    """Somebody who is told how a run goes."""

    def begin(self, label: str, rounds: int) -> None: ...
    def answered(self, done: int, of: int) -> None: ...
    def finished_round(self, line: Json, rounds: int) -> None: ...


class Nobody:
    """Watches silently."""

    def begin(self, label: str, rounds: int) -> None:
        """Ignore a start."""

    def answered(self, done: int, of: int) -> None:
        """Ignore a reply."""

    def finished_round(self, line: Json, rounds: int) -> None:
        """Ignore a round."""
