"""Compression at the place where a reply leaves its client, for every method.

A task and its server see none of it.

What a task sends and has the names and shapes of the parameters that it was sent is compressed, and
expanded again at the server. Dynamic rates follow from those very parameters, so both ends know
them and there is nothing to remember. Methods send differences from what they got, not points: what
compression loses of a small step is small.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from tacit.compress.compressor import Compressor
from tacit.core import Params

T = TypeVar("T")


@dataclass(frozen=True)
class Small:
    """Compressed parameters, on their way."""

    params: Params


def shrink(compressor: Compressor, sent: T, args: Mapping[str, object]) -> T:
    """Return a reply (a dataclass) whose updates are small.

    ``args`` are those of the call that it answers.
    """
    like = _reference(args)
    if compressor.matrix == "none" or like is None:
        return sent
    rates = compressor.rates(like)
    values = _values(sent)
    return _with(
        sent,
        {k: Small(compressor.compress(v, rates)) for k, v in values.items() if _alike(v, like)},
    )


def restore(compressor: Compressor, sent: T, args: Mapping[str, object]) -> T:
    """Return a reply as its task made it, but for what compression lost."""
    like = _reference(args)
    small = {k: v for k, v in _values(sent).items() if isinstance(v, Small)}
    if like is None or not small:
        return sent
    rates = compressor.rates(like)
    return _with(sent, {k: compressor.expand(v.params, like, rates) for k, v in small.items()})


def _reference(args: Mapping[str, object]) -> Params | None:
    return next((v for v in args.values() if isinstance(v, Params)), None)


def _alike(value: object, like: Params) -> bool:
    return isinstance(value, Params) and {k: v.shape for k, v in value.items()} == {
        k: v.shape for k, v in like.items()
    }


def _values(sent: Any) -> dict[str, Any]:
    return {f.name: getattr(sent, f.name) for f in fields(sent)}


def _with(sent: T, values: Mapping[str, object]) -> T:
    made: T = replace(sent, **values)  # type: ignore[type-var]
    return made
