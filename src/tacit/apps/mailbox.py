"""A site's mailbox at the gate: it waits there for messages instead of asking again and again.

A message stays in the box until the site fetches what it carries, so that none is lost with a
connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Mailbox:
    """Messages for one node; only the gate's thread touches it."""

    def __init__(self, node: int) -> None:
        self.node = node
        self._mail: dict[str, bytes] = {}  # how messages are told, by their ids
        self._waiter: asyncio.Future[bool] | None = None

    def put(self, message: str, told: bytes) -> None:
        """Note that there is a message more."""
        self._mail[message] = told
        self._wake(True)

    async def next(self, waits: Callable[[str], bool], seconds: float) -> bytes | None:
        """Return how the next message is told that still waits for the node, empty if none comes.

        A later call displaces an earlier one, whose connection may be gone: that one gets None.
        """
        self.leave()
        if told := self._first(waits):
            return told
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiter = waiter
        try:
            async with asyncio.timeout(seconds):
                return self._first(waits) if await waiter else None
        except TimeoutError:
            return b""
        finally:
            if self._waiter is waiter:
                self._waiter = None

    def _first(self, waits: Callable[[str], bool]) -> bytes:
        self._mail = {message: told for message, told in self._mail.items() if waits(message)}
        return next(iter(self._mail.values()), b"")

    def leave(self) -> None:
        """Send away whoever waits."""
        self._wake(False)

    def _wake(self, mail: bool) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(mail)
