"""Objects to bytes and back: JSON for the shape, safetensors for the numbers. May import core.

No pickle: reading a message or a file can build plain values, tensors and the frozen dataclasses of
this package and of code that the owner of this process has named, and nothing else, so a peer
cannot run code here.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
import shutil
import tempfile
import weakref
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from safetensors.torch import save_file as save_tensors_as
from torch import Tensor

from tacit.core import BadInput, Damaged, Json, Params, PublicFloat, PublicInt
from tacit.core.files import atomically
from tacit.core.files import remove_parts as remove_parts
from tacit.core.files import write_atomically as write_atomically
from tacit.core.own_code import trusted, wire_name

# What no honest message or file comes near: whatever is beyond is refused before it costs much.
DEPTH = 64  # of values within values
DIGITS = 40  # of a whole number
LONGEST = 1 << 28  # characters of a skeleton; a peer's are held to fewer
ALIGN = 64  # bytes: where the numbers of a stored blob begin
# of numbers that a blob may hold, in the order that it has them
KINDS = {
    "U64": torch.uint64,
    "I64": torch.int64,
    "F64": torch.float64,
    "C64": torch.complex64,
    "F32": torch.float32,
    "U32": torch.uint32,
    "I32": torch.int32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "U16": torch.uint16,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
WORDS = {kind: (place, word) for place, (word, kind) in enumerate(KINDS.items())}


def encode(obj: object) -> tuple[str, dict[str, Tensor]]:
    """Return a JSON skeleton and the tensors it points to."""
    tensors: dict[str, Tensor] = {}
    return json.dumps(_skeleton(obj, tensors)), tensors


def tensors_in(obj: object) -> list[Tensor]:
    """Return the tensors that an object consists of."""
    tensors: dict[str, Tensor] = {}
    _skeleton(obj, tensors)
    return list(tensors.values())


def _skeleton(o: object, tensors: dict[str, Tensor]) -> object:
    """Return what JSON can hold, and add tensors to those that it points to.

    Not a function within :func:`encode`: one that calls itself would keep all tensors in memory
    until the next collection of garbage.
    """
    if o is None or isinstance(o, bool | int | float | str):
        return o
    if isinstance(o, Tensor):
        tensors[key := f"{len(tensors):06d}"] = o.detach()
        return {"$": "tensor", "key": key}
    if isinstance(o, dict):
        items = {_name(k): _skeleton(v, tensors) for k, v in o.items()}
        return (
            {"$": "params", "items": items, "released": o.released}
            if isinstance(o, Params)
            else {"$": "dict", "items": items}
        )
    if isinstance(o, list | tuple):
        return {"$": type(o).__name__, "items": [_skeleton(v, tensors) for v in o]}
    if is_dataclass(o) and trusted(module := wire_name(type(o).__module__)):
        name = f"{module}:{type(o).__qualname__}"
        values = {f.name: _skeleton(getattr(o, f.name), tensors) for f in fields(o)}
        return {"$": name, "items": values}
    raise TypeError(f"cannot send a {type(o).__qualname__}")


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
    only: Collection[type] | None = None,
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

    def leaf(o: object) -> object:
        if isinstance(o, list):
            raise BadInput("message: not one of ours (a bare list)")
        return _public(o) if known else o

    def go(o: object, depth: int = 0) -> Any:
        if depth > DEPTH:
            raise BadInput(f"message: nested more than {DEPTH} deep")
        if not isinstance(o, dict):
            return leaf(o)
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


def _point(built: Json) -> Params:
    if not all(isinstance(v, Tensor) for v in built.values()):
        raise BadInput("message: a point of parameter space must consist of tensors")
    return Params(built)


def _public(o: object) -> object:
    """Return a number as a public one, anything else as it is."""
    if isinstance(o, bool) or not isinstance(o, int | float):
        return o
    return PublicInt(o) if isinstance(o, int) else PublicFloat(o)


def _dataclass(kind: str, only: Collection[type] | None) -> Any:
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
    return _blob(_plain(tensors), text)


def _blob(tensors: dict[str, Tensor], text: str) -> bytes:
    """Return what safetensors would, byte for byte, with each number copied once."""
    if any(v.dtype not in WORDS for v in tensors.values()):
        return save_tensors(tensors, metadata={"json": text})
    about: Json = {"__metadata__": {"json": text}}
    end = 0
    ordered = sorted(tensors.items(), key=lambda item: (WORDS[item[1].dtype][0], item[0]))
    for key, v in ordered:
        start, end = end, end + v.nbytes
        word = WORDS[v.dtype][1]
        about[key] = {"dtype": word, "shape": list(v.shape), "data_offsets": [start, end]}
    head = json.dumps(about, ensure_ascii=False, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    numbers = (_bits(v).numpy().data for _, v in ordered)
    return b"".join([len(head).to_bytes(8, "little"), head, *numbers])


def _plain(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors that lie in memory as in a file; what does already is not copied."""
    plain: dict[str, Tensor] = {}
    seen: set[int] = set()
    for key, value in tensors.items():
        v = value.to("cpu", memory_format=torch.contiguous_format)
        # safetensors takes no two tensors with memory in common
        whole = v.untyped_storage().nbytes() == v.nbytes and not v.is_conj() and not v.is_neg()
        if not (whole and v.is_contiguous()) or v.data_ptr() in seen:
            v = value.to("cpu", copy=True, memory_format=torch.contiguous_format)
        seen.add(v.data_ptr())
        plain[key] = v
    return plain


class Stored:
    """A packed object in a file, for as long as somebody holds this: too large to be in memory.

    The file has no name, so it is gone with its last holder, however that ends. What is unpacked
    of it takes memory only where it is looked at, and only for as long as it is held. Whoever
    writes to its tensors changes them for all.
    """

    def __init__(self, source: BinaryIO, folder: Path, longest: int = LONGEST) -> None:
        """Take what follows in a source; :class:`BadInput` if that is not a packed object."""
        size = int.from_bytes(source.read(8), "little")
        text = source.read(min(size, _most(longest) + 1))
        with _refusing():
            self.about: Json = parse_json(text, _most(longest))
        # blanks at its end are allowed, and have the numbers begin where they are read fastest
        text += b" " * (-(8 + len(text)) % ALIGN)
        self._start = 8 + len(text)
        with tempfile.NamedTemporaryFile(dir=folder) as named:
            named.write(len(text).to_bytes(8, "little") + text)
            shutil.copyfileobj(source, named, 1 << 20)
            named.flush()
            self._size = 8 + size + named.tell() - self._start
            with _refusing(), safe_open(named.name, framework="pt"):
                pass  # every place and size has been looked at
            self._file = os.open(named.name, os.O_RDWR)
        weakref.finalize(self, os.close, self._file)

    def __len__(self) -> int:
        """Return how many bytes came."""
        return self._size

    def tensors(self) -> dict[str, Tensor]:
        """Return its tensors, whose numbers are read when they are looked at."""
        whole = mmap.mmap(self._file, 0)
        return {k: self._tensor(whole, v) for k, v in self.about.items() if k != "__metadata__"}

    def _tensor(self, whole: mmap.mmap, about: Json) -> Tensor:
        kind, shape, (start, end) = KINDS[about["dtype"]], about["shape"], about["data_offsets"]
        count = math.prod(shape)
        if count * kind.itemsize != end - start or (self._start + start) % kind.itemsize:
            raise BadInput("message: a tensor that is not where it should be")
        if not count:
            return torch.empty(shape, dtype=kind)
        at = self._start + start
        return torch.frombuffer(whole, dtype=kind, count=count, offset=at).reshape(shape)


class Opened:
    """A packed object that was unpacked when it came, while others were still on their way."""

    def __init__(self, blob: bytes) -> None:
        """Unpack one of our own."""
        self._size = len(blob)
        self.value = unpack(blob)

    def __len__(self) -> int:
        """Return how many bytes came."""
        return self._size


Blob = bytes | Stored | Opened  # a packed object


def unpack(
    blob: Blob,
    *,
    known: bool = False,
    longest: int = LONGEST,
    only: Collection[type] | None = None,
) -> Any:
    """Rebuild what :func:`pack` made.

    Anything damaged, foreign or beyond the limits is refused with :class:`BadInput`; see
    :func:`decode`.
    """
    if isinstance(blob, Opened):
        return blob.value
    meta, tensors = _opened(blob, longest)
    with _refusing():
        return decode(meta["json"], tensors, known=known, longest=longest, only=only)


def _opened(
    blob: bytes | Stored, longest: int = LONGEST
) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return what a blob says of itself, and its tensors."""
    with _refusing():
        if isinstance(blob, Stored):
            about = blob.about
        else:
            size, most = int.from_bytes(blob[:8], "little"), _most(longest)
            about = parse_json(blob[8 : 8 + min(size, most + 1)], most)
        meta = about["__metadata__"]
        found = {"json": meta["json"], "seal": meta.get("seal", "")}
        return found, blob.tensors() if isinstance(blob, Stored) else load_tensors(blob)


def _most(longest: int) -> int:
    """Return how much a blob may say of itself: a skeleton, quoted, and what each tensor is."""
    return 3 * longest


@contextmanager
def _refusing() -> Iterator[None]:
    """Refuse what is damaged or foreign, in one line."""
    try:
        yield
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
    with atomically(path, durable=durable) as part:
        save_tensors_as(plain, part, metadata={"json": text, "seal": seal})
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
        with _refusing():
            return decode(meta["json"], tensors), seal
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
