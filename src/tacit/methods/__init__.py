"""One file per published method. May import core, privacy, local, data; never engines."""

from __future__ import annotations

from inspect import isabstract
from types import ModuleType

from tacit.core.method import Method
from tacit.core.registry import Registry


def _method(module: ModuleType) -> dict[str, type[Method]]:
    """Return the method that a file is about, by the name of the file.

    Some have none, or only its settings, without ``init`` and ``run``.
    """
    name = module.__name__.rpartition(".")[2]
    classes = [c for c in vars(module).values() if isinstance(c, type) and issubclass(c, Method)]
    own = [c for c in classes if c.__module__ == module.__name__ and not isabstract(c)]
    return {name: own[-1]} if own else {}  # the last: others are its bases


METHODS: Registry[type[Method]] = Registry(
    "method", group="tacit.methods", package=__name__, found=_method
)


def __getattr__(name: str) -> type[Method]:
    """Return a method by the name of its class, as in ``from tacit.methods import FedAvg``."""
    if name[:1].isupper():  # other names are files, which may be the ones that ask
        for cls in METHODS.values():
            if cls.__name__ == name:
                return cls
    raise AttributeError(f"module 'tacit.methods' has no attribute {name!r}")
