"""A site's connection to the coordinator, by Flower's Fleet API.

It lasts until it is told to end or refused.
"""

from __future__ import annotations

import contextlib
import io
import logging
import queue
import re
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx
from flwr.app import Message, RecordDict

from tacit.apps.flower_internals import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    FleetHttpClient,
    Node,
    NodeAuthHttpInterceptor,
    ObjectTree,
    ProtobufCall,
    ProtobufRequestContext,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
    RuntimeVersionHttpInterceptor,
    SendNodeHeartbeatRequest,
    add_headers,
    generate_key_pairs,
    message_from_proto,
    message_to_proto,
    node_headers,
    public_key_to_bytes,
)
from tacit.apps.gateway import SIZE
from tacit.apps.keys import PrivateKey, authority_of
from tacit.apps.letters import HEAD, sealed, unsealed
from tacit.apps.message_heads import head
from tacit.apps.post import PIECE, Parcel
from tacit.apps.signing import CLOCK, TOLERANCE, Signer
from tacit.apps.site import Site
from tacit.core import BadInput, TacitError
from tacit.engines.flower import TYPE, letter, packed
from tacit.engines.memory import keep_memory

T = TypeVar("T")
BEAT = 10  # seconds between signs of life: a site that is silent for twice as long counts as gone
PAUSE = 0.25  # seconds between looks whether to stop, and between two calls at least
RESTART = 60.0  # seconds to wait for Flower's server to come back
STARTING = frozenset([502, 503, 504])
TOO_LARGE = 413
log = logging.getLogger("tacit.site")


class NoConnection(TacitError):
    """The coordinator cannot be reached, or does not want this site."""


@dataclass
class Fleet:
    """One connection, from activation to the first failure that reconnecting may cure."""

    server: str
    ca: bytes | None  # None: plain HTTP
    key: PrivateKey | None  # None: a key for this session, where the server takes any
    patience: float  # seconds without a connection before giving up
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self, site: Site) -> None:
        """Serve until told to stop, connecting again after every failure."""
        keep_memory()
        since, wait = time.monotonic(), 0.5
        while not self.stop.is_set():
            connected = False
            try:
                with self._connect() as session:
                    log.info("%s is connected to %s", site.name, self.server)
                    connected = True
                    session.work(site)
                    return
            except (httpx.HTTPError, ssl.SSLError) as e:
                # perhaps to a server that has been started anew since, and knows nothing of this
                # node
                if connected:
                    since, wait = time.monotonic(), 0.5
                else:
                    self._give_up_or_go_on(e, time.monotonic() - since)
            self.stop.wait(wait)
            wait = min(2 * wait, 5.0)

    def _give_up_or_go_on(self, error: Exception, seconds: float) -> None:
        text = " ".join(str(error).split())
        if "CERTIFICATE_VERIFY_FAILED" in text:
            why = "has expired" if "expired" in text else "is not of the authority in --ca"
            raise NoConnection(f"server = {self.server}: its certificate {why} ({text})")
        if isinstance(error, httpx.HTTPStatusError) and error.response.status_code in (401, 403):
            raise NoConnection(f"server = {self.server}: {_refusal(error.response)}")
        if seconds > self.patience:
            raise NoConnection(
                f"server = {self.server}: no connection for {seconds:.0f} s ({text})"
            )
        log.warning("no connection to %s (%s); trying again", self.server, text)

    def _connect(self) -> Session:
        version = RuntimeVersionHttpInterceptor(component_name="tacit")
        if self.key and self.ca:
            signer = Signer(self.key, authority_of(self.ca))
            signed: Any = Signed(signer)
            public = b""  # to Flower the gate is this site, with a key of its own
            by: Headers = signer.headers
        else:
            private, made = generate_key_pairs()
            signed = NodeAuthHttpInterceptor(private, made)
            public = public_key_to_bytes(made)
            by = lambda *_: node_headers(public)  # noqa: E731
        client = FleetHttpClient.from_server_address(
            self.server, self.ca is None, self.ca, [version, signed]
        )
        return Session(
            client, Carrier.to(self.server, self.ca, by), public, self.key is None, self.stop
        )


Headers = Callable[[str, str, bytes], dict[str, str]]  # of a request, by which a site is known


@dataclass(frozen=True)
class Carrier:
    """Fetches what messages carry, and brings what answers carry, piece by piece."""

    client: httpx.Client
    by: Headers

    @classmethod
    def to(cls, server: str, ca: bytes | None, by: Headers) -> Carrier:
        """Prepare for a server; nothing is sent yet."""
        scheme = "http" if ca is None else "https"
        trusted = ssl.create_default_context(cadata=ca.decode("ascii")) if ca else True
        return cls(httpx.Client(base_url=f"{scheme}://{server}", verify=trusted, timeout=30.0), by)

    def fetch(self, message: str, offset: int) -> tuple[bytes, int]:
        """Return a piece of what a message carries, and how much it carries in all."""
        answer = self._post(f"/v1/fetch/{message}/{offset}/0", b"")
        size = answer.headers.get(SIZE, "")
        if not re.fullmatch(r"[0-9]{1,15}", size):
            raise BadInput("message: of no known size")
        return answer.content, int(size)

    def bring(self, message: str, offset: int, total: int, piece: bytes) -> None:
        """Send a piece of what the answer to a message carries."""
        self._post(f"/v1/bring/{message}/{offset}/{total}", piece)

    def _post(self, path: str, body: bytes) -> httpx.Response:
        headers = self.by("POST", path, body)
        return self.client.post(path, content=body, headers=headers).raise_for_status()


@dataclass(frozen=True)
class Signed:
    """Has every request signed, also when it is made again."""

    signer: Signer

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        """Sign a request and send it."""
        request = context.request
        headers = self.signer.headers(request.method, request.url.path, request.content)
        add_headers(request, headers)
        return call_next(context)


def _refusal(response: httpx.Response) -> str:
    """Say why the coordinator does not want this site, in words of our own."""
    ahead = response.headers.get(CLOCK, "")
    if not re.fullmatch(r"-?[0-9]{1,12}", ahead):
        return "refuses this site's key; is it registered?"
    side = "behind" if ahead.startswith("-") else "ahead of"
    seconds = int(ahead.lstrip("-"))
    return (
        f"clock: this machine's is {seconds:,} s {side} the coordinator's: "
        f"must be within {TOLERANCE:g} s"
    )


@dataclass
class Session:
    """A node of Flower's: active while the context lasts."""

    client: FleetHttpClient
    carrier: Carrier
    public: bytes
    register: bool
    stop: threading.Event
    node: Node = field(init=False)
    ended: threading.Event = field(init=False, default_factory=threading.Event)

    def __enter__(self) -> Session:
        """Become active, and say so regularly."""
        if self.register:
            self.client.RegisterNode(RegisterNodeFleetRequest(public_key=self.public))
        answer = self.client.ActivateNode(
            ActivateNodeRequest(public_key=self.public, heartbeat_interval=BEAT)
        )
        self.node = Node(node_id=answer.node_id)
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        return self

    def __exit__(self, *failure: object) -> None:
        """Say goodbye, if anybody listens."""
        self.ended.set()
        with contextlib.suppress(httpx.HTTPError, RuntimeError):
            self.client.DeactivateNode(DeactivateNodeRequest(node_id=self.node.node_id))
        self.client.close()
        self.carrier.client.close()

    def _beat(self) -> None:
        while not self.ended.wait(BEAT / 2):
            try:
                self.client.SendNodeHeartbeat(
                    SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=BEAT)
                )
            except (httpx.HTTPError, RuntimeError) as e:
                log.warning("no heartbeat: %s", " ".join(str(e).split()))

    def work(self, site: Site) -> None:
        """Answer messages, one at a time."""
        while not self.stop.is_set():
            begun = time.monotonic()
            got = self._next()
            if got is not None and got.messages_list:
                self._answer(site, message_from_proto(got.messages_list[0]))
            else:  # also where nobody lets a site wait
                self.stop.wait(max(0.0, PAUSE - (time.monotonic() - begun)))

    def _next(self) -> Any:
        """Wait at the gate for a message, which takes long, but end when told to stop."""
        results: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._wait, args=(results,), name="waiting", daemon=True).start()
        while not self.stop.is_set():
            with contextlib.suppress(queue.Empty):
                result = results.get(timeout=PAUSE)
                if isinstance(result, Exception):
                    raise result
                return result
        return None

    def _wait(self, results: queue.SimpleQueue[Any]) -> None:
        try:
            results.put(self._again(self.client.PullMessages, PullMessagesRequest(node=self.node)))
        except httpx.HTTPStatusError as e:
            # 409: a later call of this site waits in its place
            results.put(None if e.response.status_code == 409 else e)
        except Exception as e:  # it is raised where the result is awaited
            results.put(e)

    def _answer(self, site: Site, message: Message) -> None:
        begun = time.monotonic()
        try:
            reply = site.reply(self._read(message, site.limit))
        except BadInput as e:
            log.warning("refused: %s", e)
            reply = letter("refused", {"why": str(e)}, packed(b""))
        if self._taken(message, reply, begun) == TOO_LARGE:
            # in words, at once: the coordinator would wait for it until the deadline
            why = "refused: its answer is larger than the coordinator takes (--max-message)"
            self._taken(message, letter("refused", {"why": why}, packed(b"")), begun)

    def _taken(self, message: Message, reply: RecordDict, begun: float) -> int:
        """Send an answer; return how the coordinator takes it, which is 200 if it does."""
        try:
            self._send(message, reply, begun)
        # the run is over, the answer too late or too large: it counts as lost
        except httpx.HTTPStatusError as e:
            log.warning("answer not taken (%s)", e.response.status_code)
            return e.response.status_code
        return 200

    def _read(self, message: Message, limit: int) -> RecordDict:
        """Fetch what a message carries, but never more than the limit."""
        if message.metadata.message_type != TYPE:
            raise BadInput(f"message type = {message.metadata.message_type!r}: must be {TYPE!r}")
        got, total = io.BytesIO(), 1
        while got.tell() < total:
            piece, total = self._again(self.carrier.fetch, message.metadata.message_id, got.tell())
            if total > limit + HEAD or got.tell() + len(piece) > total:
                raise BadInput(f"message: more than {limit:,} bytes")
            if not piece:
                raise BadInput("message: cut short")
            got.write(piece)
        got.seek(0)
        return unsealed(got)

    def _send(self, message: Message, content: RecordDict, begun: float) -> None:
        """Bring an answer, and say that it is there."""
        parcel = Parcel(0, 0.0, *sealed(content))
        total = len(parcel.head) + len(parcel.body)
        for offset in range(0, total, PIECE):
            piece = parcel.piece(offset)
            self._again(self.carrier.bring, message.metadata.message_id, offset, total, piece)
        reply = head(Message(RecordDict(), reply_to=message))
        told = PushMessagesRequest(
            node=self.node,
            messages_list=[message_to_proto(reply)],
            message_object_trees=[ObjectTree(object_id=reply.metadata.message_id)],
            clientapp_runtime_list=[time.monotonic() - begun],
        )
        self._again(self.client.PushMessages, told)

    def _again(self, call: Callable[..., T], *request: Any) -> T:
        """Make a call; if Flower's server is being started again behind the gate, wait for it."""
        end = time.monotonic() + RESTART
        while True:
            try:
                return call(*request)
            except httpx.HTTPStatusError as e:
                if (
                    e.response.status_code not in STARTING
                    or time.monotonic() > end
                    or self.stop.is_set()
                ):
                    raise
            except httpx.TransportError:
                if time.monotonic() > end or self.stop.is_set():
                    raise
            self.stop.wait(0.5)
