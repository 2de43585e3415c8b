"""What messages carry, on its way between the coordinator and its sites.

Flower knows of every message and every answer, and keeps books. But a call into its server has its
cost, and each part of a message would be one, so what messages carry does not go there: it lies
here, in the coordinator's process, until the site has fetched it, piece by piece,
and until the coordinator has taken what the site sent in return. Large answers lie in a file.
"""

from __future__ import annotations

import contextlib
import io
import math
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from flwr.app import RecordDict

from tacit.apps.letters import HEAD, sealed, unsealed
from tacit.apps.listener import Denied
from tacit.core import BadInput

PIECE = 4 << 20  # bytes of what is carried in one request
SMALL = 1 << 20  # bytes of an answer that lies in memory
OVERDUE = 10.0  # seconds after which Flower's word of an answer is awaited no longer


@dataclass
class Parcel:
    """What one message carries to a node, and what comes back."""

    node: int
    until: float  # when nobody waits for an answer any more, by the monotonic clock
    head: bytes
    body: bytes  # that of other parcels, too, where sites are told the same
    fetched: bool = False  # at least in part: the node knows of the message
    answer: Answer | None = None

    def piece(self, offset: int) -> bytes:
        """Return what follows an offset, up to the size of a piece."""
        first = self.head[offset : offset + PIECE]
        after = max(0, offset - len(self.head))
        return first + self.body[after : after + PIECE - len(first)]


@dataclass
class Answer:
    """What a node sends back, as far as it has come."""

    total: int
    stream: BinaryIO
    file: Path | None
    size: int = 0
    since: float = math.inf  # when it was there in full, by the monotonic clock

    @classmethod
    def of(cls, total: int, file: Path) -> Answer:
        """Prepare for an answer: a small one in memory, a large one in a file."""
        if total <= SMALL:
            return cls(total, io.BytesIO(), None)
        return cls(total, file.open("w+b"), file)

    def add(self, offset: int, piece: bytes) -> None:
        """Add a piece; the last one may come twice, because its sender cannot tell that it came."""
        if offset + len(piece) == self.size and offset < self.size:
            return
        if offset != self.size or offset + len(piece) > self.total:
            raise Denied(409, "not the piece that is wanted")
        self.stream.write(piece)
        self.size += len(piece)
        if self.size == self.total:
            self.since = time.monotonic()

    def drop(self) -> None:
        """Hold nothing any longer."""
        self.stream.close()
        if self.file is not None:
            self.file.unlink(missing_ok=True)


class Post:
    """Parcels by the message that they belong to; for the coordinator's thread and the gate's."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit
        # given the node, the message's id and how a node is told of it
        self.on_mail: Callable[[int, str, bytes], None] = lambda *mail: None
        self._parcels: dict[str, Parcel] = {}
        self._lock = threading.Lock()
        self._news = threading.Event()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for old in folder.iterdir():
            old.unlink()

    def prepare(self, message: str, node: int, content: RecordDict, seconds: float) -> None:
        """Have ready what a message carries, and expect an answer for so long."""
        head, body = sealed(content)
        now = time.monotonic()
        with self._lock:
            for old in [i for i, p in self._parcels.items() if p.until < now]:
                self._drop(old)
            self._parcels[message] = Parcel(node, now + seconds, head, body)

    def notify(self, message: str, told: bytes) -> None:
        """Let the node know of a message that Flower has taken."""
        self.on_mail(self._parcels[message].node, message, told)

    def forget(self, message: str) -> None:
        """Expect no answer to a message."""
        with self._lock:
            self._drop(message)

    def piece(self, message: str, node: int, offset: int) -> tuple[bytes, int]:
        """Return a piece of what a message carries, and the size of the whole."""
        with self._lock:
            parcel = self._of(message, node)
            parcel.fetched = True
        return parcel.piece(offset), len(parcel.head) + len(parcel.body)

    def unfetched(self, message: str) -> bool:
        """Tell whether a message waits for its node, which has not asked for what it carries."""
        with self._lock:
            parcel = self._parcels.get(message)
            return parcel is not None and not parcel.fetched and parcel.until > time.monotonic()

    def receive(self, message: str, node: int, offset: int, total: int, piece: bytes) -> None:
        """Take a piece of a node's answer; one that begins anew replaces what has come."""
        if total > self.limit + HEAD:
            raise Denied(413, "too large")
        with self._lock:
            parcel = self._of(message, node)
            known = parcel.answer
            if known is None or (offset == 0 and known.size < known.total):
                if known is not None:
                    known.drop()
                parcel.answer = known = Answer.of(total, self.folder / message)
            if known.total != total:
                raise Denied(409, "not the answer that was begun")
            known.add(offset, piece)

    def announce(self) -> None:
        """Tell the coordinator that Flower has an answer."""
        self._news.set()

    def wait(self, seconds: float) -> None:
        """Wait for an announcement, but not for ever."""
        self._news.wait(seconds)
        self._news.clear()

    def overdue(self, messages: Iterable[str]) -> list[str]:
        """Return those of some messages whose answers have long been here in full."""
        then = time.monotonic() - OVERDUE
        with self._lock:
            parcels = {message: self._parcels.get(message) for message in messages}
        return [m for m, p in parcels.items() if p and p.answer and p.answer.since <= then]

    def take(self, message: str) -> RecordDict:
        """Return the answer to a message, and forget both; :class:`BadInput` if there is none."""
        with self._lock:
            parcel = self._parcels.get(message)
            answer = parcel.answer if parcel else None
            if answer is None or answer.size < answer.total:
                self._drop(message)
                raise BadInput("the answer did not arrive in full")
            if parcel is not None:
                parcel.answer = None  # nobody adds to it while it is read
        try:
            answer.stream.seek(0)
            return unsealed(answer.stream, self.folder if answer.file else None)
        finally:
            answer.drop()
            with self._lock:
                self._drop(message)

    def close(self) -> None:
        """Hold nothing any longer."""
        with self._lock:
            for message in list(self._parcels):
                self._drop(message)

    def _of(self, message: str, node: int) -> Parcel:
        """Return what a message carries, for the node that it is for and for no other."""
        parcel = self._parcels.get(message)
        if parcel is None or parcel.node != node or parcel.until < time.monotonic():
            raise Denied(404, "no such message")
        return parcel

    def _drop(self, message: str) -> None:
        parcel = self._parcels.pop(message, None)
        if parcel is not None and parcel.answer is not None:
            with contextlib.suppress(OSError):
                parcel.answer.drop()
