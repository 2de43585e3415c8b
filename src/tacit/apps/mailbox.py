"""A site's mailbox at the gate: it waits there for messages instead of asking again and again.

A full box is a hint; whether there is a message, Flower knows, and it is asked after a while in any
case. What was handed out is handed out again until the site fetches what the message carries,
because a connection can be lost with the answer.
"""

from __future__ import annotations

import asyncio

from tacit.apps.listener import Answer


class Mailbox:
    """Messages for one node; only the gate's thread touches it."""

    def __init__(self, node: int) -> None:
        self.node = node
        self.given: tuple[str, Answer] | None = None  # the last message, and how it was told
        self._count = 0
        self._waiter: asyncio.Future[bool] | None = None

    def put(self) -> None:
        """Note that there is a message more."""
        self._count += 1
        self._wake(True)

    def gave(self, message: str, answer: Answer) -> None:
        """Note what Flower said: a message, or that there is none."""
        self._count = max(0, self._count - 1) if message else 0
        self.given = (message, answer) if message else None

    async def wait(self, seconds: float) -> bool:
        """Wait for a message; tell whether it is still this call that is to ask for it.

        A later call displaces an earlier one, whose connection may be gone.
        """
        self.leave()
        if self._count:
            return True
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiter = waiter
        try:
            async with asyncio.timeout(seconds):
                return await waiter
        except TimeoutError:
            return True
        finally:
            if self._waiter is waiter:
                self._waiter = None

    def leave(self) -> None:
        """Send away whoever waits."""
        self._wake(False)

    def _wake(self, mail: bool) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(mail)
