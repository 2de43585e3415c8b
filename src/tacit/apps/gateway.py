"""The only door to the outside.

It lets registered sites reach Flower's Fleet API, and nobody reach anything else.

Flower serves its fleet, control and runtime APIs at one address, and whoever reaches the control
API can submit code. So Flower listens on loopback alone, and this gate, on the public address,
passes on the calls that a site makes. It knows a site by its signature, and is that site to Flower.
Messages that wait for a site, and what they carry, it hands out itself: they go by the post.
"""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tacit.apps.flower_internals import (
    as_node,
    named_node,
    node_key,
    signed_time,
)
from tacit.apps.keys import PrivateKey
from tacit.apps.listener import Answer, Denied, Limits, Listener, Request
from tacit.apps.mailbox import Mailbox
from tacit.apps.post import Post
from tacit.apps.signing import Guard, matches

PREFIX = "/v1/fleet/"
CALLS = frozenset(
    [
        "activate-node",
        "deactivate-node",
        "send-node-heartbeat",
        "pull-messages",
        "push-messages",
    ]
)
SELF_REGISTRATION = frozenset(["register-node", "unregister-node"])  # without keys, on loopback
CARRIED = re.compile(r"/v1/(fetch|bring)/([0-9a-f]{64})/([0-9]{1,15})/([0-9]{1,15})")
REQUEST = 16 << 20  # bytes of one call at most
HOLD = 20.0  # seconds for which a site is kept waiting for a message
SIZE = "tacit-size"  # how much a message carries in all
HEADERS = frozenset(["content-type", "accept"])  # that are passed on
# without keys: all connections count as one site's
ANYBODY = Limits(per_key=1 << 20, bodies_per_key=Limits.bodies)
FRESH = 60.0  # seconds for which the gate uses a signature of its own towards Flower


@dataclass
class Badge:
    """A site as Flower knows it: by a key that the gate made, and that never leaves it."""

    private: PrivateKey = field(default_factory=node_key)
    _signed: dict[str, str] = field(default_factory=dict)
    _since: float = -FRESH

    def headers(self) -> dict[str, str]:
        """Return the headers by which Flower knows a node."""
        if time.monotonic() - self._since >= FRESH:
            self._signed = signed_time(self.private)
            self._since = time.monotonic()
        return self._signed


class Gate:
    """Checks who calls what, and forwards."""

    def __init__(
        self,
        inside: str,
        *,
        keys: Path | None,  # the coordinator's folder of keys; None: anybody, on loopback
        post: Post | None = None,  # what messages carry; None: nothing does, and nobody waits
        badges: Mapping[str, Badge] | None = None,  # of the sites, by name
        limits: Limits | None = None,
    ) -> None:
        self.inside, self.keys, self.post = inside, keys, post
        self.guard = Guard(keys) if keys else None
        self.badges = badges or {}
        self.calls = CALLS if keys else CALLS | SELF_REGISTRATION
        self.boxes: dict[str, Mailbox] = {}  # of the sites that are active, by name
        self.bytes_in = self.bytes_out = 0
        self._context: ssl.SSLContext | None = None
        self._since = 0  # when its certificate was written
        self._client = httpx.AsyncClient(
            base_url=inside,
            timeout=60.0,
            trust_env=False,
            limits=httpx.Limits(max_connections=64, max_keepalive_connections=64),
        )
        allowed = limits or (Limits() if keys else ANYBODY)
        self._listener = Listener(self._reply, allowed, self._client.aclose)
        if post is not None:
            post.on_mail = lambda *mail: self._listener.call_soon(lambda: self._put(*mail))

    async def _reply(self, request: Request) -> Answer:
        call = self._call(request)
        name = self._name(request)
        request.admit(name)
        body = await request.body(REQUEST)
        if self.guard and not matches(body, request.headers):
            raise Denied(403, "not the body that was signed")
        if call in ("fetch", "bring"):
            answer = self._carry(request.path, name, body)
        elif call == "pull-messages" and self.post and name in self.boxes:
            answer = await self._pull(self.post, self.boxes[name], request, name)
        else:
            answer = await self._forward(request, name, call, body)
            self._follow(call, name, answer)
        self.bytes_in += len(body)
        self.bytes_out += len(answer.content)
        return answer

    def _call(self, request: Request) -> str:
        """Return which call it is, by the last word of its path."""
        if request.method == "POST" and self.post and (carry := CARRIED.fullmatch(request.path)):
            return carry[1]
        call = request.path.removeprefix(PREFIX)
        ours = request.path.startswith(PREFIX) and call in self.calls
        if request.method != "POST" or not ours:
            about = (request.method, request.path, request.address)
            self._listener.told.warn("refused %s %s from %s", *about)
            raise Denied(404, "not here")
        return call

    def _name(self, request: Request) -> str:
        """Return which site calls; without keys, what it says."""
        if self.guard is None:
            return request.headers.get("flwr-public-key", "")
        try:
            return self.guard.check(request.method, request.path, request.headers)
        except Denied as e:
            self._listener.told.warn("refused a call from %s: %s", request.address, e)
            raise

    def _carry(self, path: str, name: str, body: bytes) -> Answer:
        """Hand out a piece of what a message carries, or take one of what is sent in return."""
        found, box = CARRIED.fullmatch(path), self.boxes.get(name)
        if self.post is None or found is None or box is None:
            raise Denied(404, "no such message")
        call, message, offset, total = found[1], found[2], int(found[3]), int(found[4])
        if call == "fetch":
            piece, size = self.post.piece(message, box.node, offset)
            return Answer(200, piece, "application/octet-stream", {SIZE: str(size)})
        try:
            self.post.receive(message, box.node, offset, total, body)
        except Denied as e:
            self._listener.told.warn("refused an answer of %s: %s", name, e)
            raise
        return Answer(200)

    async def _pull(self, post: Post, box: Mailbox, request: Request, name: str) -> Answer:
        """Answer a call for a message when there is one, or after a while."""
        told = await box.next(post.unfetched, HOLD)
        if told is None or request.gone:
            raise Denied(409, "nobody waits here any more")
        if self.guard and name not in self.guard.names():  # its key was revoked meanwhile
            raise Denied(403, "unknown key")
        return Answer(200, told, "application/octet-stream")

    def _follow(self, call: str, name: str, answer: Answer) -> None:
        """Note who is active, and that an answer is there."""
        if self.post is None or answer.status != 200:
            return
        if call == "activate-node":
            node = named_node(answer.content)
            if name not in self.boxes or self.boxes[name].node != node:
                self.boxes[name] = Mailbox(node)
        elif call == "deactivate-node" and name in self.boxes:
            self.boxes[name].leave()
        elif call == "push-messages":
            self.post.announce()

    def _put(self, node: int, message: str, told: bytes) -> None:
        for box in self.boxes.values():
            if box.node == node:
                box.put(message, told)

    async def _forward(self, request: Request, name: str, call: str, body: bytes) -> Answer:
        kept = {k: v for k, v in request.headers.items() if k in HEADERS or k.startswith("flwr-")}
        if badge := self.badges.get(name):
            kept |= badge.headers()
            if call == "activate-node":
                body = as_node(body, badge.private)
        try:
            answer = await self._client.post(request.path, content=body, headers=kept)
        except httpx.TransportError:
            return Answer(503, b"starting")
        kind = answer.headers.get("content-type", "")
        return Answer(answer.status_code, answer.content, kind)

    def serve(self, host: str, port: int) -> None:
        """Listen in a thread of its own; return when sites can connect."""
        self._listener.start(host, port, self._tls if self.keys else None)

    def _tls(self) -> ssl.SSLContext:
        """Return the server's end of TLS, with the certificate as it is now."""
        assert self.keys is not None
        state = (self.keys / "server.crt").stat().st_mtime_ns
        if self._context is None or state != self._since:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(self.keys / "server.crt", self.keys / "server.key")
            self._context = context
            self._since = state
        return self._context

    def close(self) -> None:
        """Stop listening, and see the thread end: one that outlives Python can crash it."""
        self._listener.close()
