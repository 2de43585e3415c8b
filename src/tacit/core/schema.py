"""Whether the arguments of a task are what its annotations say, before anything is done with them.

The annotations of a task are its schema; a dataclass checks the ranges of its own fields when it is
built. What is left is the type of every argument and of every field, to any depth, that numbers are
finite, and that points of parameter space are not empty.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, Protocol, Union

from torch import Tensor

from tacit.core.client import Call, Task
from tacit.core.errors import BadInput
from tacit.core.params import Params

LONGEST = 1000  # characters of a word, and of a whole number's digits
PLAIN = (bool, int, float, str, type(None))


def check_args(call: Call[object]) -> None:
    """Refuse arguments of a known task that are missing, unknown, or not of its annotations."""
    known = Task.registry[call.task]
    try:
        known.signature.bind(None, **call.args)
    except TypeError as e:
        raise BadInput(f"task = {call.task!r}: {e}") from None
    hints = _hints(known.fn)
    for name, value in call.args.items():
        check_value(value, hints.get(name, Any), name)
        if isinstance(value, float) and not math.isfinite(value):
            raise BadInput(f"{name} = {value}: must be a finite number")
        if isinstance(value, Params) and not value:
            raise BadInput(f"{name}: has no tensors")


def check_value(value: object, hint: Any, where: str) -> None:
    """Refuse a value that is not of a type, to any depth, with a line that names the place."""
    for at, inner, wanted in _parts(value, hint, where):
        if not _is_a(inner, wanted):
            raise BadInput(f"{at}: is {_kind(inner)}; must be {_said(wanted)}")
        _check_plain(inner, at)


Leaf = tuple[type | None, str, object]


def leaves(value: object, owner: type | None = None, name: str = "") -> Iterator[Leaf]:
    """Yield all plain values within a value: the dataclass that has it, its field, and itself.

    What stands directly in the arguments of a task has no dataclass.
    """
    if isinstance(value, PLAIN):
        yield owner, name, value
    elif is_dataclass(value) and not isinstance(value, type):
        for f in fields(value):
            yield from leaves(getattr(value, f.name), type(value), f.name)
    elif isinstance(value, Mapping) and not isinstance(value, Params):
        for key, inner in value.items():
            yield from leaves(inner, owner, name or str(key))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from leaves(inner, owner, name)


def _parts(value: object, hint: Any, where: str) -> Iterator[tuple[str, object, Any]]:
    """Yield a value and what is in it, each with its place and the type that is wanted there."""
    wanted = _chosen(value, hint)
    yield where, value, wanted
    args = typing.get_args(wanted)
    if isinstance(value, Params | Tensor | str):
        return
    if is_dataclass(value) and not isinstance(value, type):
        hints = _hints(type(value))
        for f in fields(value):
            inner = getattr(value, f.name)
            yield from _parts(inner, hints.get(f.name, Any), f"{where}.{f.name}")
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _parts(inner, args[1] if len(args) == 2 else Any, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for inner, of in zip(value, _items(value, args), strict=True):
            yield from _parts(inner, of, where)


def _items(value: Sequence[object], args: tuple[Any, ...]) -> list[Any]:
    """Return the type that is wanted for each item of a list or tuple."""
    fixed = isinstance(value, tuple) and args and args[-1] is not Ellipsis
    if fixed and len(args) == len(value):
        return list(args)
    return [args[0] if args else Any] * len(value)


def _chosen(value: object, hint: Any) -> Any:
    """Return the member of a union that a value is of, if there is one; else the hint itself."""
    if typing.get_origin(hint) not in (Union, types.UnionType):
        return hint
    return next((of for of in typing.get_args(hint) if _is_a(value, of)), hint)


def _is_a(value: object, hint: Any) -> bool:
    """Tell whether a value itself, without what is in it, is of a type."""
    origin = typing.get_origin(hint)
    if origin is Literal:
        return value in typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_is_a(value, of) for of in typing.get_args(hint))
    of = origin or hint
    if of is None or of is type(None):
        return value is None
    if of is Any or not isinstance(of, type) or Protocol in of.__mro__:
        return True  # Any, a type variable: nothing is promised
    plain = next((p for p in (int, float) if issubclass(of, p) and of is not bool), None)
    if plain is not None:  # also a public number, which arrives as a plain one
        return isinstance(value, int | plain) and not isinstance(value, bool)
    if of is dict:
        return isinstance(value, Mapping)
    if of is tuple and isinstance(value, tuple):
        args = typing.get_args(hint)
        return not args or args[-1] is Ellipsis or len(args) == len(value)
    return isinstance(value, of)


def _check_plain(value: object, where: str) -> None:
    """Refuse NaN, and words and whole numbers that are too long to be meant."""
    if isinstance(value, float) and math.isnan(value):
        raise BadInput(f"{where} = nan: must be a number")
    if isinstance(value, str) and len(value) > LONGEST:
        raise BadInput(f"{where}: {len(value):,} characters; must be at most {LONGEST:,}")
    if isinstance(value, int) and abs(value) > 2**63:
        raise BadInput(f"{where}: must be at most 2^63")


@cache
def _hints(of: Any) -> dict[str, Any]:
    """Return the annotations of a function or dataclass; none where they cannot be resolved."""
    try:
        return typing.get_type_hints(of)
    except (NameError, TypeError):  # such as a name that is imported for type checkers only
        return {}


def _kind(value: object) -> str:
    return repr(value)[:60] if isinstance(value, PLAIN) else f"a {type(value).__name__}"


def _said(hint: Any) -> str:
    if typing.get_origin(hint) is Literal:
        return "one of " + ", ".join(map(repr, typing.get_args(hint)))
    return f"a {hint.__name__}" if isinstance(hint, type) else str(hint)
