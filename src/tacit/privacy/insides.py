"""What a network consists of and remembers, to see whether a forward pass changes it."""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tacit.core import BadInput
from tacit.privacy.perexample import CannotClip

TORCHS = frozenset(vars(nn.Module()))  # attributes that torch keeps in every module
AGAIN = frozenset({"_flat_weights", "_flat_weight_refs"})  # of an LSTM: its parameters once more
PLAIN = (type(None), bool, int, float, complex, str, bytes)
GROUPS = (list, tuple, set, frozenset, deque)


@dataclass(frozen=True)
class Insides:
    """What a network consists of at one moment, and the state of chance."""

    tensors: dict[str, Tensor]
    notes: dict[str, bytes]  # other attributes: what a forward pass may count or remember
    chance: bytes

    @classmethod
    def of(cls, model: nn.Module, device: torch.device) -> Insides:
        """Copy what is there now."""
        parts = {f"parameter {k!r}": p.detach().clone() for k, p in model.named_parameters()}
        buffers = {f"buffer {k!r}": b.detach().clone() for k, b in model.named_buffers()}
        return cls(parts | buffers, _notes(model), chance(device))

    def check(self, later: Insides, *, drew: bool = True) -> None:
        """Refuse what a forward pass has changed, bit by bit.

        Args:
            later: what was there afterwards
            drew: whether random numbers that were drawn meanwhile were drawn by the pass
        """
        for name, t in self.tensors.items():
            if not _equal(t, later.tensors.get(name)):
                raise BadInput(
                    f"model: {name} changes in the forward pass in train mode, so one example "
                    "shows in the gradients of later ones; use nn.GroupNorm or nn.LayerNorm "
                    "instead of running statistics"
                )
        for name in sorted(self.notes.keys() | later.notes.keys()):
            if self.notes.get(name) != later.notes.get(name):
                raise BadInput(
                    f"model: attribute {name} changes in the forward pass, so what it does to one "
                    "example may depend on those before; private training needs a function"
                )
        if drew and self.chance != later.chance:
            raise BadInput(
                "model: its forward pass draws random numbers in train mode (dropout?): one "
                "example more shifts those of all others, so private training has none; "
                "remove them, or set p = 0"
            )


@dataclass(frozen=True)
class Memory:
    """What private training must leave as it is: all but the weights that it trains."""

    notes: dict[str, bytes]

    @classmethod
    def of(cls, model: nn.Module) -> Memory:
        """Note what is there now."""
        frozen = {k: p for k, p in model.named_parameters() if not p.requires_grad}
        fixed = {k: digest(t) for k, t in (*frozen.items(), *model.named_buffers())}
        return cls(fixed | _notes(model))

    def check(self, model: nn.Module) -> None:
        """Fail, by an error that is charged, if it is no longer so: data have decided on that.

        The network was tried on random inputs, and kept nothing of those.
        """
        later = Memory.of(model).notes
        for name in sorted(self.notes.keys() | later.keys()):
            if self.notes.get(name) != later.get(name):
                raise CannotClip(
                    f"{name} of the network changed in training, so one example may show in the "
                    "gradients of later ones"
                )


def _notes(model: nn.Module) -> dict[str, bytes]:
    """Return a digest of each attribute that is no parameter, buffer or layer, of all modules."""
    return {
        f"{part}.{key}".lstrip("."): digest(value)
        for part, module in model.named_modules()
        for key, value in (_of_classes(type(module)) | vars(module)).items()
        if key not in TORCHS and not (key in AGAIN and isinstance(module, nn.RNNBase))
    }


def _of_classes(kind: type) -> dict[str, Any]:
    """Return the attributes of a module's classes that are not torch's."""
    own = [c for c in kind.__mro__ if c.__module__.partition(".")[0] not in ("torch", "builtins")]
    return {k: v for c in reversed(own) for k, v in vars(c).items() if not k.startswith("__")}


def chance(device: torch.device) -> bytes:
    """Return a digest of the states of all generators that a forward pass may draw from."""
    on_device = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    own = np.random.get_state()  # noqa: NPY002
    return digest([torch.get_rng_state(), *on_device, own, random.getstate()])


def _equal(a: Tensor, b: Tensor | None) -> bool:
    """Tell whether two tensors are the same to the bit, numbers that are none included."""
    return (
        b is not None and a.shape == b.shape and bool(torch.equal(a.nan_to_num(), b.nan_to_num()))
    )


def digest(value: object) -> bytes:
    """Return a digest of anything, which is another one if anything in it changes."""
    made = hashlib.blake2b(digest_size=16)
    seen: dict[int, object] = {}  # the objects themselves, so that no number is given out again
    waiting = [value]
    while waiting:
        item = waiting.pop()
        made.update(type(item).__name__.encode())
        if not isinstance(item, PLAIN):
            if id(item) in seen:
                continue
            seen[id(item)] = item
        told, inside = _taken_apart(item)
        made.update(told)
        waiting.extend(inside)
    return made.digest()


def _taken_apart(item: object) -> tuple[bytes, list[Any]]:
    """Return what can be told of an object itself, and the objects that it consists of."""
    if isinstance(item, Tensor) and item.layout == torch.strided and not item.is_quantized:
        raw = item.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return repr(item.shape).encode() + raw.numpy().tobytes(), []
    if isinstance(item, np.ndarray) and not item.dtype.hasobject:
        return repr(item.shape).encode() + item.tobytes(), []
    if isinstance(item, Mapping):
        return b"", [part for pair in item.items() for part in pair]
    if isinstance(item, GROUPS):
        return str(len(item)).encode(), sorted(item, key=repr) if isinstance(item, set) else [*item]
    if (state := _generator(item)) is not None:
        return b"", [state]
    try:
        return b"", [vars(item)]
    except TypeError:  # it has no attributes: a number, a word, something written in C
        return repr(item).encode(), []


def _generator(item: object) -> Any:
    """Return the state of a generator of random numbers, if it is one."""
    if isinstance(item, torch.Generator):
        return item.get_state()
    if isinstance(item, np.random.Generator):
        return item.bit_generator.state
    if isinstance(item, np.random.RandomState):
        return item.get_state()
    return item.getstate() if isinstance(item, random.Random) else None
