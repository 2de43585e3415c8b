"""The only door to the outside.

It lets registered sites reach Flower's Fleet API, and nobody reach anything else.

Flower serves its fleet, control and runtime APIs at one address, and whoever reaches the control
API can submit code. So Flower listens on loopback alone, and this gate, on the public address,
passes on the calls that a site makes.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import ssl
import threading
import time
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from tacit.core import BadInput

PREFIX = "/v1/fleet/"
CALLS = frozenset(
    [
        "activate-node",
        "deactivate-node",
        "send-node-heartbeat",
        "pull-messages",
        "push-messages",
        "pull-object",
        "push-object",
        "confirm-message-received",
    ]
)
SELF_REGISTRATION = frozenset(["register-node", "unregister-node"])  # without keys, on loopback
REQUEST = 16 << 20  # bytes of one call at most; Flower sends arrays in chunks of 5 MiB
HEADERS = frozenset(
    ["content-type", "accept", "flwr-public-key", "flwr-signature", "flwr-timestamp"]
)
log = logging.getLogger("tacit.gate")


class Gate:
    """An ASGI application that forwards, and the thread that serves it."""

    def __init__(
        self, inside: str, *, keys: Collection[bytes] | None, limit: int, ca: Path | None = None
    ) -> None:
        self.inside, self.limit = inside, limit
        self.keys = None if keys is None else {base64.b64encode(k).decode() for k in keys}
        self.calls = CALLS if keys is not None else CALLS | SELF_REGISTRATION
        self.pushed: Counter[str] = Counter()  # bytes of the message that each key is sending
        self.bytes_in = self.bytes_out = 0
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        verify: Any = ssl.create_default_context(cafile=str(ca)) if ca else False
        self.client = httpx.AsyncClient(
            base_url=inside, verify=verify, timeout=60.0, trust_env=False
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        try:
            await self._reply(scope, receive, send)
        # the gate closes; a site may ask again, if there is somebody again
        except asyncio.CancelledError:
            with contextlib.suppress(RuntimeError):  # an answer had begun
                await _answer(send, 503, b"closing")

    async def _reply(self, scope: Any, receive: Any, send: Any) -> None:
        call = scope["path"].removeprefix(PREFIX)
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
        if (
            scope["method"] != "POST"
            or not scope["path"].startswith(PREFIX)
            or call not in self.calls
        ):
            log.warning("refused %s %s from %s", scope["method"], scope["path"], scope["client"])
            return await _answer(send, 404, b"not here")
        key = headers.get("flwr-public-key", "")
        if self.keys is not None and key not in self.keys:
            log.warning("refused an unknown key from %s", scope["client"])
            return await _answer(send, 403, b"unknown key")
        body = await _body(receive, REQUEST)
        if body is None or not self._admits(call, key, len(body)):
            log.warning("refused a message from %s: too large", scope["client"])
            return await _answer(send, 413, b"too large")
        status, content, kind = await self._forward(scope["path"], body, headers)
        self.bytes_in += len(body)
        self.bytes_out += len(content)
        await _answer(send, status, content, kind)

    def _admits(self, call: str, key: str, size: int) -> bool:
        """Count what a site pushes for one message, and tell whether that is within the limit."""
        if call == "push-messages":
            self.pushed[key] = 0
        if call != "push-object":
            return True
        self.pushed[key] += size
        # a message's own parts come on top of its payload
        return self.pushed[key] <= self.limit + REQUEST

    async def _forward(
        self, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, bytes, str]:
        kept = {k: v for k, v in headers.items() if k in HEADERS or k.startswith("flwr-")}
        try:
            answer = await self.client.post(path, content=body, headers=kept)
        except httpx.TransportError:
            return 503, b"starting", "text/plain"
        return answer.status_code, answer.content, answer.headers.get("content-type", "")

    def serve(self, host: str, port: int, certificate: tuple[Path, Path] | None) -> None:
        """Listen in a thread of its own; return when sites can connect."""
        files: Any = (
            {"ssl_certfile": str(certificate[0]), "ssl_keyfile": str(certificate[1])}
            if certificate
            else {}
        )
        quiet: Any = {
            "log_config": None,
            "access_log": False,
            "lifespan": "off",
            "ws": "none",
            "server_header": False,
        }
        server = uvicorn.Server(
            uvicorn.Config(self, host=host, port=port, limit_concurrency=1000, **files, **quiet)
        )
        failed: list[BaseException] = []

        def run() -> None:
            try:
                server.run()
            except BaseException as e:
                failed.append(e)

        self._server, self._thread = server, threading.Thread(target=run, name="gate", daemon=True)
        self._thread.start()
        while not server.started:
            if not self._thread.is_alive():
                why = failed[0] if failed else "no reason given"
                raise BadInput(f"host = {host!r}, port = {port}: cannot listen there ({why})")
            time.sleep(0.02)

    def close(self) -> None:
        """Stop listening, and see the thread end: one that outlives the interpreter can crash it."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = self._server.force_exit = True
            self._thread.join(timeout=10)


async def _body(receive: Any, limit: int) -> bytes | None:
    """Return the body of a request, or None if it is too large."""
    parts, size, more = [], 0, True
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            return None
        parts.append(event.get("body", b""))
        size, more = size + len(parts[-1]), event.get("more_body", False)
        if size > limit:
            return None
    return b"".join(parts)


async def _answer(send: Any, status: int, content: bytes, kind: str = "text/plain") -> None:
    headers = [(b"content-type", kind.encode()), (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
