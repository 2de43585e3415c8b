"""What every engine does at the server: sampling, acceptance, traffic, the ledger."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from tacit.codec import Blob, Stored, pack, unpack
from tacit.compress.replies import restore
from tacit.core import (
    FEDERATION,
    AskId,
    Call,
    ClientId,
    Later,
    Law,
    Ledger,
    Noise,
    Params,
    Release,
    Replies,
    Sample,
    TooFewReplies,
    ask_id,
    rng_for,
)
from tacit.core.data import Examples
from tacit.engines.config import Config
from tacit.engines.messages import Answer, Head, Refusal

T = TypeVar("T")


Results = tuple[dict[ClientId, Blob], dict[ClientId, str]]  # packed answers, and why there is none


def sample_rng(seed: int, round: int) -> np.random.Generator:
    """Return the generator that chooses who takes part in a round."""
    return rng_for(seed, "sample", round)


class Engine(ABC):
    """A cohort that lives somewhere.

    Sampling, acceptance, traffic, and the server's copy of the ledger.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.ledger = Ledger()
        self.accepted: dict[ClientId, AskId] = {}
        self.saved: dict[ClientId, AskId] = {}
        self.older: list[dict[ClientId, AskId]] = []  # of the checkpoints before that, newest first
        self.count_anew()

    @property
    def everyone(self) -> tuple[ClientId, ...]:
        """All clients, whether they take part or not."""
        return self.config.everyone

    @property
    def noise(self) -> Noise:
        """Where the server's mechanisms draw their randomness."""
        return self.config.noise

    @property
    def delta(self) -> float:
        """The delta of every (epsilon, delta) in this run."""
        return self.config.delta

    @property
    def public(self) -> Examples | None:
        """Examples that belong to nobody, if there are any."""
        return self.config.public

    def packed(self, call: Call[object]) -> bytes:
        """Return a call as :meth:`exchange` takes it."""
        return pack(call)

    @abstractmethod
    def exchange(self, kind: str, call: bytes, heads: Sequence[Head]) -> Results:
        """Send a packed call to clients.

        Return packed results and, for the others, why there is none.
        """

    @abstractmethod
    def own(self, call: Call[T], data: Examples, round: int) -> T:
        """Run a task at the server itself, on data that it may see."""

    @abstractmethod
    def close(self) -> None:
        """Close processes and connections."""

    def advance(self, step: Callable[[], T]) -> T:
        """Make one step of a method's own code; clients of ours are not to blame if it fails."""
        return step()

    @property
    def defers(self) -> bool:
        """Whether what a round leaves to do is done while the next one is under way."""
        return False

    def when_busy(self, work: Callable[[], None]) -> None:
        """Do what a round leaves to do, such as to save it.

        At once; or, where clients can work meanwhile, as soon as the next ones do. It is done
        before any answer of theirs counts.
        """
        work()

    def catch_up(self) -> None:
        """Do now what was left for when clients work."""
        return

    def sample(self, law: Law, round: int) -> Sample:
        """Choose who takes part in ``round``.

        The same every time it is asked, and for every method.
        """
        config = self.config
        seed = config.seed if config.sample_seed is None else config.sample_seed
        return Sample(tuple(law.pick(self.everyone, sample_rng(seed, round))), round, law)

    def rng(self, *path: object) -> np.random.Generator:
        """Return the server's generator for this place in the run."""
        return rng_for(self.config.seed, "server", *path)

    def ask(self, call: Call[T], of: Sample, *, need: float = 0.5) -> Replies[T]:
        """Run ``call`` on every sampled client and accept what came back, all of it or nothing.

        Whatever a client has released is in the ledger first, also if it refused, and also if the
        run stops for another one.

        Args:
            call: the task and its arguments
            of: who is asked
            need: the least share of them that must answer
        """
        ask = ask_id(call.task, of.round)
        blob = self.packed(call)
        blobs, failed = self.exchange("ask", blob, [self._head(i, ask, of.round) for i in of.ids])
        self.bytes_down += len(blob) * len(of.ids)
        sent = sum(map(len, blobs.values()))
        self.bytes_up += sent
        self.bytes_up_each += sent / max(1, len(blobs))
        del blob  # as large as the model
        # one by one, so that nobody's answer is in memory twice for longer than need be
        back: dict[ClientId, Answer | Refusal] = {
            i: self._taken(blobs.pop(i), call) for i in of.ids if i in blobs
        }
        self.learn(r for answer in back.values() for r in answer.ledger)
        got = {i: answer for i, answer in back.items() if isinstance(answer, Answer)}
        refused = {i: answer for i, answer in back.items() if isinstance(answer, Refusal)}
        failed = {**failed, **{i: r.words for i, r in refused.items()}}
        self.failed.update(failed)
        raise_first(refused.values())
        self.check_spent(of.ids)
        if len(got) < need * len(of.ids):
            raise TooFewReplies(_too_few(of, got, failed))
        self.accepted.update({i: ask for i, answer in got.items() if answer.keeps})
        return Replies(ask, of, {i: answer.sent for i, answer in got.items()}, failed)

    def _taken(self, blob: Blob, call: Call[T]) -> Answer | Refusal:
        """Return an answer, expanded if it was compressed; a large payload stays in its file."""
        answer: Answer | Refusal = unpack(blob)
        if isinstance(answer, Refusal):
            return answer
        if isinstance(blob, Stored) and self.config.compress.matrix == "none":
            return replace(answer, sent=Later(partial(_sent_in, blob)))
        return replace(answer, sent=restore(self.config.compress, answer.sent, call.args))

    def mean(self, parts: Iterable[Params | tuple[Params, float]]) -> Params:
        """Return one update of many: their mean, or what the experiment says in its place."""
        return self.config.aggregate(parts)

    def learn(self, lines: Iterable[Release]) -> None:
        """Write what clients say that they have released."""
        self.config.on_release(self.ledger.add(lines), self.ledger)

    def settle_round(self, round: int) -> None:
        """Bring the ledger up to what was asked, before a round is written down.

        Clients on this machine write their lines with code of this package, before anything leaves.
        """
        return

    def check_spent(self, ids: Iterable[ClientId]) -> None:
        """Stop a run in which a client has spent more than the budget: the last line of defence.

        Clients refuse by themselves before that.
        """
        owners = {FEDERATION, *ids}
        self.config.approve_clients(Ledger(line for line in self.ledger if line.owner in owners))

    def look(self, call: Call[T], ids: Sequence[ClientId], round: int) -> dict[ClientId, T]:
        """Evaluate something at clients.

        Read-only, and outside the experiment's traffic and ledger.
        """
        blob, heads = (
            self.packed(call),
            [self._head(i, ask_id(call.task, round), round) for i in ids],
        )
        blobs, failed = self.exchange("look", blob, heads)
        if failed:  # looking again costs nothing
            again, failed = self.exchange("look", blob, [h for h in heads if h.client in failed])
            blobs |= again
        for i, why in failed.items():
            raise TooFewReplies(f"evaluation on client {i} failed: {why}")
        seen = {i: unpack(blobs[i]) for i in ids}
        refused = {i: r for i, r in seen.items() if isinstance(r, Refusal)}
        raise_first(refused.values())
        for i, r in refused.items():
            raise TooFewReplies(f"evaluation on client {i} failed: {r.words}")
        return seen

    def _head(self, client: ClientId, ask: AskId, round: int) -> Head:
        older = dict.fromkeys(each[client] for each in self.older if client in each)
        known = self.accepted.get(client), self.saved.get(client)
        return Head(client, ask, round, *known, tuple(older))

    def afford(self, line: Release) -> None:
        """Stop the run if a release would pass the budget: to be asked before the clients are."""
        self.config.approve(
            Ledger(r for r in self.ledger if r.owner in (FEDERATION, line.owner)).plus(line)
        )

    def release(self, line: Release) -> None:
        """Write a release of the server's own, unless it would pass the budget.

        For mechanisms, before they draw.
        """
        self.catch_up()
        self.afford(line)
        after = self.ledger.plus(line)
        self.config.on_release([r for r in after if r.owner == line.owner], after)
        self.ledger = after

    def turn(self, name: AskId, content: str) -> int:
        """Return which of the different contents under a name this is, from 0 on.

        For the server's mechanisms, before they draw: seeded noise must not serve two of them.
        """
        self.catch_up()
        return self.config.draws.number(name, content) if self.noise == "seeded" else 0

    def count_anew(self) -> None:
        """Begin to count bytes and failures of the next round."""
        self.bytes_up = 0
        self.bytes_up_each = 0.0  # by a client that is asked whenever anybody is, on average
        self.bytes_down = 0
        self.failed: dict[ClientId, str] = {}

    def snapshot(self) -> dict[ClientId, AskId]:
        """Return what the server must remember besides the method's state and the ledger.

        Those two are kept apart.
        """
        return dict(self.accepted)

    def mark_saved(self) -> None:
        """Note that the present snapshot is safely on disk."""
        self.older = [self.saved, *self.older][: self.config.keep - 1]
        self.saved = dict(self.accepted)

    def restore(
        self,
        snapshot: Mapping[ClientId, AskId],
        ledger: Ledger | None = None,
        older: Iterable[Mapping[ClientId, AskId]] = (),
    ) -> None:
        """Go back to a snapshot; the ledger is never rolled back.

        ``older`` are snapshots that the server may still have to go back to, newest first.
        """
        self.accepted, self.saved = dict(snapshot), dict(snapshot)
        self.older = [dict(each) for each in older]
        self.ledger = ledger or Ledger()


def _sent_in(blob: Stored) -> Any:
    """Return what a client sends, from the file that it lies in."""
    return unpack(blob).sent


def raise_first(refused: Iterable[Refusal]) -> None:
    """Raise the first error that concerns the whole run, if there is one."""
    for error in (refusal.again() for refusal in refused):
        if error is not None:
            raise error


def _too_few(of: Sample, got: Mapping[ClientId, Any], failed: Mapping[ClientId, str]) -> str:
    first = next((f"; client {i}: {why}" for i, why in failed.items()), "")
    return (
        f"round {of.round + 1}: {len(got)} of {len(of.ids)} clients replied, "
        f"too few to go on{first}"
    )
