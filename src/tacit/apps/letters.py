"""A letter as bytes: a small head, then the packed call or answer as it is.

Nothing is parsed here but two lengths, so whoever opens a letter decides what to make of its words.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from tacit.codec import Stored
from tacit.core import BadInput
from tacit.engines.flower import InFile, packed
from tacit.engines.messages import LONGEST_ANSWER

SIZES = struct.Struct(">HI")  # bytes of the kind, and of what it is about
HEAD = 1 << 20  # bytes of both at most


def sealed(content: RecordDict) -> tuple[bytes, bytes]:
    """Return the head of a letter and its body, which may be large and is not copied."""
    record = content.config_records["head"]
    kind, about = str(record["kind"]).encode(), str(record["about"]).encode()
    small = record.get("packed")
    body = content.array_records["body"]["packed"].data if small is None else small
    assert isinstance(body, bytes)
    return SIZES.pack(len(kind), len(about)) + kind + about, body


def unsealed(letter: BinaryIO, folder: Path | None = None) -> RecordDict:
    """Read a letter, or refuse what is none.

    Args:
        letter: what came
        folder: for an answer that is too large for memory; None: it is in memory all the same
    """
    sizes = letter.read(SIZES.size)
    if len(sizes) < SIZES.size:
        raise BadInput("message: cut short")
    kind, about = SIZES.unpack(sizes)
    head = letter.read(kind + about) if kind + about <= HEAD else b""
    if len(head) != kind + about:
        raise BadInput("message: not one of ours")
    try:
        words = {"kind": head[:kind].decode(), "about": head[kind:].decode()}
    except UnicodeDecodeError:
        raise BadInput("message: not one of ours") from None
    if folder is not None:
        return InFile(words, Stored(letter, folder, LONGEST_ANSWER))
    body = packed(letter.read())
    if isinstance(body, bytes):
        return RecordDict({"head": ConfigRecord({**words, "packed": body})})
    return RecordDict({"head": ConfigRecord({**words}), "body": ArrayRecord({"packed": body})})
