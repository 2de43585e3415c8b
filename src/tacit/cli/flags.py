"""Flags made from dataclasses with tyro; whatever is wrong becomes one line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

import tyro
from tyro import _errors as tyro_errors
from tyro.constructors import ConstructorRegistry

from tacit.cli.help_groups import for_help, is_settings
from tacit.core import BadInput

T = TypeVar("T")


def parse(
    cls: type[T],
    args: Sequence[str],
    *,
    prog: str,
    about: str,
    examples: Sequence[str] = (),
    registry: ConstructorRegistry | None = None,
) -> T:
    """Return ``cls`` filled from flags, or raise :class:`BadInput`.

    ``--help`` prints help and exits.

    Args:
        cls: a dataclass; the comments of its fields are the help of its flags.
        args: the words of the command line.
        prog: how the command is called.
        about: what it does, for the top of its help.
        examples: whole commands, for the end of its help.
        registry: how to read values of types that tyro does not know.
    """

    def refuse(event: tyro_errors.ParseErrorEvent) -> None:
        raise BadInput(_line(event, _flags(cls)))

    args = with_model_arguments(args)
    try:
        with tyro_errors.on_parse_error(refuse):
            shown = for_help(cls) if {"-h", "--help"} & set(args) else cls
            filled: T = tyro.cli(
                shown, args=list(args), prog=prog, description=about, registry=registry
            )
    except SystemExit:  # the help is printed
        if examples:
            print("\n  ".join(["examples:", *examples]))
        raise
    return filled


def with_model_arguments(args: Sequence[str]) -> list[str]:
    """Put arguments of a network behind its name: ``--model.width 64`` behind ``--model``.

    >>> with_model_arguments(["--model", "net.py:Net", "--seed", "1", "--model.width", "64"])
    ['--model', 'net.py:Net:width=64', '--seed', '1']
    """
    rest: list[str] = []
    pairs: list[str] = []
    words = iter(args)
    for word in words:
        flag, equals, value = word.partition("=")
        if not flag.startswith("--model."):
            rest.append(word)
            continue
        value = value if equals else next(words, "")
        if not value or value.startswith("--"):
            raise BadInput(f"{flag}: needs a value")
        pairs.append(f"{flag.removeprefix('--model.').replace('-', '_')}={value}")
    return _behind_model(rest, ",".join(pairs)) if pairs else rest


def _behind_model(args: list[str], pairs: str) -> list[str]:
    for at, word in enumerate(args):
        if word == "--model" and at + 1 < len(args):
            return [*args[: at + 1], f"{args[at + 1]}:{pairs}", *args[at + 2 :]]
        if word.startswith("--model="):
            return [*args[:at], f"{word}:{pairs}", *args[at + 1 :]]
    raise BadInput(f"--model.{pairs.partition('=')[0]}: is for a network: name it with --model")


def _flags(cls: object, prefix: str = "--") -> list[str]:
    """Return all flags of a dataclass, nested ones included."""
    found = []
    for name, hint in get_type_hints(cls, include_extras=True).items():
        kind, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        word = next(
            (m.name for m in marks if getattr(m, "name", None) is not None), name.replace("_", "-")
        )
        if is_settings(kind):
            found += _flags(kind, f"{prefix}{word}." if word else prefix)
        elif get_origin(hint) is not ClassVar:
            found.append(prefix + word)
    return found


def _line(event: tyro_errors.ParseErrorEvent, known: Sequence[str]) -> str:
    """Put a refusal by tyro into our words: the flag, the value, what is allowed."""
    if isinstance(event, tyro_errors.UnrecognizedArgs):
        word = event.tokens[0]
        near = difflib.get_close_matches(word, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"`{event.prog} --help` lists them"
        if word in known:  # it has no flag
            hint = f"its value stands by itself, without {word}"
        return f"{word}: unknown option; {hint}"
    if isinstance(event, tyro_errors.InvalidChoice):
        return f"{_flag(event.argument)} = {event.value!r}: allowed: {', '.join(event.choices)}"
    if isinstance(event, tyro_errors.InstantiationFailure):
        if event.argument is None:
            return event.message
        value = re.search(r"'[^']*'", event.message)
        return (
            f"{_flag(event.argument)} = {value.group() if value else '?'}: must be "
            f"{_wanted(event.argument)}"
        )
    if isinstance(event, tyro_errors.BadValue):
        return f"{_flag(event.argument)}: needs a value, {_wanted(event.argument)}"
    if isinstance(event, tyro_errors.MissingArgs):
        missing = [_flag(given.arg) for given in event.missing_arguments]
        return (
            f"{', '.join(missing)}: missing; `{event.prog} --help` explains "
            f"{'it' if len(missing) == 1 else 'them'}"
        )
    return f"{type(event).__name__}; see `{event.prog} --help`"


def _wanted(argument: Any) -> str:
    """Say in words what a flag takes."""
    words = {"INT": "a whole number", "FLOAT": "a number", "PATH": "a path", "STR": "a word"}
    kinds = [
        kind.strip("{}") for kind in str(argument.lowered.metavar).split("|") if kind != "{None}"
    ]
    return " or ".join(words.get(kind, kind) for kind in kinds)


def _flag(argument: Any) -> str:
    return str(next(iter(argument.lowered.name_or_flags)))
