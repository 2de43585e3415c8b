"""An HTTP server that is safe to leave in the open: every connection is counted and timed.

h11 parses HTTP; asyncio does TLS. What is here is who may hold how much, for how long. A connection
belongs to a stranger until a request on it shows a key. Strangers get one request, a few seconds
and little memory, and where they are too many the oldest goes, so that they only displace one
another.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import h11

from tacit.core import BadInput

log = logging.getLogger("tacit.gate")
PORTION = 64 << 10  # bytes of an answer that are written at once
Tls = Callable[[], ssl.SSLContext]  # as it is for the next connection


@dataclass(frozen=True)
class Limits:
    """What connections may hold, and for how long."""

    strangers: int = 128  # connections that have shown no key, in all
    per_address: int = 32  # of these, from one address (IPv6: one network of 64 bits)
    per_key: int = 16  # connections of one site
    head_bytes: int = 16 << 10  # of the head of a request
    bodies: int = 256 << 20  # bytes of request bodies in memory at one time
    bodies_per_key: int = 32 << 20  # of these, of one site
    handshake: float = 10.0  # seconds for a TLS handshake
    head: float = 10.0  # seconds for the head of a stranger's request
    idle: float = 75.0  # seconds between two requests of a site
    pause: float = 30.0  # seconds within a body or an answer in which nothing moves


@dataclass(frozen=True)
class Answer:
    """What is sent back."""

    status: int
    content: bytes = b""
    kind: str = "text/plain"
    more: Mapping[str, str] = field(default_factory=dict)  # headers


class Denied(Exception):
    """A request that gets an answer at once, before its body is read."""

    def __init__(self, status: int, why: str, more: Mapping[str, str] | None = None) -> None:
        super().__init__(why)
        self.answer = Answer(status, why.encode(), more=more or {})


@dataclass
class Request:
    """A request whose head has arrived; its body comes when it is asked for."""

    method: str
    path: str
    headers: dict[str, str]
    address: str
    _connection: Connection

    def admit(self, key: str) -> None:
        """Note that this connection belongs to the owner of a key, who may keep it."""
        self._connection.admit(key)

    @property
    def gone(self) -> bool:
        """Whether nobody is there any more to take an answer, as far as one can tell."""
        return self._connection.gone

    async def body(self, limit: int) -> bytes:
        """Read the body, or raise :class:`Denied` if it is too large for limit or memory."""
        return await self._connection.body(_length(self.headers, limit))


Handler = Callable[[Request], Awaitable[Answer]]


def _length(headers: Mapping[str, str], limit: int) -> int:
    """Return the length that a request states; one that states none is refused."""
    stated = headers.get("content-length", "")
    if not (stated.isascii() and stated.isdecimal() and len(stated) < 20):
        raise Denied(411, "length required")
    if int(stated) > limit:
        raise Denied(413, "too large")
    return int(stated)


class Listener:
    """Listens in a thread of its own, and gives every request to a handler."""

    def __init__(
        self, handler: Handler, limits: Limits, at_end: Callable[[], Awaitable[None]]
    ) -> None:
        self.handler, self.limits, self.at_end = handler, limits, at_end
        self.told = Throttled()
        self.bodies = 0  # bytes in memory
        self._strangers: dict[asyncio.Task[None], str] = {}  # addresses; the oldest first
        self._all: set[asyncio.Task[None]] = set()
        self._keys: Counter[str] = Counter()
        self._bodies: Counter[str | None] = Counter()  # bytes in memory, by key
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        self._main: asyncio.Task[None] | None = None

    def start(self, host: str, port: int, tls: Tls | None) -> None:
        """Listen at an address."""
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            door = socket.create_server((host, port), family=family, backlog=256)
        except (OSError, OverflowError) as e:
            raise BadInput(f"host = {host!r}, port = {port}: cannot listen there ({e})") from None
        door.setblocking(False)
        self._thread = threading.Thread(target=self._run, args=(door, tls), daemon=True)
        self._thread.start()

    def _run(self, door: socket.socket, tls: Tls | None) -> None:
        with door, contextlib.suppress(asyncio.CancelledError):
            self._main = self._loop.create_task(self._accept(door, tls))
            self._loop.run_until_complete(self._main)
        self._loop.run_until_complete(self._end())
        self._loop.close()

    def close(self) -> None:
        """End every connection, and see the thread end."""
        if self._thread is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop)
            self._thread.join(timeout=10)

    def call_soon(self, what: Callable[[], object]) -> None:
        """Have something done by the thread that listens."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(what)

    def _stop(self) -> None:
        if self._main is not None:
            self._main.cancel()

    async def _end(self) -> None:
        for task in self._all:
            task.cancel()
        if self._all:
            await asyncio.wait(self._all, timeout=5)
        await self.at_end()
        await asyncio.sleep(0.01)  # sockets are closed in the loop's next turns

    async def _accept(self, door: socket.socket, tls: Tls | None) -> None:
        while True:
            try:
                sock, where = await self._loop.sock_accept(door)
            except OSError as e:  # no file is left for it
                self.told.warn("cannot take a connection: %s", e)
                self._shed(None)
                await asyncio.sleep(0.1)
                continue
            self._take(sock, str(where[0]), tls)

    def _take(self, sock: socket.socket, address: str, tls: Tls | None) -> None:
        origin = _origin(address)
        if sum(other == origin for other in self._strangers.values()) >= self.limits.per_address:
            self._shed(origin)
        elif len(self._strangers) >= self.limits.strangers:
            self._shed(None)
        task = self._loop.create_task(self._serve(sock, address, tls))
        self._strangers[task] = origin
        self._all.add(task)
        task.add_done_callback(partial(self._forget, sock))

    def _shed(self, origin: str | None) -> None:
        """End the oldest connection of strangers, of all or of those from one place."""
        for task, place in self._strangers.items():
            if origin in (None, place):
                del self._strangers[task]
                task.cancel()
                self.told.warn("closed a connection from %s: too many without a key", place)
                return

    def _forget(self, sock: socket.socket, task: asyncio.Task[None]) -> None:
        self._loop.call_soon(sock.close)  # after asyncio has let go of it
        self._strangers.pop(task, None)
        self._all.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a connection failed: %r", error)

    async def _serve(self, sock: socket.socket, address: str, tls: Tls | None) -> None:
        reader = asyncio.StreamReader(limit=self.limits.head_bytes)
        protocol = asyncio.StreamReaderProtocol(reader)
        more = {"ssl_handshake_timeout": self.limits.handshake} if tls else {}
        context = tls() if tls else None
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            transport, _ = await self._loop.connect_accepted_socket(
                lambda: protocol, sock, ssl=context, **more
            )
        except (OSError, ssl.SSLError):  # no handshake, or not in time
            return
        writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
        connection = Connection(self, reader, writer, address)
        try:
            await connection.serve()
        finally:
            connection.leave()
            transport.abort()

    def admitted(self, key: str) -> None:
        """Count a connection as a site's, no longer as a stranger's."""
        if self._keys[key] >= self.limits.per_key:
            raise Denied(503, "too many connections with this key", {"retry-after": "1"})
        self._keys[key] += 1
        task = asyncio.current_task()
        if task is not None:
            self._strangers.pop(task, None)

    def hold(self, key: str | None, length: int) -> None:
        """Make room in memory for a body of a site's, if there is any."""
        few = self._bodies[key] + length > self.limits.bodies_per_key
        if few or self.bodies + length > self.limits.bodies:
            raise Denied(503, "busy", {"retry-after": "1"})
        self.bodies += length
        self._bodies[key] += length

    def let_go(self, key: str | None, length: int) -> None:
        """Have that room again."""
        self.bodies -= length
        self._bodies[key] -= length
        if not self._bodies[key]:
            del self._bodies[key]

    def left(self, key: str) -> None:
        """Count a site's connection no more."""
        self._keys[key] -= 1


class Connection:
    """One connection: requests one after the other, each within its time."""

    def __init__(
        self,
        listener: Listener,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        address: str,
    ) -> None:
        self.listener, self.reader, self.writer = listener, reader, writer
        self.limits, self.address = listener.limits, address
        self.key: str | None = None  # None: a stranger
        self._held = 0  # bytes of the body that is being handled
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=self.limits.head_bytes)

    def admit(self, key: str) -> None:
        """Belong to a key from now on."""
        if self.key is None:
            self.listener.admitted(key)
            self.key = key

    @property
    def gone(self) -> bool:
        """Whether the other side has closed."""
        return self.writer.is_closing() or self.reader.at_eof()

    async def serve(self) -> None:
        """Answer requests until either side has had enough."""
        with contextlib.suppress(TimeoutError, ConnectionError, ssl.SSLError, OSError):
            while await self._answer_one():
                self._release()
                self._http.start_next_cycle()
            await self._part()

    def leave(self) -> None:
        """Hold nothing any longer."""
        self._release()
        if self.key is not None:
            self.listener.left(self.key)

    async def _answer_one(self) -> bool:
        """Answer a request, and tell whether another may follow."""
        try:
            async with asyncio.timeout(self.limits.idle if self.key else self.limits.head):
                request = await self._head()
            if request is None:
                return False
            answer = await self._handled(request)
        except h11.RemoteProtocolError as e:
            self.listener.told.warn("not HTTP from %s: %s", self.address, e)
            answer = Answer(e.error_status_hint, b"not understood")
        except Denied as e:
            answer = e.answer
        except asyncio.CancelledError:  # the gate closes, or strangers are too many
            with contextlib.suppress(h11.LocalProtocolError, ConnectionError):
                self.writer.writelines(
                    self._parts(Answer(503, b"closing", more={"retry-after": "1"}))
                )
            raise
        await self._send(answer)
        return self._http.states == {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}

    async def _handled(self, request: Request) -> Answer:
        try:
            return await self.listener.handler(request)
        except (Denied, h11.RemoteProtocolError, TimeoutError, OSError):
            raise
        except Exception:
            log.exception("a request failed")
            return Answer(500, b"failed")

    async def _event(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self.reader.read(64 << 10))
        return event

    async def _head(self) -> Request | None:
        event = await self._event()
        if not isinstance(event, h11.Request):
            return None
        text = {k.decode("latin-1"): v.decode("latin-1") for k, v in event.headers}
        method, target = event.method.decode("latin-1"), event.target.decode("latin-1")
        return Request(method, target, text, self.address, self)

    async def body(self, length: int) -> bytes:
        """Read a body of a length that was stated and is within the limits."""
        self.listener.hold(self.key, length)
        self._held = length
        parts: list[bytes] = []
        while True:
            async with asyncio.timeout(self.limits.pause):
                event = await self._event()
            if not isinstance(event, h11.Data):
                return b"".join(parts)
            parts.append(bytes(event.data))

    def _release(self) -> None:
        self.listener.let_go(self.key, self._held)
        self._held = 0

    def _parts(self, answer: Answer) -> Iterator[bytes]:
        """Yield what is written for an answer.

        It is a little at a time: what the other side is slow to take is copied again and again.
        """
        about: list[tuple[str, str]] = [("content-type", answer.kind or "text/plain")]
        about += [("content-length", str(len(answer.content))), *answer.more.items()]
        if self.key is None or self._http.their_state is not h11.DONE:
            about.append(("connection", "close"))
        head = self._http.send(h11.Response(status_code=answer.status, headers=about)) or b""
        for at in range(0, len(answer.content), PORTION):
            portion = h11.Data(data=answer.content[at : at + PORTION])
            yield head + (self._http.send(portion) or b"")
            head = b""
        yield head + (self._http.send(h11.EndOfMessage()) or b"")

    async def _send(self, answer: Answer) -> None:
        """Send an answer, as long as something moves."""
        with contextlib.suppress(h11.LocalProtocolError):  # too broken a request to be answered
            for part in self._parts(answer):
                self.writer.write(part)
                async with asyncio.timeout(self.limits.pause):
                    await self.writer.drain()

    async def _part(self) -> None:
        """Let what is still coming come for a moment: else the answer might be lost with it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                if self.writer.can_write_eof():
                    self.writer.write_eof()
                for _ in range(64):
                    if not await self.reader.read(64 << 10):
                        return


class Throttled:
    """Warnings that a stranger can cause: few in a while, in one line each, nothing but letters."""

    def __init__(self, most: int = 10, seconds: float = 10.0) -> None:
        self.most, self.seconds = most, seconds
        self._since, self._said, self._silent = -seconds, 0, 0

    def warn(self, form: str, *args: object) -> None:
        """Write a warning, unless too many were written lately; those are counted."""
        now = time.monotonic()
        if now - self._since >= self.seconds:
            if self._silent:
                log.warning("%d more refusals were not logged", self._silent)
            self._since, self._said, self._silent = now, 0, 0
        if self._said >= self.most:
            self._silent += 1
            return
        self._said += 1
        log.warning(form, *(printable(a) for a in args))


def printable(said: object) -> str:
    """Return what a stranger said in a form that cannot pass for anything else in a log."""
    text = ascii(str(said)[:200])[1:-1]
    return text if len(str(said)) <= 200 else f"{text}..."


def _origin(address: str) -> str:
    """Return the place that an address counts for: a host, or for IPv6 its network."""
    try:
        known = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(known, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((known, 64), strict=False))
    return str(known)
