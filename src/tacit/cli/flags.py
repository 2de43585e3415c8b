"""Flags made from dataclasses with tyro; whatever is wrong becomes one line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeVar

import tyro
from tyro import _errors as tyro_errors

from tacit.core import BadInput

T = TypeVar("T")


def parse(cls: type[T], args: Sequence[str], *, prog: str, about: str, default: T | None = None) -> T:
    """Return ``cls`` filled from flags, or raise :class:`BadInput`; ``--help`` prints help and exits."""
    given: dict[str, Any] = {} if default is None else {"default": default}
    with tyro_errors.on_parse_error(_refuse):
        filled: T = tyro.cli(cls, args=list(args), prog=prog, description=about, **given)
    return filled


def _refuse(event: tyro_errors.ParseErrorEvent) -> None:
    raise BadInput(_line(event))


def _line(event: tyro_errors.ParseErrorEvent) -> str:
    """Put a refusal by tyro into our words: the flag, the value, what is allowed."""
    if isinstance(event, tyro_errors.UnrecognizedArgs):
        return f"{event.tokens[0]}: unknown option; `{event.prog} --help` lists them"
    if isinstance(event, tyro_errors.InvalidChoice):
        return f"{_flag(event.argument)} = {event.value!r}: allowed: {', '.join(event.choices)}"
    if isinstance(event, tyro_errors.InstantiationFailure):
        if event.argument is None:
            return event.message
        value = re.search(r"'[^']*'", event.message)
        wanted = event.argument.lowered.metavar
        return f"{_flag(event.argument)} = {value.group() if value else '?'}: must be {wanted}"
    if isinstance(event, tyro_errors.BadValue):
        return f"{_flag(event.argument)}: needs a value, {event.argument.lowered.metavar}"
    return f"{type(event).__name__}; see `{event.prog} --help`"


def _flag(argument: Any) -> str:
    return str(next(iter(argument.lowered.name_or_flags)))
