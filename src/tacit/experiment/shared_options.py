"""Options said once for several methods: used where a method has them, and noted where not.

An epsilon is a promise: a method that cannot keep it is compared as it is, and a note says why.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields

from tacit.core import BadInput, NotPrivate, pairs_of
from tacit.methods.spec import method_from_spec, parted

EPSILON = "epsilon"
INSTEAD = {"epsilons", "eps_1", "eps_2"}  # settings that say an epsilon of one's own


def with_common(words: Sequence[str], common: Mapping[str, object]) -> tuple[list[str], list[str]]:
    """Add options to method words, and return also what to say of those without effect.

    A word that says an option itself keeps its own. One that no method has is refused, and so is an
    epsilon that none can keep.

    >>> with_common(["fedavg:rounds=2", "dp_fedavg"], {"per_round": 3, "rounds": 5})[0]
    ['fedavg:rounds=2,per_round=3', 'dp_fedavg:rounds=5']
    """
    made, notes = list(words), []
    for option, value in sorted(common.items(), key=lambda pair: pair[0] == EPSILON):
        having = [_has(word, option) for word in words]
        if words and not any(having):
            raise BadInput(f"{option} = {value}: none of {', '.join(words)} has it")
        lacking = [word for word, has in zip(words, having, strict=True) if not has]
        notes += [f"{option} does not apply to {', '.join(lacking)}"] if lacking else []
        notes += [f"{option}: {word} keeps its own" for word in words if _says(word, option)]
        open_ones = _not_private(made, value) if option == EPSILON else {}
        if len(open_ones) == len(words):
            raise BadInput("; ".join(open_ones.values()))
        notes += open_ones.values()
        for i, word in enumerate(words):
            if having[i] and not _says(word, option) and made[i] not in open_ones:
                made[i] = _plus(made[i], f"{option}={json.dumps(value)}")
    return made, notes + (_kinds_of_epsilon(made) if EPSILON in common else [])


def _not_private(words: Sequence[str], epsilon: object) -> dict[str, str]:
    """Return why words cannot keep an epsilon, for each that cannot."""
    found = {}
    for word in words:
        if not _has(word, EPSILON) or _says(word, EPSILON):
            continue
        try:
            method_from_spec(_plus(word, f"{EPSILON}={json.dumps(epsilon)}"))
        except NotPrivate as e:
            found[word] = f"{parted(word)[0]}: {e}"
    return found


def _kinds_of_epsilon(words: Sequence[str]) -> list[str]:
    """Say whose epsilon it is, where it is not the same for all methods that have one.

    >>> _kinds_of_epsilon(["ldp_fl:epsilon=1", "dp_fedavg:epsilon=1", "fedavg"])
    ['epsilon is of an example against server in ldp_fl; of a client against clients in dp_fedavg']
    """
    kinds: dict[str, list[str]] = {}
    for word in words:
        if EPSILON in _said(word):
            unit, observer = method_from_spec(word).protects
            one = "an" if unit == "example" else "a"
            kinds.setdefault(f"of {one} {unit} against {observer}", []).append(parted(word)[0])
    told = "; ".join(f"{kind} in {', '.join(names)}" for kind, names in kinds.items())
    return [f"epsilon is {told}"] if len(kinds) > 1 else []


def _says(word: str, option: str) -> bool:
    """Tell whether a word says an option itself, or an epsilon in another way."""
    said = set(_said(word))
    return option in said or (option == EPSILON and bool(said & INSTEAD))


def _has(word: str, option: str) -> bool:
    """Tell whether a method has an option, such as ``rounds``, or the part of it before a dot."""
    return option.partition(".")[0] in {f.name for f in fields(method_from_spec(word))}


def _said(word: str) -> set[str]:
    """Return the options that a word says."""
    return {pair.partition("=")[0] for pair in pairs_of(parted(word)[1])}


def _plus(word: str, pair: str) -> str:
    name, settings = parted(word)
    return f"{name}:{settings},{pair}" if settings else f"{name}:{pair}"
