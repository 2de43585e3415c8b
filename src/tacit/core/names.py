"""Names with a structure, each written and read in one place.

They travel and are saved as texts, so they are types of text.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from typing import Any, NewType

ClientId = str
AskId = NewType("AskId", str)
"""One ask of one round: replies, kept state and seeded noise are found by it."""

_TESTS = "test:"


def ask_id(task: str, round: int) -> AskId:
    """Return the name of what is asked for in a round.

    >>> ask_id("fedavg.train", 3)
    'fedavg.train@3'
    """
    return AskId(f"{task}@{round}")


def pairs_of(settings: str) -> list[str]:
    """Divide the settings of a word at its commas, but for those of a list or inside quotes.

    >>> pairs_of('mu=0.1,rounds=5'), pairs_of('epsilons=[1,2],method="fedmix:lam=0.2,M=8"')
    (['mu=0.1', 'rounds=5'], ['epsilons=[1,2]', 'method="fedmix:lam=0.2,M=8"'])
    """
    return re.findall(r'(?:"(?:\\.|[^"\\])*"|\[[^\]]*\]|[^,])+', settings)


def plain_value(text: str) -> Any:
    """Return a value as TOML has it, or the text itself.

    >>> plain_value("64"), plain_value("[1, 2]"), plain_value("tanh")
    (64, [1, 2], 'tanh')
    """
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text


@dataclass(frozen=True)
class PartOfTests:
    """One of several equal parts of the whole test set, which a process scores like a client's."""

    part: int  # from 0
    of: int

    @property
    def id(self) -> ClientId:
        """The name under which an engine is asked for it.

        >>> PartOfTests(2, 8).id
        'test:2/8'
        """
        return f"{_TESTS}{self.part}/{self.of}"

    @classmethod
    def read(cls, client: ClientId) -> PartOfTests | None:
        """Return the part that a name stands for; None: it is the name of a client.

        >>> PartOfTests.read("test:2/8"), PartOfTests.read("07")
        (PartOfTests(part=2, of=8), None)
        """
        if not client.startswith(_TESTS):
            return None
        part, of = client.removeprefix(_TESTS).split("/")
        return cls(int(part), int(of))


@dataclass(frozen=True)
class Owner:
    """Whose data a ledger line is about: a client's training data, or its test data."""

    client: ClientId
    tests: bool = False

    @property
    def id(self) -> str:
        """The owner as a ledger names it.

        >>> Owner("3").id, Owner("3", tests=True).id
        ('3', 'test:3')
        """
        return f"{_TESTS}{self.client}" if self.tests else self.client

    @classmethod
    def read(cls, owner: str) -> Owner:
        """Return the owner that a ledger names.

        >>> Owner.read("test:3")
        Owner(client='3', tests=True)
        """
        return cls(owner.removeprefix(_TESTS), owner.startswith(_TESTS))
