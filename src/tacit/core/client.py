"""The client's side.

A task is a plain function, and calling it builds the message that asks for it.
"""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Concatenate, Generic, Literal, ParamSpec, TypeVar, overload

import numpy as np
from torch import Tensor, nn

from tacit.core.data import Goal, LocalData, Pool
from tacit.core.errors import BadInput
from tacit.core.ledger import Ledger, Noise, PublicInt, Release
from tacit.core.loose import Kept
from tacit.core.names import ClientId
from tacit.core.own_code import wire_name

APART = 1 << 20  # between the numbers of two requests: more lines than one task writes
P = ParamSpec("P")
T = TypeVar("T")
Sent = TypeVar("Sent", covariant=True)  # frozen: a call of a task is one of any task


# gets the client, words for all that something follows from besides its data and randomness, and
# how to make it
Again = Callable[["Client", str, Callable[[], Mapping[str, Tensor]]], Mapping[str, Tensor]]


def no_limit(ledger: Ledger) -> None:
    """Approve of everything."""


def afresh(me: Client, what: str, make: Callable[[], Mapping[str, Tensor]]) -> Mapping[str, Tensor]:
    """Make what is asked for, whether or not it was made before."""
    return make()


@dataclass(frozen=True)
class Client:
    """What a task knows about the client it runs on; always called ``me``."""

    id: ClientId
    round: int
    data: LocalData  # its training data
    test: LocalData  # its own test data
    model: nn.Module  # an instance of the experiment's network, to load parameters into
    kept: Kept  # from the last reply the server accepted
    rng: np.random.Generator  # derived from (seed, task, round, client): nothing to save
    noise: Noise = "seeded"  # where mechanisms draw their randomness
    # releases about this client's data, from the beginning
    spent: Ledger = field(default_factory=Ledger)
    approve: Callable[[Ledger], None] = no_limit  # raises where a ledger would pass the budget

    task: str = ""  # the name of the task that runs
    # with seeded noise: which of the different requests of this name in this round it is
    attempt: int = 0
    drawn: list[Release] = field(default_factory=list)  # releases of this very task, in order
    classes: int = 0  # how many classes the experiment has, which everybody knows
    examples: int | None = None  # how many it has to train on, whichever of them a task picks
    # that ``model`` computes in, and other networks that a task makes, where it does not clip
    precision: Literal["f32", "bf16"] = "f32"
    goal: Goal = "classes"  # what is predicted
    again: Again = afresh  # makes what takes long, or finds it where it was made to the bit

    def release(self, line: Release) -> None:
        """Write a release, unless it would pass the budget; for mechanisms, before they draw.

        The same line twice in one task is two releases, and so is another request of the same name
        in the same round. With seeded noise, the very same request done again is not.
        """
        number = self.attempt * APART + self.drawn.count(line)
        counted = replace(line, attempt=number + self._of_its_task(line))
        self.approve(self.spent.plus(counted))
        self.spent.release(counted)
        self.drawn.append(line)

    def _of_its_task(self, line: Release) -> int:
        """Return a number of the task, where a line does not name it: another task's is another."""
        named = self.noise == "os" or self.task in line.what
        return 0 if named else zlib.crc32(self.task.encode()) * APART**2

    @property
    def size(self) -> PublicInt:
        """How many examples this client has, which is taken as public; not how many of a kind."""
        return PublicInt(len(self.data) if self.examples is None else self.examples)


@dataclass(frozen=True)
class Reply(Generic[Sent]):
    """What a task returns."""

    sent: Sent  # a dataclass that names everything that leaves the client
    # becomes ``me.kept`` if and only if the server accepts the reply
    keep: Kept | None = None
    # examples that join this client's data from then on, likewise; for tasks of this package
    pool: Pool | None = None


@dataclass(frozen=True)
class Call(Generic[Sent]):
    """A task with its arguments: what goes down the wire."""

    task: str
    args: Mapping[str, Any]


At = Literal["client", "server", "measure"]


class Task(Generic[P, T]):
    """A function that a server may ask for; calling it builds a :class:`Call`.

    So a type checker sees both ends of the wire. ``at`` says where it may run: at clients, at the
    server alone, on data that it may see, or at clients to measure a model on their test data.
    """

    registry: ClassVar[dict[str, Task[Any, Any]]] = {}

    def __init__(self, fn: Callable[Concatenate[Client, P], Reply[T]], at: At = "client") -> None:
        self.fn = fn
        self.at = at
        self.name = f"{wire_name(fn.__module__).removeprefix('tacit.methods.')}.{fn.__name__}"
        self.signature = inspect.signature(fn)
        known = Task.registry.get(self.name)
        if known is not None and known.fn.__module__ != fn.__module__:
            raise BadInput(
                f"task {self.name!r}: {known.fn.__module__} has one of this name; "
                f"rename the function or the file of {fn.__module__}"
            )
        Task.registry[self.name] = self

    @property
    def built_in(self) -> bool:
        """Whether this package has it, and not the user's own code."""
        return self.fn.__module__.startswith("tacit.")

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Call[T]:
        bound = self.signature.bind(None, *args, **kwargs)
        bound.apply_defaults()
        return Call(self.name, {k: v for k, v in list(bound.arguments.items())[1:]})  # without me


@overload
def task(fn: Callable[Concatenate[Client, P], Reply[T]], /) -> Task[P, T]: ...
@overload
def task(*, at: At) -> Callable[[Callable[Concatenate[Client, P], Reply[T]]], Task[P, T]]: ...
def task(fn: Any = None, /, *, at: At = "client") -> Any:
    """Mark a module-level function as something a server may ask for.

    ``@task`` is for clients; ``@task(at="server")`` never runs at a site, whoever asks.
    """
    return Task(fn, at) if fn is not None else partial(Task, at=at)
