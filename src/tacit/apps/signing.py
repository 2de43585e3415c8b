"""Every request of a site is signed: by whom, what, when, and for one call only.

A signature covers the authority of the coordinator that it is meant for, method, path, the digest
of the body, the time and a number that is used once. The gate checks it before it reads a body, and
the register at every request, so that a key that is revoked is of no use from that moment on.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import heapq
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from tacit.apps import keys
from tacit.apps.listener import Denied
from tacit.core import BadInput

TOLERANCE = 300.0  # seconds by which a site's clock and the coordinator's may differ
ROOM = 4096  # signatures that are remembered of one key
KEY, TIME, NONCE = "tacit-key", "tacit-time", "tacit-nonce"
DIGEST, SIGNATURE, CLOCK = "tacit-digest", "tacit-signature", "tacit-clock"
SIGNED = (KEY, TIME, NONCE, DIGEST, SIGNATURE)
HASH = ec.ECDSA(hashes.SHA256())


def _text(authority: str, method: str, path: str, digest: str, when: str, nonce: str) -> bytes:
    """Return what is signed."""
    return "\n".join(["tacit request 1", authority, method, path, digest, when, nonce]).encode()


@dataclass(frozen=True)
class Signer:
    """Signs a site's requests."""

    private: keys.PrivateKey
    authority: str  # of the coordinator that they are for

    def headers(self, method: str, path: str, body: bytes) -> dict[str, str]:
        """Return the headers of one request; they are of no use for a second."""
        digest, nonce = hashlib.sha256(body).hexdigest(), secrets.token_hex(16)
        when = f"{time.time():.6f}"
        text = _text(self.authority, method, path, digest, when, nonce)
        signature = base64.b64encode(self.private.sign(text, HASH)).decode()
        name = keys.fingerprint(self.private.public_key())
        return {KEY: name, TIME: when, NONCE: nonce, DIGEST: digest, SIGNATURE: signature}


@dataclass
class Nonces:
    """The signatures of one key that have been used: as many as there is room for.

    Where the oldest is forgotten, whatever is as old as that is refused.
    """

    room: int = ROOM
    _floor: float = 0.0
    _used: set[str] = field(default_factory=set)
    _ages: list[tuple[float, str]] = field(default_factory=list)

    def take(self, nonce: str, when: float) -> bool:
        """Note a nonce, and tell whether it is new."""
        if nonce in self._used or when <= self._floor:
            return False
        self._used.add(nonce)
        heapq.heappush(self._ages, (when, nonce))
        if len(self._ages) > self.room:
            self._floor, oldest = heapq.heappop(self._ages)
            self._used.discard(oldest)
        return True


class Guard:
    """Tells whose request it is, by the register as it is at that moment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = keys.authority_of((folder / "ca.crt").read_bytes())
        self._state: tuple[int, ...] = ()
        self._register: dict[str, tuple[str, ec.EllipticCurvePublicKey]] = {}
        self._used: dict[str, Nonces] = {}

    def names(self) -> frozenset[str]:
        """Return who may connect now."""
        return frozenset(name for name, _ in self._known().values())

    def check(self, method: str, path: str, headers: Mapping[str, str]) -> str:
        """Return the name of the site that signed a request, or raise :class:`Denied`."""
        key, when, nonce, digest, signature = (headers.get(h, "") for h in SIGNED)
        try:
            known = self._known().get(key)
        except BadInput:
            raise Denied(503, "the register cannot be read") from None
        if known is None:
            raise Denied(403, "unknown key")
        text = _text(self.authority, method, path, digest, when, nonce)
        if len(nonce) > 64 or not _signed(known[1], signature, text):
            raise Denied(403, "wrong signature")
        self._check_time(key, when, nonce)
        return known[0]

    def _check_time(self, key: str, when: str, nonce: str) -> None:
        if not re.fullmatch(r"[0-9]{1,12}\.[0-9]{6}", when):
            raise Denied(403, "not a time")
        ahead = float(when) - time.time()
        if abs(ahead) > TOLERANCE:
            raise Denied(401, "clock", {CLOCK: f"{ahead:.0f}"})
        if not self._used.setdefault(key, Nonces()).take(nonce, float(when)):
            raise Denied(401, "used before")

    def _known(self) -> dict[str, tuple[str, ec.EllipticCurvePublicKey]]:
        """Return names and keys by fingerprint, read again whenever the file has changed."""
        try:
            stat = (self.folder / "sites.json").stat()
        except OSError:
            raise BadInput(f"keys = '{self.folder}': cannot be read") from None
        state = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        if state != self._state:
            self._register = {
                keys.fingerprint(key): (name, key)
                for name, key in keys.public_keys(self.folder).items()
            }
            self._state = state
        return self._register


def _signed(key: ec.EllipticCurvePublicKey, signature: str, text: bytes) -> bool:
    try:
        key.verify(base64.b64decode(signature, validate=True), text, HASH)
    except (InvalidSignature, binascii.Error, ValueError):
        return False
    return True


def matches(body: bytes, headers: Mapping[str, str]) -> bool:
    """Tell whether a body is the one that was signed."""
    return hashlib.sha256(body).hexdigest() == headers.get(DIGEST, "")
