"""One client, the same under every engine; and what every engine does with answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from tacit.codec import encode, pack, unpack
from tacit.compress import Compressor
from tacit.compress.replies import restore, shrink
from tacit.core import (
    FEDERATION,
    BadInput,
    Call,
    Client,
    ClientId,
    Diverged,
    Law,
    Ledger,
    Noise,
    NonPrivate,
    Nothing,
    Params,
    PublicFloat,
    PublicInt,
    Release,
    Released,
    Replies,
    Sample,
    Task,
    TooFewReplies,
    no_limit,
    rng_for,
    seed_for,
)
from tacit.data.examples import Examples
from tacit.data.federated import Federation, LocalData
from tacit.engines.store import ClientStore

T = TypeVar("T")
# kept beside whatever a method keeps: examples that join this client's data from then on
POOL = "pool"


@dataclass(frozen=True)
class Head:
    """What goes with a call to one client."""

    client: ClientId
    ask: str
    round: int
    accepted: str | None  # the last ask whose kept state the server accepted from this client
    # the same, as of the server's last checkpoint, to which it may have to go back
    saved: str | None


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
class World:
    """Everything a process needs to be any client of a simulation."""

    federation: Federation
    model: nn.Module
    seed: int
    folder: Path  # clients' kept state
    device: str = "cpu"
    noise: Noise = "seeded"
    delta: float = 1e-5
    # raises where a client's ledger would pass its budget
    approve: Callable[[Ledger], None] = no_limit
    compress: Compressor = field(default_factory=Compressor)  # how updates travel

    def __post_init__(self) -> None:
        self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def client(
        self,
        task: str,
        client: ClientId,
        round: int,
        kept: Mapping[str, Any],
        spent: Ledger | None = None,
    ) -> Client:
        """Return the client a task will see.

        Its batches depend on who and when, not on the method's name.
        """
        rng = self.generator(task, round, client)
        examiner = client.startswith("test:")
        test = self.federation.test(client, self.device)
        data = (
            test if examiner else self.federation.train(client, self.device).joined(kept.get(POOL))
        )
        mine = {k: v for k, v in kept.items() if k != POOL}
        rest = (self.noise, spent or Ledger(), self.approve, task)
        return Client(client, round, data, test, self.model, mine, rng, *rest, classes=self.classes)

    @property
    def classes(self) -> int:
        """How many classes the experiment has."""
        return len(self.federation.dataset.classes)

    def generator(self, task: str, round: int, client: ClientId) -> np.random.Generator:
        """Return the generator of one task, and seed torch's own alike."""
        place = (self.seed, task.rpartition(".")[2], round, client)
        # torch.manual_seed costs a millisecond here
        torch.default_generator.manual_seed(seed_for(*place))
        if self.device == "cuda":
            torch.cuda.manual_seed(seed_for(*place))
        return rng_for(*place)

    def own(self, call: Call[T], data: Examples, round: int) -> T:
        """Run a task at the server itself, on data that it may see; nothing of that is a release."""
        dataset = self.federation.dataset
        rows = np.arange(len(data))
        local = LocalData(data, rows, dataset.mean, dataset.std, device=self.device, public=True)
        with torch.random.fork_rng(devices=[]), one_thread():
            rng = self.generator(call.task, round, "server")
            rest = (self.noise, Ledger(), no_limit, call.task)
            me = Client(
                "server", round, local, local, self.model, {}, rng, *rest, classes=self.classes
            )
            sent: T = task_named(call.task).fn(me, **unpack(pack(call), known=True).args).sent
        return sent

    def store(self, client: ClientId) -> ClientStore:
        """Return a client's store."""
        return ClientStore(self.folder / client)

    def handle(self, head: Head, call: Call[Any]) -> Answer:
        """Settle the previous reply, run the task, and write down what it releases before anything is sent."""
        store = self.store(head.client)
        kept = store.kept(head.accepted)
        me = self.client(call.task, head.client, head.round, kept, store.ledger())
        store.forget_all_but([head.accepted, head.saved])
        reply = task_named(call.task).fn(me, **call.args)
        check_finite((reply.sent, dict(reply.keep or {})), head)
        if bare := unprotected(reply.sent, head):
            me.spent.add(bare)
            me.approve(me.spent)
        store.write_ledger(me.spent)
        if reply.keep is not None:
            store.keep(head.ask, {k: v for k, v in kept.items() if k == POOL} | dict(reply.keep))
        return Answer(
            shrink(self.compress, reply.sent, call.args), reply.keep is not None, list(me.spent)
        )

    def look(self, head: Head, call: Call[Any]) -> Any:
        """Run a task that only reads, for evaluation: nothing is kept, nothing counts as released."""
        me = self.client(
            call.task, head.client, head.round, self.store(head.client).kept(head.accepted)
        )
        return task_named(call.task).fn(me, **call.args).sent

    def serve(self, kind: str, head: Head, call: Call[Any]) -> bytes:
        """Run one request and return the packed result."""
        with torch.random.fork_rng(devices=[]):
            return pack(self.handle(head, call) if kind == "ask" else self.look(head, call))


def task_named(name: str) -> Task[Any, Any]:
    """Return a known task."""
    if name not in Task.registry:
        raise BadInput(f"message: unknown task {name!r}")
    return Task.registry[name]


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


def may_leave(value: Any) -> bool:
    """Tell whether a value came out of a mechanism, or is public."""
    return isinstance(value, Released | PublicInt | PublicFloat) or (
        isinstance(value, Params) and value.released
    )


def check_finite(obj: Any, head: Head) -> None:
    """Stop a run whose training has diverged, before the damage reaches the shared model."""
    for value in encode(obj)[1].values():
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise Diverged(
                f"round {head.round + 1}, client {head.client}: training gave a number that is not finite "
                "(a smaller learning rate may help: sgd.lr or local.lr); the last good checkpoint is kept"
            )


Results = tuple[dict[ClientId, bytes], dict[ClientId, str]]  # packed answers, and why there is none
# "crash" before the work, "lost" after it, "die" in it, or None
Fault = Callable[[ClientId, int], str | None]


def no_fault(client: ClientId, round: int) -> str | None:
    """Let everything through."""
    return None


def sample_rng(seed: int, round: int) -> np.random.Generator:
    """Return the generator that chooses who takes part in a round."""
    return rng_for(seed, "sample", round)


class Engine(ABC):
    """A cohort that lives somewhere.

    Sampling, acceptance, traffic, and the server's copy of the ledger.
    """

    def __init__(
        self,
        everyone: Sequence[ClientId],
        seed: int,
        fault: Fault = no_fault,
        noise: Noise = "seeded",
        delta: float = 1e-5,
    ) -> None:
        self.everyone, self.seed, self.fault, self.noise, self.delta = (
            tuple(everyone),
            seed,
            fault,
            noise,
            delta,
        )
        self.sample_seed = seed  # a secret where clients must not be able to tell who takes part
        self.ledger = Ledger()
        self.accepted: dict[ClientId, str] = {}
        self.saved: dict[ClientId, str] = {}
        self.approve: Callable[[Ledger], None] = no_limit
        self.bytes_up = self.bytes_down = 0
        self.failed: dict[ClientId, str] = {}
        self.public: Examples | None = None
        self.compress = Compressor()
        self.on_release: Callable[[list[Release], Ledger], None] = lambda lines, ledger: None
        self.on_answer: Callable[[int, int], None] = lambda done, of: None

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
        """Let go of processes and connections."""

    def sample(self, law: Law, round: int) -> Sample:
        """Choose who takes part in ``round``.

        The same every time it is asked, and for every method.
        """
        return Sample(
            tuple(law.pick(self.everyone, sample_rng(self.sample_seed, round))), round, law
        )

    def rng(self, *path: object) -> np.random.Generator:
        """Return the server's generator for this place in the run."""
        return rng_for(self.seed, "server", *path)

    def ask(self, call: Call[T], of: Sample, *, need: float = 0.5) -> Replies[T]:
        """Run ``call`` on every sampled client and accept what came back, all of it or, below ``need``, nothing."""
        ask, blob = f"{call.task}@{of.round}", pack(call)
        blobs, failed = self.exchange("ask", blob, [self._head(i, ask, of.round) for i in of.ids])
        self.bytes_down += len(blob) * len(of.ids)
        self.bytes_up += sum(map(len, blobs.values()))
        self.failed.update(failed)
        got: dict[ClientId, Answer] = {i: unpack(blobs[i]) for i in of.ids if i in blobs}
        self.on_release(
            self.ledger.add(r for answer in got.values() for r in answer.ledger), self.ledger
        )
        if len(got) < need * len(of.ids):
            raise TooFewReplies(_too_few(of, got, failed))
        self.accepted.update({i: ask for i, answer in got.items() if answer.keeps})
        sent = {i: restore(self.compress, answer.sent, call.args) for i, answer in got.items()}
        return Replies(ask, of, sent, failed)

    def look(self, call: Call[T], ids: Sequence[ClientId], round: int) -> dict[ClientId, T]:
        """Evaluate something at clients.

        Read-only, and outside the experiment's traffic and ledger.
        """
        blob, heads = pack(call), [self._head(i, f"{call.task}@{round}", round) for i in ids]
        blobs, failed = self.exchange("look", blob, heads)
        if failed:  # looking again costs nothing
            again, failed = self.exchange("look", blob, [h for h in heads if h.client in failed])
            blobs |= again
        for i, why in failed.items():
            raise TooFewReplies(f"evaluation on client {i} failed: {why}")
        return {i: unpack(blobs[i]) for i in ids}

    def _head(self, client: ClientId, ask: str, round: int) -> Head:
        return Head(client, ask, round, self.accepted.get(client), self.saved.get(client))

    def afford(self, line: Release) -> None:
        """Stop the run if a release would pass the budget: to be asked before the clients are."""
        self.approve(
            Ledger(r for r in self.ledger if r.owner in (FEDERATION, line.owner)).plus(line)
        )

    def release(self, line: Release) -> None:
        """Write a release of the server's own, unless it would pass the budget.

        For mechanisms, before they draw.
        """
        self.afford(line)
        after = self.ledger.plus(line)
        self.on_release([r for r in after if r.owner == line.owner], after)
        self.ledger = after

    def snapshot(self) -> dict[ClientId, str]:
        """Return what the server must remember besides the method's state and the ledger, which are kept apart."""
        return dict(self.accepted)

    def mark_saved(self) -> None:
        """Note that the present snapshot is safely on disk."""
        self.saved = dict(self.accepted)

    def restore(self, snapshot: Mapping[ClientId, str], ledger: Ledger | None = None) -> None:
        """Go back to a snapshot; the ledger is never rolled back."""
        self.accepted, self.saved = dict(snapshot), dict(snapshot)
        self.ledger = ledger or Ledger()


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch add up in one thread, as in a worker, so that sums are added in the same order everywhere."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _too_few(of: Sample, got: Mapping[ClientId, Any], failed: Mapping[ClientId, str]) -> str:
    first = next((f"; client {i}: {why}" for i, why in failed.items()), "")
    return f"round {of.round + 1}: {len(got)} of {len(of.ids)} clients replied, too few to go on{first}"


class Serial(Engine):
    """Every client in this process, one after the other: for tests and for debugging a task."""

    def __init__(self, world: World, fault: Fault = no_fault) -> None:
        super().__init__(world.federation.everyone, world.seed, fault, world.noise, world.delta)
        self.world, self.public, self.compress = world, world.federation.public(), world.compress
        world.model.to(world.device)

    def own(self, call: Call[T], data: Examples, round: int) -> T:
        """Run a task here."""
        return self.world.own(call, data, round)

    def close(self) -> None:
        """Have nothing to let go of."""

    def exchange(self, kind: str, call: bytes, heads: Sequence[Head]) -> Results:
        """Answer each head in turn."""
        got: dict[ClientId, bytes] = {}
        failed: dict[ClientId, str] = {}
        with one_thread():
            for head in heads:
                fault = self.fault(head.client, head.round) if kind == "ask" else None
                if fault in ("crash", "die"):
                    failed[head.client] = fault
                    continue
                blob = self.world.serve(kind, head, unpack(call, known=True))
                if fault == "lost":
                    failed[head.client] = fault
                else:
                    got[head.client] = blob
                self.on_answer(len(got) + len(failed), len(heads))
        return got, failed
