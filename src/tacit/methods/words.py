"""Methods from words and plain values: unknown keys and wrong types are refused in one line."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import fields, is_dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tacit.core import BadInput, check_choice
from tacit.methods import METHODS, name_of


def validated(cls: type[Any], raw: dict[str, Any], where: str = "") -> Any:
    """Build a dataclass from plain values, or say which field is wrong and what it takes."""
    _check_keys(cls, raw, where)
    try:
        text = json.dumps(raw, default=_plain)  # strict Python mode takes no plain dicts
        return TypeAdapter(cls).validate_json(text, strict=True)
    except ValidationError as e:
        first = e.errors()[0]
        if isinstance(cause := first.get("ctx", {}).get("error"), BadInput):
            raise cause from None
        at = ".".join(
            [
                *([where] if where else []),
                *(str(part) for part in first["loc"] if part in raw or "." not in str(part)),
            ]
        )
        raise BadInput(f"{at} = {first['input']!r}: {first['msg'].lower()}") from None


def _plain(value: Any) -> Any:
    """Return a number of NumPy or PyTorch as one of Python, and anything else as text."""
    return value.item() if getattr(value, "shape", None) == () else str(value)


def _check_keys(cls: type[Any], raw: dict[str, Any], where: str) -> None:
    """Refuse an unknown key and name the nearest known one."""
    known = {f.name: f for f in fields(cls)}
    for key, value in raw.items():
        check_choice(f"{where or cls.__name__.lower()} key", key, known)
        default = known[key].default_factory
        if isinstance(value, dict) and isinstance(default, type) and is_dataclass(default):
            _check_keys(default, value, f"{where}.{key}".lstrip("."))


def method_from(raw: dict[str, Any] | str) -> Any:
    """Build a method from ``{"name": "fedavg", "rounds": 5}``, or from its name alone."""
    if not isinstance(raw, str | dict):
        raise BadInput(f"method = {raw!r}: must be a table with name = one of {', '.join(METHODS)}")
    given = {"name": raw} if isinstance(raw, str) else dict(raw)
    if "name" not in given:
        raise BadInput(f"method.name: missing; allowed: {', '.join(METHODS)}")
    name = given.pop("name")
    check_choice("method", str(name), METHODS)
    if given.get("relation") == "add/remove":  # as runs of before have it in their config.toml
        given["relation"] = "zero-out"
    return validated(METHODS[name], given, "method")


def method_from_spec(spec: str) -> Any:
    """Build a method from a word such as ``fedprox`` or ``fedprox:mu=0.1,rounds=5,sgd.lr=0.1``."""
    name, _, rest = spec.partition(":")
    raw: dict[str, Any] = {"name": name}
    for pair in filter(None, re.split(r",(?![^\[]*\])", rest)):  # not the commas of a list
        key, equals, value = pair.partition("=")
        if not equals:
            raise BadInput(f"method = {spec!r}: {pair!r} must be key=value")
        at = raw
        *parents, last = key.split(".")
        for parent in parents:
            at = at.setdefault(parent, {})
        try:
            at[last] = tomllib.loads(f"v = {value}")["v"]
        except tomllib.TOMLDecodeError:
            at[last] = value
    return method_from(raw)


def as_method(given: Any) -> Any:
    """Return a method that was given as itself or as a word."""
    if isinstance(given, str):
        return method_from_spec(given)
    if type(given) not in METHODS.values():
        raise BadInput(
            f"method = {given!r}: must be a word such as 'fedavg:rounds=5', or one of {', '.join(METHODS)}"
        )
    return given


def spec_of(method: Any) -> str:
    """Return the word that :func:`method_from_spec` builds this method from.

    Its name, and what is not the default.

    >>> spec_of(method_from_spec("fedprox:rounds=5,sgd.lr=0.1"))
    'fedprox:rounds=5,sgd.lr=0.1'
    """
    pairs = ",".join(
        f"{key}={json.dumps(value)}" for key, value in _changed(method, type(method)())
    )
    return name_of(method) + ":" * bool(pairs) + pairs


def _changed(given: Any, default: Any, prefix: str = "") -> list[tuple[str, Any]]:
    found = []
    for f in fields(given):
        value, usual = getattr(given, f.name), getattr(default, f.name)
        if is_dataclass(value):
            found += _changed(value, usual, f"{prefix}{f.name}.")
        elif value != usual:
            found.append((prefix + f.name, value))
    return found
