"""Ledger lines for what leaves a client without a mechanism: silence is never a guarantee."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from tacit.core import (
    BudgetReached,
    Client,
    Diverged,
    Ledger,
    NonPrivate,
    Nothing,
    Params,
    PublicFloat,
    PublicInt,
    Release,
    Released,
    Reply,
    TacitError,
)
from tacit.engines.messages import Head, check_finite, task_named


def charge(me: Client, reply: Reply[object], head: Head) -> None:
    """Write what a reply tells without a mechanism; then refuse numbers that are not finite.

    In this order: that training has diverged is told too.
    """
    for line in unprotected(reply.sent, head):
        if isinstance(line.event, Nothing):
            me.spent.add([line])
        else:
            me.release(line)
    if reply.keep:
        try:
            check_finite(dict(reply.keep), head)
        except Diverged:
            me.release(untold(head, "that what it keeps is not finite"))
            raise
    check_finite(reply.sent, head)


def charge_failure(me: Client, head: Head, e: Exception) -> Ledger:
    """Write that a task has failed, unless it says so by an error of ours; return the ledger.

    A task of this package raises a TacitError for reasons that are public (settings, the network)
    or follow from what it has released. Anything else may depend on the data, and so may whatever a
    task of the user's own raises, but for the budget.
    """
    ours = task_named(me.task).built_in
    if not isinstance(e, BudgetReached) and not (ours and isinstance(e, TacitError)):
        me.spent.add([untold(head, f"that it failed ({type(e).__name__})")])
    return me.spent


def untold(head: Head, what: str) -> Release:
    """Return the ledger line for something that a client tells without a mechanism."""
    task = head.ask.partition("@")[0]
    event = NonPrivate(f"{task} tells the server {what}")
    return Release(task, "example", head.client, "server", event, ((head.round, head.round),))


def unprotected(sent: Any, head: Head) -> list[Release]:
    """Return the ledger line for what leaves a client without a mechanism.

    Silence is never a guarantee.
    """
    values = {f.name: getattr(sent, f.name) for f in fields(sent)}
    bare = [name for name, value in values.items() if not may_leave(value)]
    task = head.ask.partition("@")[0]
    if all(isinstance(value, PublicInt | PublicFloat) for value in values.values()):
        event: NonPrivate | Nothing = Nothing()
    elif bare:
        event = NonPrivate(f"{task} sends {', '.join(bare)} to the server without noise")
    else:
        return []
    return [Release(task, "example", head.client, "server", event, ((head.round, head.round),))]


def may_leave(value: object) -> bool:
    """Tell whether a value came out of a mechanism, or is public."""
    return isinstance(value, Released | PublicInt | PublicFloat) or (
        isinstance(value, Params) and value.released
    )
