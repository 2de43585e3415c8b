"""A site's connection to the coordinator, by Flower's Fleet API.

It lasts until it is told to end or refused.
"""

from __future__ import annotations

import contextlib
import logging
import re
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
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
    get_all_nested_objects,
    get_object_tree,
    inflate_object_from_contents,
    iterate_object_tree,
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
    message_from_proto,
    message_to_proto,
    no_object_id_recompute,
    public_key_to_bytes,
    pull_objects,
    push_objects,
    remove_content_from_message,
)
from tacit.apps.keys import PrivateKey, authority_of
from tacit.apps.signing import CLOCK, TOLERANCE, Signer
from tacit.apps.site import Site
from tacit.core import BadInput, TacitError
from tacit.engines.flower import TYPE, letter, packed

T = TypeVar("T")
BEAT = 10  # seconds between signs of life: a site that is silent for twice as long counts as gone
BUSY, IDLE = 0.2, 0.5  # seconds between looks for work, just after work and otherwise
RESTART = 60.0  # seconds to wait for Flower's server to come back
STARTING = frozenset([502, 503, 504])
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
            signed: Any = Signed(Signer(self.key, authority_of(self.ca)))
            public = b""  # to Flower the gate is this site, with a key of its own
        else:
            private, made = generate_key_pairs()
            signed = NodeAuthHttpInterceptor(private, made)
            public = public_key_to_bytes(made)
        client = FleetHttpClient.from_server_address(
            self.server, self.ca is None, self.ca, [version, signed]
        )
        return Session(client, public, self.key is None, self.stop)


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
        last = 0.0
        while not self.stop.is_set():
            got = self._again(self.client.PullMessages, PullMessagesRequest(node=self.node))
            if got.messages_list:
                self._answer(
                    site, message_from_proto(got.messages_list[0]), got.message_object_trees[0]
                )
                last = time.monotonic()
            else:
                self.stop.wait(BUSY if time.monotonic() - last < 3 else IDLE)

    def _answer(self, site: Site, message: Message, tree: ObjectTree) -> None:
        begun = time.monotonic()
        try:
            content = self._read(message, tree, site.limit)
            reply = site.reply(content)
        except BadInput as e:
            log.warning("refused: %s", e)
            reply = letter("refused", {"why": str(e)}, packed(b""))
        try:
            self._send(Message(reply, reply_to=message), time.monotonic() - begun)
        # the run is over, the answer too late or too large: it counts as lost
        except httpx.HTTPStatusError as e:
            log.warning("answer not taken (%s)", e.response.status_code)

    def _read(self, message: Message, tree: ObjectTree, limit: int) -> RecordDict:
        """Fetch a message's content, but never more than the limit."""
        if message.metadata.message_type != TYPE:
            raise BadInput(f"message type = {message.metadata.message_type!r}: must be {TYPE!r}")
        run, size = message.metadata.run_id, 0
        fetch = make_pull_object_fn_protobuf(
            partial(self._again, self.client.PullObject), self.node, run
        )

        def counted(id: str) -> bytes:
            nonlocal size
            blob = fetch(id)
            size += len(blob)
            if size > limit + (1 << 20):
                raise BadInput(f"message: more than {limit:,} bytes")
            return blob

        contents = pull_objects([t.object_id for t in iterate_object_tree(tree)], counted)
        confirm = make_confirm_message_received_fn_protobuf(
            partial(self._again, self.client.ConfirmMessageReceived), self.node, run
        )
        confirm(tree.object_id)
        whole: Any = inflate_object_from_contents(tree.object_id, contents)
        if not isinstance(whole, Message) or not whole.has_content():
            raise BadInput("message: no content")
        return whole.content

    def _send(self, reply: Message, seconds: float) -> None:
        reply.metadata.__dict__["_message_id"] = reply.object_id
        with no_object_id_recompute():
            objects, tree = get_all_nested_objects(reply), get_object_tree(reply)
            head = message_to_proto(remove_content_from_message(reply))
            taken = self._again(
                self.client.PushMessages,
                PushMessagesRequest(
                    node=self.node,
                    messages_list=[head],
                    message_object_trees=[tree],
                    clientapp_runtime_list=[seconds],
                ),
            )
            store = make_push_object_fn_protobuf(
                partial(self._again, self.client.PushObject),
                self.node,
                reply.metadata.run_id,
                taken.session_id,
            )
            push_objects(objects, store, object_ids_to_push=set(taken.objects_to_push))

    def _again(self, call: Callable[[Any], T], request: Any) -> T:
        """Make a call; if Flower's server is being started again behind the gate, wait for it."""
        end = time.monotonic() + RESTART
        while True:
            try:
                return call(request)
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
