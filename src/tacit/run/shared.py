"""Options said once for several methods: used where a method has them, and noted where not."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from tacit.core import BadInput
from tacit.methods.words import method_from_spec, parted


def with_common(words: Sequence[str], common: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Add options to method words, and return also what to say of those without effect.

    A word that says an option itself keeps its own. One that no method has is refused.

    >>> with_common(["fedavg:rounds=2", "dp_fedavg"], {"per_round": 3, "rounds": 5})[0]
    ['fedavg:rounds=2,per_round=3', 'dp_fedavg:rounds=5']
    """
    made, notes = {word: word for word in words}, []
    for option, value in common.items():
        having = [word for word in words if _has(word, option)]
        if words and not having:
            raise BadInput(f"{option} = {value}: none of {', '.join(words)} has it")
        lacking = [word for word in words if word not in having]
        saying = [word for word in having if option in _said(word)]
        notes += [f"{option} does not apply to {', '.join(lacking)}"] if lacking else []
        notes += [f"{option}: {word} keeps its own" for word in saying]
        for word in having:
            if word not in saying:
                made[word] = _plus(made[word], f"{option}={json.dumps(value)}")
    return list(made.values()), notes


def _has(word: str, option: str) -> bool:
    """Tell whether a method has an option, such as ``rounds``, or the part of it before a dot."""
    return option.partition(".")[0] in {f.name for f in fields(method_from_spec(word))}


def _said(word: str) -> set[str]:
    """Return the options that a word says."""
    pairs = re.split(r",(?![^\[]*\])", parted(word)[1])  # not the commas of a list
    return {pair.partition("=")[0] for pair in pairs}


def _plus(word: str, pair: str) -> str:
    name, settings = parted(word)
    return f"{name}:{settings},{pair}" if settings else f"{name}:{pair}"
