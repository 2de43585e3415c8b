"""Options said once for several methods: used where a method has them, and noted where not."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields

from tacit.core import BadInput, pairs_of
from tacit.methods.spec import method_from_spec, parted


def with_common(words: Sequence[str], common: Mapping[str, object]) -> tuple[list[str], list[str]]:
    """Add options to method words, and return also what to say of those without effect.

    A word that says an option itself keeps its own. One that no method has is refused.

    >>> with_common(["fedavg:rounds=2", "dp_fedavg"], {"per_round": 3, "rounds": 5})[0]
    ['fedavg:rounds=2,per_round=3', 'dp_fedavg:rounds=5']
    """
    made, notes = list(words), []
    for option, value in common.items():
        having = [_has(word, option) for word in words]
        if words and not any(having):
            raise BadInput(f"{option} = {value}: none of {', '.join(words)} has it")
        lacking = [word for word, has in zip(words, having, strict=True) if not has]
        notes += [f"{option} does not apply to {', '.join(lacking)}"] if lacking else []
        notes += [f"{option}: {word} keeps its own" for word in words if option in _said(word)]
        for i, word in enumerate(words):
            if having[i] and option not in _said(word):
                made[i] = _plus(made[i], f"{option}={json.dumps(value)}")
    return made, notes


def _has(word: str, option: str) -> bool:
    """Tell whether a method has an option, such as ``rounds``, or the part of it before a dot."""
    return option.partition(".")[0] in {f.name for f in fields(method_from_spec(word))}


def _said(word: str) -> set[str]:
    """Return the options that a word says."""
    return {pair.partition("=")[0] for pair in pairs_of(parted(word)[1])}


def _plus(word: str, pair: str) -> str:
    name, settings = parted(word)
    return f"{name}:{settings},{pair}" if settings else f"{name}:{pair}"
