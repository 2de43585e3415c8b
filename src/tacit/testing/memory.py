"""What a method's code leaves behind outside its state, and how to undo it.

A run may go on in another process at any step, and there nothing is left of attributes, globals
and class attributes that were written to in this one.
"""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from tacit.core import Method, Task
from tacit.testing.places import written_at

CODE: tuple[type, ...] = (
    *(ModuleType, type, FunctionType, BuiltinFunctionType, Task),
    *(property, classmethod, staticmethod, cached_property),
)
BASES = ("abc", "builtins", "typing", "tacit.core.method")  # modules in which nothing can be left


def rebuilt(method: Method) -> Method:
    """Return a method made anew of its settings, as another process would make it."""
    given = {f.name: getattr(method, f.name) for f in fields(method) if f.init}
    return type(method)(**given)


def modules_of(cls: type) -> list[ModuleType]:
    """Return the modules that a class and those it extends are written in."""
    names = dict.fromkeys(c.__module__ for c in cls.__mro__ if c.__module__ not in BASES)
    return [sys.modules[name] for name in names if name in sys.modules]


def attributes(method: Method) -> dict[str, Any]:
    """Return all attributes of a method in a form that can be compared later.

    What ``cached_property`` keeps follows from the settings, so it is left out.
    """
    held = {n for c in type(method).__mro__ for n, v in vars(c).items() if _cached(v)}
    return {name: frozen(value) for name, value in vars(method).items() if name not in held}


def _cached(value: object) -> bool:
    return isinstance(value, cached_property)


def frozen(value: object) -> Any:
    """Return a value's content in a form that later changes do not reach."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), frozen(value.detach().cpu().numpy())
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, dict):
        return type(value).__name__, [(repr(k), frozen(v)) for k, v in value.items()]
    if isinstance(value, set | frozenset):
        return type(value).__name__, sorted(map(repr, value))
    if isinstance(value, list | tuple):
        return type(value).__name__, [frozen(v) for v in value]
    if is_dataclass(value) and not isinstance(value, type):
        return type(value).__name__, frozen({f.name: getattr(value, f.name) for f in fields(value)})
    return _generator(value)


def _generator(value: object) -> Any:
    """Return where a random generator stands, or the words for anything else."""
    if isinstance(value, np.random.Generator):
        return frozen(value.bit_generator.state)
    if isinstance(value, torch.Generator):
        return frozen(value.get_state())
    if isinstance(value, torch.nn.Module):
        return frozen(dict(value.state_dict()))
    return repr(value.getstate() if isinstance(value, random.Random) else value)


@dataclass(frozen=True)
class Memory:
    """The globals and class attributes that a method's code knows of, as they were at first."""

    cls: type
    first: dict[tuple[Any, str], Any] = field(default_factory=dict)
    looks: dict[tuple[Any, str], Any] = field(default_factory=dict)

    @classmethod
    def of(cls, method: Method) -> Memory:
        """Look at a method's code."""
        memory = cls(type(method))
        for place, value in memory._now():
            if (copied := _copied(value)) is not None:
                memory.first[place] = copied
                memory.looks[place] = frozen(value)
        return memory

    @cached_property
    def _modules(self) -> list[tuple[ModuleType, set[str]]]:
        """The modules of the code, each with the names that it mentions."""
        return [(module, _names_in(module)) for module in modules_of(self.cls)]

    def _now(self) -> Iterator[tuple[tuple[Any, str], Any]]:
        """Yield the data that the code's names stand for at present, and where they are."""
        for module, known in self._modules:
            for name, value in list(vars(module).items()):
                if name in known and not name.startswith("__") and not isinstance(value, CODE):
                    yield (module, name), value
        for c in self.cls.__mro__:
            for name, value in list(vars(c).items()):
                own = c.__module__ not in BASES and not name.startswith(("__", "_abc_"))
                if own and not isinstance(value, CODE):
                    yield (c, name), value

    def changed(self) -> list[str]:
        """Return in words which of them are no longer what they were."""
        return [
            _words(place) + written_at(place[1], modules_of(self.cls))
            for place, value in self._now()
            if place not in self.looks or self.looks[place] != frozen(value)
        ]

    def forget(self) -> None:
        """Put everything back, as it is in a process that has just started."""
        for (holder, name), _ in list(self._now()):
            if (holder, name) not in self.first:
                delattr(holder, name)
        for (holder, name), value in self.first.items():
            setattr(holder, name, copy.deepcopy(value))


def _copied(value: object) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:  # a lock, an open file: whatever it is, it is not a state
        return None


def _words(place: tuple[Any, str]) -> str:
    holder, name = place
    if isinstance(holder, type):
        return f"class attribute `{holder.__name__}.{name}`"
    return f"global `{name}` of {file_of(holder)}"


def file_of(module: ModuleType) -> str:
    """Return the short name of a module's file, or its own where there is none."""
    file = vars(module).get("__file__")
    return Path(file).name if file else module.__name__


def _names_in(module: ModuleType) -> set[str]:
    """Return the names that the functions of a module mention."""
    found: set[str] = set()
    for value in list(vars(module).values()):
        held = list(vars(value).values()) if isinstance(value, type) else [value]
        for function in (_function(v) for v in held):
            if function is not None and function.__module__ == module.__name__:
                found |= set(_mentioned(function.__code__))
    return found


def _function(value: object) -> FunctionType | None:
    inner = value.fn if isinstance(value, Task) else value
    inner = inner.__func__ if isinstance(inner, classmethod | staticmethod) else inner
    inner = inner.fget if isinstance(inner, property) else inner
    return inner if isinstance(inner, FunctionType) else None


def _mentioned(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _mentioned(inner)
