"""What a split is asked for with, what it returns, and what a scheme has to say."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.core.data import IntArray
from tacit.core.errors import BadInput
from tacit.data.proportions import Table

BoolArray = NDArray[np.bool_]
PUBLIC = -2  # the owner of what belongs to nobody and everybody may see


@dataclass(frozen=True)
class Split:
    """Who holds what. Client ``i`` is place ``i`` of every tuple."""

    train: tuple[IntArray, ...]  # sorted rows of the training set
    # sorted rows of the test set, only of classes the client may train on; may be empty
    test: tuple[IntArray, ...]
    # alid: client i's label y becomes relabel[i][y]
    relabel: tuple[tuple[int, ...], ...] | None = None
    # feature-noise: standard deviation, for pixels scaled to 0..1
    noise: tuple[float, ...] | None = None
    # sizes: sorted training rows that belong to nobody and are public
    public: IntArray | None = None


@dataclass(frozen=True)
class Request:
    """What was asked for, checked except for the argument, which each scheme reads itself."""

    scheme: str
    argument: str
    labels: IntArray
    clients: int
    classes: int
    seed: int

    @property
    def class_sizes(self) -> IntArray:
        """How many examples each class has."""
        return np.bincount(self.labels, minlength=self.classes).astype(np.int64)

    def rng(self, stream: str) -> np.random.Generator:
        """Return the generator of a named stream; no two streams of a seed share numbers."""
        return np.random.default_rng([self.seed, *stream.encode()])

    def refusal(self, reason: str) -> BadInput:
        """Return the error that says why this cannot be."""
        return refusal(self.scheme, reason)


Relabel = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Scheme:
    """One way to divide data among clients, by name."""

    usage: str  # how it is written, such as label:k
    about: str  # what it does, in one line
    # public data: the owner of every training row
    draw: Callable[[Request], IntArray]
    # own data: proportions P[class, client], which no record decides; one column more is public
    shares: Callable[[Request], Table]
    # the clients' private numbers of the classes, if they have any
    relabel: Callable[[Request], Relabel] | None = None
    # the standard deviation of noise on each client's inputs, if there is any
    noise: Callable[[Request], tuple[float, ...]] | None = None
    # how many clients an argument asks for; as a rule as many as are wanted
    clients: Callable[[str, str], int] | None = None

    @property
    def name(self) -> str:
        """What stands before the colon."""
        return self.usage.partition(":")[0]

    @property
    def has_argument(self) -> bool:
        """Whether something stands behind it."""
        return ":" in self.usage


def refusal(scheme: str, reason: str) -> BadInput:
    """Return the error for a split that cannot be."""
    return BadInput(f"split = {scheme!r}: {reason}")


def k_of(request: Request, present: int) -> int:
    """Read the number of classes per client: from 1 to the number of classes with examples."""
    if not re.fullmatch(r"-?[0-9]{1,9}", request.argument):
        raise request.refusal("k must be a whole number")
    k = int(request.argument)
    if not 1 <= k <= present:
        all_present = present == request.classes
        there = (
            f"there are {present} classes"
            if all_present
            else f"{present} of {request.classes} have examples"
        )
        raise request.refusal(f"k must be between 1 and {present} ({there})")
    return k


def number_of(request: Request, what: str) -> float:
    """Read the argument as a number."""
    try:
        return float(request.argument)
    except ValueError:
        raise request.refusal(f"{what} must be a number") from None


def beta_of(request: Request) -> float:
    """Read the concentration of a Dirichlet law; ``inf`` is its limit, equal proportions."""
    beta = number_of(request, "beta")
    if not beta > 0:
        raise request.refusal("beta must be above 0")
    return beta
