"""What a site says of itself when it is greeted, and what cannot be so."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_type_hints

from tacit.core import BadInput, Json, check_number
from tacit.core.schema import check_value

MOST_EXAMPLES = 10**9
MOST_CLASSES = 10**5
MOST_AXES, MOST_INPUTS = 8, 10**8  # of one input: its axes, and the numbers in it


@dataclass(frozen=True)
class Facts:
    """What a site says of itself when it is greeted: all of it public, by its own decision.

    It is held to that: what it sends later is compared with it.
    """

    name: str
    version: str
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    mean: tuple[float, ...]  # public constants that inputs are scaled with
    std: tuple[float, ...]
    examples: int  # to train on
    tests: int

    def __post_init__(self) -> None:
        check_number("examples", self.examples, at_least=1, at_most=MOST_EXAMPLES, whole=True)
        check_number("tests", self.tests, at_least=0, at_most=MOST_EXAMPLES, whole=True)
        check_number("shape", len(self.shape), at_least=1, at_most=MOST_AXES)
        for n in self.shape:
            check_number("shape", n, at_least=1, at_most=MOST_INPUTS, whole=True)
        check_number("shape", math.prod(self.shape), at_most=MOST_INPUTS)
        check_number("classes", len(self.classes), at_least=1, at_most=MOST_CLASSES)
        if len(set(self.classes)) < len(self.classes):
            raise BadInput("classes: two have the same name")
        for value in self.mean:
            check_number("mean", value, above=-math.inf, below=math.inf)
        for value in self.std:
            check_number("std", value, above=0, below=math.inf)


def facts_from(raw: object) -> Facts:
    """Return what a site says of itself, or refuse what is not of the right types and sizes."""
    hints = get_type_hints(Facts)
    if not isinstance(raw, Mapping) or raw.keys() != hints.keys():
        raise BadInput(f"facts: must be {', '.join(hints)}")
    given: Json = {k: tuple(v) if isinstance(v, list) else v for k, v in raw.items()}
    for name, value in given.items():
        check_value(value, hints[name], name)
    return Facts(**given)
