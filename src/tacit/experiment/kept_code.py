"""The source of a user's own network, kept with a run, and when it may be run again.

A run directory may come from anybody, so nothing in it is run because it is there. What the owner
of this account named when the run was started carries a seal that only this account can make; it is
run again without a question. For anything else somebody has to say so, having been told what it is.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.core import BadInput, Json
from tacit.core.files import write_atomically
from tacit.core.own_code import anywhere, bare, is_code
from tacit.synthesis import encoder_file

if TYPE_CHECKING:
    from tacit.experiment.rundir import RunDir

ENCODER = "encoder.safetensors"  # in a run directory: the public encoder that it was run with
CODE = "code.json"  # in a run directory: what is kept in code/, by the words that name it
NAME = "name the code yourself, with --model file.py:Name"


def keep_code(directory: RunDir, word: str) -> None:
    """Keep the source that a word names with the run, sealed as named by this account's owner.

    An encoder's file is kept as it is: whoever has the run has all of its model.
    """
    if encoder_file.is_file(word):
        directory.put(ENCODER, encoder_file.read(Path(encoder_file.path_of(word)))[1])
        return
    if not is_code(word):
        return
    where, name = _parts(anywhere(word))
    file = ""
    source = b""
    if where.endswith(".py"):
        source = Path(where).read_bytes()
        file = f"code/{Path(where).stem}-{hashlib.sha256(source).hexdigest()[:8]}.py"
        (directory.folder / "code").mkdir(exist_ok=True)
        directory.put(file, source)
    known = {**_known(directory), anywhere(word): {"file": file, "seal": _seal(name, source)}}
    directory.put(CODE, json.dumps(known, indent=1).encode())


def runnable(
    directory: RunDir, word: str, *, trust: bool = False, say: Callable[[str], None] | None = None
) -> str:
    """Return the word by which a run's own code is loaded: its source as kept with the run.

    Args:
        directory: of the run
        word: as the run names it; one that names no code is returned as it is
        trust: whether whoever asks has said that code from this directory may run
        say: is told what is executed; default: standard error
    """
    if encoder_file.is_file(word):
        return _kept_encoder(directory, word)
    if not is_code(word):
        return word
    record = _known(directory).get(word)
    if not isinstance(record, dict):
        raise BadInput(f"'{directory.folder}': the source of {word!r} is not kept with it; {NAME}")
    file = str(record.get("file", ""))
    where, name = _parts(word)
    source = directory.get(file) if file else b""
    what = f"{directory.folder / file}" if file else where
    if not trust and not _vouched(str(record.get("seal", "")), name, source):
        raise BadInput(
            f"'{directory.folder}': it needs the code {what}, and this account has not "
            "started the run; look at it, then --trust-code runs it"
        )
    (say or _say)(f"runs the code {what}, as it was when the run was started")
    return f"{directory.folder / file}:{name}" if file else word


def _kept_encoder(directory: RunDir, word: str) -> str:
    """Return the word for the copy of an encoder in a run directory, if there is one: no code."""
    file = directory.folder / ENCODER
    if not file.exists() or not encoder_file.digest_of(word):
        return word
    return f"{file}@{encoder_file.named(word).rpartition('@')[2]}"


def encoder_again(directory: RunDir, word: str) -> str:
    """Return the word by which a run that goes on finds its encoder: the file, or else the copy."""
    if not encoder_file.is_file(word) or Path(encoder_file.path_of(word)).is_file():
        return word
    return _kept_encoder(directory, word)


def to_continue(directory: RunDir, word: str, *, trust: bool = False) -> str:
    """Return the word by which a run that goes on loads its network, or what is in front of it.

    The file that was named, while it is as it was; else the source that was kept.
    """
    if not is_code(word) or word not in (known := _known(directory)):
        return word
    where, _ = _parts(word)
    file = str(known[word].get("file", ""))
    if not file or _same(Path(where), directory.get(file)):
        return word
    return runnable(directory, word, trust=trust)


def _say(text: str) -> None:
    print(f"tacit: {text}", file=sys.stderr, flush=True)  # noqa: T201


def _same(file: Path, source: bytes) -> bool:
    try:
        return file.read_bytes() == source
    except OSError:
        return False


def _known(directory: RunDir) -> Json:
    """Return what is kept, by the words that name it."""
    if not (directory.folder / CODE).exists():
        return {}
    known = json.loads(directory.get(CODE))
    return known if isinstance(known, dict) else {}


def _parts(word: str) -> tuple[str, str]:
    """Return where code is, and its name with the arguments that follow it."""
    where = bare(word).rpartition(":")[0]
    return where, word[len(where) + 1 :]


def _seal(name: str, source: bytes) -> str:
    """Return what shows that this account's owner has named the code; nothing without a home."""
    key = _key(make=True)
    return _keyed(key, name, source) if key else ""


def _vouched(seal: str, name: str, source: bytes) -> bool:
    key = _key(make=False)
    return bool(key and seal) and hmac.compare_digest(_keyed(key, name, source), seal)


def _keyed(key: bytes, name: str, source: bytes) -> str:
    text = len(name.encode()).to_bytes(8, "little") + name.encode() + source
    return hmac.new(key, text, "sha256").hexdigest()


def _key(*, make: bool) -> bytes:
    """Return this account's key; empty where there is none, and none can be made."""
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    file = Path(home) / "tacit" / "code.key"
    try:
        if make and not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, secrets.token_bytes(32), private=True)
        key = file.read_bytes()
    except OSError:
        return b""
    return key if len(key) == 32 else b""
