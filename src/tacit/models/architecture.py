"""A network by name: how to make it, what it is, and what inputs it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from tacit.core.registry import Registry

# (shape of one input, classes, arguments of its own) -> network
Make = Callable[..., nn.Module]


@dataclass(frozen=True)
class Architecture:
    """A network by name: how to make it, what it is, and the smallest image side that it takes.

    A least side of 0 means any input.
    """

    make: Make
    about: str
    least: int = 0


MODELS: Registry[Architecture] = Registry(
    "model", group="tacit.models", package="tacit.models", also=("auto",)
)


def network(name: str, about: str, *, least: int = 0) -> Callable[[Make], Make]:
    """Mark a function of ``(shape, classes)`` as a network of this package.

    Args:
        name: by which it is asked for
        about: what it is, in one line
        least: the smallest side of an image that it takes; 0: any input
    """

    def mark(make: Make) -> Make:
        MODELS.register(name)(Architecture(make, about, least))
        return make

    return mark
