"""Objects to bytes and back: JSON for the shape, safetensors for the numbers. May import core.

No pickle: reading a message or a file can build plain values, tensors and the frozen dataclasses of
this package and of code that the owner of this process has named, and nothing else, so a peer
cannot run code here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from tacit.core import BadInput, Damaged, Params, PublicFloat, PublicInt
from tacit.core.files import remove_parts as remove_parts
from tacit.core.files import write_atomically as write_atomically
from tacit.core.own_code import trusted, wire_name

# What no honest message or file comes near: whatever is beyond is refused before it costs much.
DEPTH = 64  # of values within values
DIGITS = 40  # of a whole number
LONGEST = 1 << 28  # characters of a skeleton; a peer's are held to fewer


def encode(obj: object) -> tuple[str, dict[str, Tensor]]:
    """Return a JSON skeleton and the tensors it points to."""
    tensors: dict[str, Tensor] = {}

    def go(o: object) -> Any:
        if o is None or isinstance(o, bool | int | float | str):
            return o
        if isinstance(o, Tensor):
            tensors[key := f"{len(tensors):06d}"] = o.detach()
            return {"$": "tensor", "key": key}
        if isinstance(o, dict):
            items = {_name(k): go(v) for k, v in o.items()}
            return (
                {"$": "params", "items": items, "released": o.released}
                if isinstance(o, Params)
                else {"$": "dict", "items": items}
            )
        if isinstance(o, list | tuple):
            return {"$": type(o).__name__, "items": [go(v) for v in o]}
        if is_dataclass(o) and trusted(module := wire_name(type(o).__module__)):
            name = f"{module}:{type(o).__qualname__}"
            return {"$": name, "items": {f.name: go(getattr(o, f.name)) for f in fields(o)}}
        raise TypeError(f"cannot send a {type(o).__qualname__}")

    return json.dumps(go(obj)), tensors


def _name(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"cannot send a mapping with the key {key!r}: keys must be strings")
    return key


def decode(
    text: str,
    tensors: dict[str, Tensor],
    *,
    known: bool = False,
    longest: int = LONGEST,
    only: Collection[type[Any]] | None = None,
) -> Any:
    """Rebuild what :func:`encode` took apart.

    Args:
        text: the JSON skeleton
        tensors: what it points to, each once
        known: it comes from the server, so its points are released and its numbers public
        longest: characters that the skeleton may have
        only: the dataclasses that may be built; None: all that can be
    """
    unused = dict(tensors)

    def go(o: object, depth: int = 0) -> Any:
        if depth > DEPTH:
            raise BadInput(f"message: nested more than {DEPTH} deep")
        if not isinstance(o, dict):
            if isinstance(o, list):
                raise BadInput("message: not one of ours (a bare list)")
            return _public(o) if known else o
        kind = o["$"]
        items: Any = o.get("items")
        if kind == "tensor":
            return unused.pop(o["key"])
        if kind in ("list", "tuple"):
            return (list if kind == "list" else tuple)(go(v, depth + 1) for v in items)
        built = {k: go(v, depth + 1) for k, v in items.items()}
        if kind == "dict":
            return built
        if kind == "params":
            return _point(built).as_released(known or bool(o["released"]))
        return _dataclass(kind, only)(**built)

    whole = go(parse_json(text, longest))
    if unused:
        raise BadInput(f"message: {len(unused)} tensors that nothing points to")
    return whole


def parse_json(text: str | bytes, longest: int) -> Any:
    """Read JSON from elsewhere: not too long, not too deep, no number of a thousand digits."""
    if len(text) > longest:
        raise BadInput(f"message: {len(text):,} characters of JSON: must be at most {longest:,}")
    try:
        return json.loads(text, parse_int=_whole)
    except RecursionError:
        raise BadInput("message: nested too deeply") from None


def _whole(digits: str) -> int:
    if len(digits) > DIGITS:
        raise BadInput(f"message: a number of {len(digits):,} digits: must be at most {DIGITS}")
    return int(digits)


def _point(built: dict[str, Any]) -> Params:
    if not all(isinstance(v, Tensor) for v in built.values()):
        raise BadInput("message: a point of parameter space must consist of tensors")
    return Params(built)


def _public(o: object) -> Any:
    """Return a number as a public one, anything else as it is."""
    if isinstance(o, bool) or not isinstance(o, int | float):
        return o
    return PublicInt(o) if isinstance(o, int) else PublicFloat(o)


def _dataclass(kind: str, only: Collection[type[Any]] | None) -> Any:
    """Return a dataclass of this package, or of code that was named in this process.

    Modules are looked up, never imported, on a peer's word.
    """
    module, _, name = kind.partition(":")
    cls: Any = trusted(module)
    for part in name.split("."):
        cls = vars(cls).get(part) if cls is not None else None
    if not (isinstance(cls, type) and is_dataclass(cls)):
        raise BadInput(
            f"message: refusing to build {kind!r}: neither a dataclass of this package "
            "nor of code that was named here"
        )
    if only is not None and cls not in only:
        raise BadInput(f"message: a {cls.__name__} does not belong here")
    return cls


def pack(obj: object) -> bytes:
    """Return one self-contained safetensors blob; the same object always gives the same bytes."""
    text, tensors = encode(obj)
    return save_tensors(_plain(tensors), metadata={"json": text})


def _plain(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        k: v.to("cpu", copy=True, memory_format=torch.contiguous_format) for k, v in tensors.items()
    }


def unpack(
    blob: bytes,
    *,
    known: bool = False,
    longest: int = LONGEST,
    only: Collection[type[Any]] | None = None,
) -> Any:
    """Rebuild what :func:`pack` made.

    Anything damaged, foreign or beyond the limits is refused with :class:`BadInput`; see
    :func:`decode`.
    """
    meta, tensors = _opened(blob, longest)
    try:
        return decode(meta["json"], tensors, known=known, longest=longest, only=only)
    except json.JSONDecodeError as e:
        raise BadInput(f"message: cut short or damaged ({str(e)[:200]})") from None
    except (KeyError, TypeError, AttributeError, OverflowError) as e:
        raise BadInput(f"message: not one of ours ({repr(e)[:200]})") from None


def _opened(blob: bytes, longest: int = LONGEST) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return what a blob says of itself, and its tensors."""
    try:
        size = int.from_bytes(blob[:8], "little")
        # a skeleton is quoted in there, and every tensor is described
        text = parse_json(blob[8 : 8 + min(size, 3 * longest + 1)], 3 * longest)
        meta = text["__metadata__"]
        return {"json": meta["json"], "seal": meta.get("seal", "")}, load_tensors(blob)
    except (SafetensorError, json.JSONDecodeError, UnicodeDecodeError) as e:
        raise BadInput(f"message: cut short or damaged ({str(e)[:200]})") from None
    except (KeyError, TypeError, AttributeError, OverflowError) as e:
        raise BadInput(f"message: not one of ours ({repr(e)[:200]})") from None


def save(obj: object, path: Path, *, place: str, durable: bool = False) -> str:
    """Write an object to a file that shows when it was changed or moved; return its seal.

    Args:
        obj: what :func:`encode` can take apart
        path: of the file
        place: what the file is of; it can be read only as that
        durable: see to it that it outlasts a power failure
    """
    text, tensors = encode(obj)
    plain = _plain(tensors)
    seal = seal_of(place, text, plain)
    blob = save_tensors(plain, metadata={"json": text, "seal": seal})
    write_atomically(path, blob, durable=durable)
    return seal


def load(path: Path, *, place: str) -> Any:
    """Read an object that :func:`save` wrote for this place, or say in one line why not."""
    return load_sealed(path, place)[0]


def load_sealed(path: Path, place: str) -> tuple[Any, str]:
    """Read an object and its seal."""
    try:
        blob = path.read_bytes()
        meta, tensors = _opened(blob)
        if meta["seal"] != (seal := seal_of(place, meta["json"], tensors)):
            raise Damaged("damaged, or not of this place (its checksum is not its own)")
        return unpack(blob), seal
    except OSError as e:
        raise Damaged(f"{path}: cannot be read ({e.strerror})") from None
    except BadInput as e:
        raise Damaged(f"{path}: {e}") from None


def seal_of(place: str, text: str, tensors: dict[str, Tensor]) -> str:
    """Return a checksum of a place and of what lies there."""
    h = hashlib.blake2b(digest_size=16)
    shapes = {k: [str(v.dtype), *v.shape] for k, v in sorted(tensors.items())}
    h.update(json.dumps([place, text, shapes]).encode())
    for key in shapes:
        h.update(_bits(tensors[key]).numpy().data)
    return h.hexdigest()


def same(a: object, b: object) -> bool:
    """Tell whether two objects are equal, bit for bit."""
    (text_a, tensors_a), (text_b, tensors_b) = encode(a), encode(b)
    return text_a == text_b and all(
        t.dtype == tensors_b[k].dtype
        and t.shape == tensors_b[k].shape
        and torch.equal(_bits(t), _bits(tensors_b[k]))
        for k, t in tensors_a.items()
    )


def _bits(t: Tensor) -> Tensor:
    return t.contiguous().reshape(-1).view(torch.uint8)
