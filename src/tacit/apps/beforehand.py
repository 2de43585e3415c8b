"""What a task would release, found on made-up records before any work on the real ones.

A budget that is checked when a task has done its work comes too late: how long the work takes, and
what it leaves behind, depends on the data. So a task that has to be paid for runs on as many
made-up records first. What it releases there, it releases of the real ones: a line of the ledger
follows from sizes and settings, which are public.
"""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass, field, replace

import torch

from tacit.codec import decode, encode
from tacit.core import Call, Kept, Ledger, Nothing, Release, TacitError
from tacit.data.examples import Dataset, Examples
from tacit.engines.charging import unprotected
from tacit.engines.client_host import World
from tacit.engines.messages import Head, task_named
from tacit.experiment.sites import holding

log = logging.getLogger("tacit.site")
MANY = 100  # prices that are remembered


class CannotTell(TacitError):
    """What a task costs cannot be told beforehand."""


@dataclass
class Beforehand:
    """The prices of tasks at one client."""

    world: World  # the client's, with made-up records in place of its own
    known: dict[str, list[Release]] = field(default_factory=dict)

    @classmethod
    def of(cls, world: World, client: str) -> Beforehand:
        """Return the prices at a client of a world."""
        real, n = world.federation, len(world.federation.split.train[int(client)])
        dataset = replace(
            real.dataset, train=made_up(real.dataset, n), test=made_up(real.dataset, 0)
        )
        clients = len(real.split.train)
        place = holding(dataset, clients, seed=real.seed, client=int(client))
        return cls(replace(world, federation=place, model=copy.deepcopy(world.fresh())))

    def check(self, head: Head, call: Call[object], kept: Kept, spent: Ledger) -> None:
        """Refuse a task that would pass the budget, by the error of the budget.

        Args:
            head: of the request
            call: the task and its arguments
            kept: what the client keeps; only its shapes and plain numbers are looked at
            spent: the client's ledger
        """
        price = self._name(call, kept)
        me = self.world.client(call.task, head.client, head.round, _blank(kept), spent)
        if price in self.known:
            for line in self.known[price]:
                me.release(replace(line, rounds=((head.round, head.round),)))
            return
        try:
            reply = task_named(call.task).fn(me, **call.args)
        except TacitError:
            raise
        except Exception as e:
            log.warning("%s failed on made-up records: %r", call.task, e)
            raise CannotTell(f"budget: what {call.task} costs cannot be told beforehand") from None
        for line in unprotected(reply.sent, head):
            if not isinstance(line.event, Nothing):
                me.release(line)
        if len(self.known) >= MANY:
            self.known.clear()
        self.known[price] = list(me.drawn)

    def _name(self, call: Call[object], kept: Kept) -> str:
        """Return all that a price depends on: settings, and the shapes of tensors."""
        texts = []
        for part in (dict(call.args), dict(kept)):
            text, tensors = encode(part)
            texts += [text, *(f"{tuple(t.shape)} {t.dtype}" for t in tensors.values())]
        return "\n".join([call.task, *texts])


def made_up(dataset: Dataset, n: int) -> Examples:
    """Return ``n`` records that look like those of a data set and tell nothing of them."""
    draw = torch.Generator().manual_seed(0)
    shape = (n, *dataset.shape)
    if dataset.train.x.dtype == torch.uint8:
        x = torch.randint(0, 256, shape, generator=draw, dtype=torch.uint8)
    else:
        x = torch.randn(shape, generator=draw).to(dataset.train.x.dtype)
    return Examples(x, torch.arange(n) % len(dataset.classes))


def _blank(kept: Kept) -> Kept:
    """Return kept state with zeros for all tensors, which may be made of the data."""
    text, tensors = encode(dict(kept))
    blank: Kept = decode(text, {k: torch.zeros_like(v) for k, v in tensors.items()})
    return blank
