"""What goes to a client and what comes back, under every engine."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tacit.codec import tensors_in
from tacit.core import (
    AskId,
    BadInput,
    ClientId,
    Diverged,
    Release,
    TacitError,
    Task,
)
from tacit.core import errors as known_errors
from tacit.core.params import PART

# characters of JSON in a message, its tensors apart: an answer holds a ledger, a call a state
LONGEST_ANSWER, LONGEST_CALL, LONGEST_HEAD = 1 << 22, 1 << 24, 1 << 20

NO_REPORT = "this site does not report any"  # what a site says that keeps its metrics to itself


@dataclass(frozen=True)
class Head:
    """What goes with a call to one client."""

    client: ClientId
    ask: AskId
    round: int
    accepted: AskId | None  # the last ask whose kept state the server accepted from this client
    # the same, as of the server's last checkpoint, to which it may have to go back
    saved: AskId | None
    # and as of checkpoints before that one
    older: tuple[AskId, ...] = ()


@dataclass(frozen=True)
class Answer:
    """What goes back.

    The payload, whether state waits for acceptance, and all the client has ever released.

    The whole ledger travels each time. It is run-length coded, so it is small, and no line can be
    lost with a reply.
    """

    sent: Any
    keeps: bool
    ledger: list[Release]


@dataclass(frozen=True)
class Refusal:
    """What goes back in place of an answer: why there is none, and all the client has released."""

    error: str  # the name of the exception
    text: str
    ledger: list[Release]

    @classmethod
    def of(cls, e: Exception, ledger: Iterable[Release] = ()) -> Refusal:
        """Return the refusal for something that went wrong; what is ours says where by itself."""
        text = str(e) if isinstance(e, TacitError) else f"{e}{_place(e)}"
        return cls(type(e).__name__, text, list(ledger))

    @property
    def words(self) -> str:
        """What is said of a client that refused."""
        return f"{self.error}: {self.text}"

    def again(self) -> TacitError | None:
        """Return the error, if it is one that concerns the whole run."""
        cls = getattr(known_errors, self.error, None)
        if isinstance(cls, type) and issubclass(cls, TacitError):
            return cls(self.text)
        return None


def _place(e: Exception) -> str:
    """Return the line of code that an unforeseen error comes from, for whoever has to mend it."""
    frames = traceback.extract_tb(e.__traceback__)
    ours = [f for f in frames if "site-packages" not in f.filename] or list(frames)
    return f" ({Path(ours[-1].filename).name}:{ours[-1].lineno})" if ours else ""


def plain_words(said: object, most: int = 300) -> str:
    """Return what somebody else says as one line that a terminal and a log can take."""
    text = said if isinstance(said, str) else type(said).__name__
    return " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * most]).split())[:most]


def task_named(name: str) -> Task[Any, Any]:
    """Return a known task."""
    if name not in Task.registry:
        raise BadInput(f"message: unknown task {name!r}")
    return Task.registry[name]


def check_finite(obj: object, head: Head) -> None:
    """Stop a run whose training has diverged, before the damage reaches the shared model."""
    if not all_finite(*(value for value in tensors_in(obj) if value.is_floating_point())):
        raise Diverged(
            f"round {head.round + 1}, client {head.client}: training gave a number that is not "
            "finite (a smaller learning rate may help: sgd.lr or local.lr); the last good "
            "checkpoint is kept"
        )


def in_parts(value: Tensor) -> tuple[Tensor, ...]:
    """Return a tensor's numbers, some at a time: what is made of them all may not fit in memory."""
    return torch.split(value.detach().reshape(-1), PART)


def all_finite(*values: Tensor) -> bool:
    """Tell whether no number is infinite, or none at all."""
    # in one pass and without a copy; what is not a number is both smallest and largest
    ends = [end for v in values if v.numel() for end in torch.aminmax(v.detach())]
    alike: dict[object, list[Tensor]] = {}
    for end in ends:
        alike.setdefault((end.dtype, end.device), []).append(end)
    return all(bool(torch.stack(some).isfinite().all()) for some in alike.values())
