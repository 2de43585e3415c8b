"""How an engine works for one run: fixed when it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tacit.compress import Compressor
from tacit.core import Aggregate, ClientId, Ledger, Noise, Release, no_limit
from tacit.data.examples import Examples
from tacit.engines.asked import Expected, nothing_expected
from tacit.engines.store import Draws

# "crash" before the work, "lost" after it, "die" in it, or None
Fault = Callable[[ClientId, int], str | None]


def no_fault(client: ClientId, round: int) -> str | None:
    """Let everything through."""
    return None


def _no_record(lines: list[Release], ledger: Ledger) -> None:
    """Write nothing down."""


def _no_progress(done: int, of: int) -> None:
    """Tell nobody."""


@dataclass(frozen=True)
class Config:
    """What an engine knows of the run: what the experiment says, and who is asked and told.

    The first half follows from the experiment. The second half is for whoever conducts it.
    """

    everyone: tuple[ClientId, ...]
    seed: int
    # who takes part derives from it: a secret where clients must not be able to tell; None: seed
    sample_seed: int | None = None
    noise: Noise = "seeded"  # where the server's mechanisms draw their randomness
    delta: float = 1e-5  # of every (epsilon, delta) in this run
    compress: Compressor = field(default_factory=Compressor)  # how updates travel
    aggregate: Aggregate = field(default_factory=Aggregate)  # how updates become one
    public: Examples | None = None  # examples that belong to nobody
    keep: int = 1  # checkpoints that the server may go back to

    # what the rule of the method says that clients release, to hold their ledgers against
    expected: Expected = nothing_expected

    # these raise where a ledger would pass the budget: one with a release of the server's own, and
    # one with what clients send themselves
    approve: Callable[[Ledger], None] = no_limit
    approve_clients: Callable[[Ledger], None] = no_limit
    # which contents seeded noise of the server has served
    draws: Draws = field(default_factory=Draws)
    # called with new lines and the whole ledger, before anything is done with what they are of
    on_release: Callable[[list[Release], Ledger], None] = _no_record
    on_answer: Callable[[int, int], None] = _no_progress  # called with how many of how many
    fault: Fault = no_fault  # for tests: what goes wrong, for which client in which round
