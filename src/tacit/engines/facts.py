"""What a site says of itself when it is greeted, and what cannot be so."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_type_hints

from tacit.core import BadInput, Json, check
from tacit.core.schema import LONGEST, check_value
from tacit.data.schema import Schema

MOST_EXAMPLES = 10**9
MOST_CLASSES = 10**5
MOST_PARTS = 10**4  # of a schema: 10 MB
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
    # of a table: its schema, in parts that messages can carry, as :attr:`table` joins them
    schema: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check.number("examples", self.examples, at_least=1, at_most=MOST_EXAMPLES, whole=True)
        check.number("tests", self.tests, at_least=0, at_most=MOST_EXAMPLES, whole=True)
        check.number("shape", len(self.shape), at_least=1, at_most=MOST_AXES)
        for n in self.shape:
            check.number("shape", n, at_least=1, at_most=MOST_INPUTS, whole=True)
        check.number("shape", math.prod(self.shape), at_most=MOST_INPUTS)
        check.number("classes", len(self.classes), at_least=1, at_most=MOST_CLASSES)
        if len(set(self.classes)) < len(self.classes):
            raise BadInput("classes: two have the same name")
        check.number("schema", len(self.schema), at_most=MOST_PARTS)
        if self.schema:
            self.check_table()
        for value in self.mean:
            check.number("mean", value, above=-math.inf, below=math.inf)
        for value in self.std:
            check.number("std", value, above=0, below=math.inf)

    @property
    def table(self) -> Schema | None:
        """The schema of this site's table, if it has one."""
        if not self.schema:
            return None
        try:
            return Schema.from_dict(json.loads("".join(self.schema)))
        except (ValueError, RecursionError) as e:  # also BadInput
            raise BadInput(f"schema: {e}") from None

    def check_table(self) -> None:
        """Refuse a schema that does not go with the rest."""
        table = self.table
        assert table is not None
        if table.classes != self.classes or (len(table.features),) != self.shape:
            raise BadInput("schema: not that of these classes and this shape")


def schema_parts(schema: Schema | None) -> tuple[str, ...]:
    """Return a schema as words of a message, none longer than a word may be."""
    text = schema.to_json() if schema else ""
    return tuple(text[i : i + LONGEST] for i in range(0, len(text), LONGEST))


def facts_from(raw: object) -> Facts:
    """Return what a site says of itself, or refuse what is not of the right types and sizes."""
    hints = get_type_hints(Facts)
    if not isinstance(raw, Mapping) or raw.keys() | {"schema"} != hints.keys():
        raise BadInput(f"facts: must be {', '.join(hints)}")
    given: Json = {k: tuple(v) if isinstance(v, list) else v for k, v in raw.items()}
    for name, value in given.items():
        check_value(value, hints[name], name)
    return Facts(**given)
