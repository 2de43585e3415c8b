"""What can be asked for by name: built in, installed with another package, or the user's own code.

There is one registry for each kind of thing: methods, splits, data sets, networks, features,
mechanisms. What is built in is found in the files of one package, so that a new one is one new
file. What another package brings is found by an entry point; ``module:Name`` and ``file.py:Name``
are always understood.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any, Generic, TypeVar

from tacit.core import check
from tacit.core.own_code import is_code, load

T = TypeVar("T")
OWN = ("file.py:Name", "module:Name")  # as errors show them
GROUPS: list[str] = []  # the entry points of all registries


class Registry(Mapping[str, T], Generic[T]):
    """All things of one kind that are built in, by name, and the way to all others."""

    def __init__(
        self,
        kind: str,
        *,
        group: str,
        package: str = "",
        found: Callable[[ModuleType], Mapping[str, T]] = lambda module: {},
        also: tuple[str, ...] = (),
    ) -> None:
        """Make a registry; nothing is imported until it is used.

        Args:
            kind: the setting that names one of these things, such as ``split``, for errors
            group: entry points by which other packages bring theirs, such as ``tacit.splits``
            package: whose modules have those that are built in; none: all are registered by hand
            found: what a module of the package has, by name, besides what it registers
            also: words that are understood besides, such as ``auto``, for errors
        """
        GROUPS.append(group)
        self.kind = kind
        self.group = group
        self._package = package
        self._found = found
        self._also = also
        self._registered: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that makes something known by a name."""

        def add(thing: T) -> T:
            self._registered[name] = thing
            return thing

        return add

    @cached_property
    def _known(self) -> dict[str, T]:
        """What is built in, once the modules of the package are imported."""
        if not self._package:
            return self._registered
        package = importlib.import_module(self._package)
        names = [
            f"{self._package}.{module.name}" for module in pkgutil.iter_modules(package.__path__)
        ]
        found = [self._found(module) for module in map(importlib.import_module, names)]
        return self._registered | {name: thing for part in found for name, thing in part.items()}

    def __getitem__(self, name: str) -> T:
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def installed(self) -> dict[str, str]:
        """Return what other packages bring: names, and the code that each stands for."""
        return dict(_entries(self.group, tuple(sys.path)))

    def is_own(self, word: str) -> bool:
        """Tell whether a word that is not built in names code, or something installed."""
        return is_code(word) or word in self.installed()

    def check(self, name: str) -> None:
        """Refuse a name that stands for nothing."""
        if name not in self:
            check.choice(self.kind, name, [*self._also, *self, *self.installed(), *OWN])

    def own(self, word: str) -> Any:
        """Return what a word names that is not built in: ``file.py:Name``, or something installed.

        It runs code, which the owner of this process has named or installed.
        """
        if not is_code(word):
            self.check(word)
            word = self.installed()[word]
        return load(word, self.kind)


def names_code(word: str) -> bool:
    """Tell whether a word names code that is not part of this package, installed or not.

    For whoever reads a word that the owner of this process did not write; nothing is imported.
    """
    path = tuple(sys.path)
    return is_code(word) or any(word in dict(_entries(group, path)) for group in GROUPS)


@cache
def _entries(group: str, path: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return the entry points of a group, with their code; looked up once for each search path."""
    return tuple((entry.name, entry.value) for entry in entry_points(group=group))
