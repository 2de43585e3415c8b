"""Help in groups: the same flags as a command's dataclass, arranged for a reader.

Flags without a prefix would all stand in one box. Here each group is a dataclass whose name is the
title of its box; it only prints help, and is never filled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, Field, field, fields, is_dataclass, make_dataclass, replace
from functools import partial
from itertools import chain
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import tyro
from tyro import _docstrings as tyro_docstrings

OPENED = {"method": "method", "setting": "experiment"}  # fields whose flags have no prefix
ELSEWHERE = {  # flags of an experiment that have a group of their own
    "delta": "privacy",
    "budget": "privacy",
    "noise": "privacy",
    "engine": "machine",
    "address": "machine",
    "workers": "machine",
    "device": "machine",
    "precision": "machine",
    "keep": "machine",
}
PREFIXED = "sgd and others"  # settings inside settings: tyro makes a box of each
ANNOTATED: Any = Annotated  # with a type that is only known when it runs
Flag = tuple[str, Any, Any]  # name, annotated type, field with its default


def for_help(cls: type) -> type:
    """Return a dataclass with the same flags as ``cls``, in groups."""
    hints = get_type_hints(cls, include_extras=True)
    groups: dict[str, list[Flag]] = {"": [], "method": [], PREFIXED: []}
    for f in fields(cls):
        if f.name not in OPENED or not is_dataclass(_default_of(f)):
            groups[""].append(_explained(cls, f, hints[f.name]))
            continue
        for group, flag in _opened(OPENED[f.name], _default_of(f)):
            groups.setdefault(group, []).append(flag)
    boxes = [
        flags if name in ("", PREFIXED) else [_group(name, flags)]
        for name, flags in groups.items()
        if flags
    ]
    return make_dataclass("Flags", chain(*boxes))


def is_settings(kind: object) -> bool:
    """Tell whether a type is one of settings with a flag for each; any Method is a single word."""
    return is_dataclass(kind) and len(fields(kind)) > 0


def _opened(group: str, settings: Any) -> Iterator[tuple[str, Flag]]:
    """Yield the flags of a method or an experiment, each with its group."""
    cls = type(settings)
    hints = get_type_hints(cls, include_extras=True)
    for f in fields(cls):
        value = getattr(settings, f.name)
        nested = is_settings(hints[f.name])
        name, hint, _ = _explained(cls, f, hints[f.name], prefix_name=nested)
        own = ELSEWHERE.get(name, group) if group == "experiment" else group
        yield (
            PREFIXED if nested else own,
            (name, hint, field(default_factory=partial(_same, value))),
        )


def _explained(cls: type, f: Field[Any], hint: object, *, prefix_name: bool = True) -> Flag:
    """Return a field with the help that its comment is, unless its type has some already."""
    kind, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    said = tyro.conf.arg(help=tyro_docstrings.get_field_docstring(cls, f.name, ()))
    told: Any = next((mark for mark in marks if type(mark) is type(said)), said)
    others = [mark for mark in marks if mark is not told]
    shown = ANNOTATED[(kind, *others, replace(told, prefix_name=prefix_name))]
    required = f.default is MISSING and f.default_factory is MISSING
    return f.name, shown, field() if required else field(default_factory=partial(_default_of, f))


def _group(name: str, flags: list[Flag]) -> Flag:
    made: Any = make_dataclass(name.title(), flags)
    made.__doc__ = None  # what a dataclass writes there by itself is for programmers
    return f"group_{name}", Annotated[made, tyro.conf.arg(name=name)], field(default_factory=made)


def _default_of(f: Field[Any]) -> Any:
    return f.default if f.default_factory is MISSING else f.default_factory()


def _same(value: object) -> Any:
    return value
