"""Be any client of a simulation: its data, its kept state, one request at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from tacit.codec import pack, unpack
from tacit.compress import Compressor
from tacit.compress.replies import shrink
from tacit.core import (
    Again,
    BadInput,
    Call,
    Client,
    ClientId,
    Kept,
    Keywords,
    Ledger,
    Noise,
    PartOfTests,
    Reply,
    Task,
    afresh,
    no_limit,
    own_code,
    seed_for,
)
from tacit.core.data import Examples as AnyExamples
from tacit.data.examples import Examples
from tacit.data.federated import Federation
from tacit.engines.charging import charge, charge_failure
from tacit.engines.config import Config
from tacit.engines.messages import Answer, Head, Refusal, task_named
from tacit.engines.recall import Made, Recall
from tacit.engines.store import ClientStore
from tacit.models.precision import Precision, compute_in

T = TypeVar("T")


# kept beside whatever a method keeps: examples that join this client's data from then on
POOL = "pool"


@dataclass
class Digests:
    """Digests of requests; bytes that are answered for many clients are looked at once for all.

    Of the bytes as they came: what is unpacked of them a task may write to.
    """

    packed: bytes | None = None
    digest: Any = None  # blake2b of it

    def request(self, head: Head, packed: bytes) -> str:
        """Return a digest of all that a request's outcome depends on besides the client's data."""
        if packed is not self.packed:
            self.packed, self.digest = packed, hashlib.blake2b(packed, digest_size=16)
        digest = self.digest.copy()
        digest.update(str(head.accepted).encode())
        return str(digest.hexdigest())


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
    precision: Precision = "f32"  # that networks compute in
    durable: bool = False  # ledgers outlast a power failure before anything is answered
    made: Made | None = None  # where runs of a table keep what they have in common

    def __post_init__(self) -> None:
        self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        compute_in(self.precision, self.model)

    def client(
        self,
        task: str,
        client: ClientId,
        round: int,
        kept: Kept,
        spent: Ledger | None = None,
        attempt: int = 0,
    ) -> Client:
        """Return the client a task will see.

        Its batches depend on who and when, not on the method's name.
        """
        test = self.federation.test(client, self.device)
        examiner = PartOfTests.read(client) is not None
        own = test if examiner else self.federation.train(client, self.device)
        own = own if examiner else own.joined(kept.get(POOL))
        return Client(
            client,
            round,
            data=own,
            test=test,
            model=self.fresh(),
            kept={k: v for k, v in kept.items() if k != POOL},
            rng=self.generator(task, round, client, attempt),
            noise=self.noise,
            spent=spent or Ledger(),
            approve=self.approve,
            task=task,
            attempt=attempt,
            classes=self.classes,
            examples=len(own),
            precision=self.precision,
            goal=self.federation.dataset.goal,
            again=self._again(client),
        )

    def _again(self, client: ClientId) -> Again:
        """Return how a client makes what takes long; what is made of own data is never kept."""
        if self.made is None or self.noise != "seeded" or self.federation.dataset.own:
            return afresh
        return Recall(self.made, self.folder / client)

    @cached_property
    def _digests(self) -> Digests:
        """Tells requests apart."""
        return Digests()

    @cached_property
    def _pristine(self) -> dict[str, Tensor]:
        """The network's parameters and buffers before any task."""
        return {name: t.detach().clone() for name, t in _tensors(self.model)}

    def fresh(self) -> nn.Module:
        """Return the network as it was in the beginning: no task meets what another one left.

        It is walked through each time: a task may have exchanged any part of it.
        """
        there = dict(_tensors(self.model))
        if there:
            with torch.no_grad():
                torch._foreach_copy_(list(there.values()), [self._pristine[name] for name in there])
        return self.model.train()

    @property
    def classes(self) -> int:
        """How many classes the experiment has."""
        return len(self.federation.dataset.classes)

    def generator(
        self, task: str, round: int, client: ClientId, attempt: int = 0
    ) -> np.random.Generator:
        """Return the generator of one task, and seed torch's own alike."""
        place = (self.seed, _stream(task), round, client, *([attempt] if attempt else []))
        seed = seed_for(*place)
        # torch.manual_seed costs a millisecond here
        torch.default_generator.manual_seed(seed)
        if self.device == "cuda":
            torch.cuda.manual_seed(seed)
        return np.random.default_rng(seed)

    def own(self, call: Call[T], data: AnyExamples, round: int) -> T:
        """Run a task at the server itself, on data that it may see; none of that is a release."""
        examples, rows = Examples(data.x, data.y), np.arange(len(data))
        local = replace(self.federation.without_noise(examples, rows, self.device), public=True)
        with torch.random.fork_rng(devices=[]), one_thread():
            me = Client(
                "server",
                round,
                data=local,
                test=local,
                model=self.fresh(),
                kept={},
                rng=self.generator(call.task, round, "server"),
                noise=self.noise,
                task=call.task,
                classes=self.classes,
                precision=self.precision,
                goal=self.federation.dataset.goal,
            )
            sent: T = task_named(call.task).fn(me, **unpack(pack(call), known=True).args).sent
        return sent

    def config(self, **how: Any) -> Config:
        """Return how an engine with these clients works, with ``how`` in place of defaults."""
        of_this_world: Keywords = {
            "everyone": self.federation.everyone,
            "seed": self.seed,
            "noise": self.noise,
            "delta": self.delta,
            "compress": self.compress,
            "public": self.federation.public(),
        }
        return Config(**of_this_world | how)

    def store(self, client: ClientId) -> ClientStore:
        """Return a client's store."""
        return ClientStore(self.folder / client)

    def handle(self, head: Head, call: Call[object], packed: bytes) -> Answer | Refusal:
        """Settle the previous reply, run the task, and write down what it releases.

        The ledger is written before anything is answered, whatever the answer is. ``packed`` is
        what the call was unpacked from, for this client alone.
        """
        store = self.store(head.client)
        kept = store.kept(head.accepted)
        asked = self._digests.request(head, packed) if self.noise == "seeded" else ""
        attempt = store.attempt(head.ask, asked) if asked else 0
        me = self.client(call.task, head.client, head.round, kept, store.ledger(), attempt)
        store.forget_all_but([head.accepted, head.saved, *head.older])
        try:
            reply = task_named(call.task).fn(me, **call.args)
            charge(me, reply, head)
            keeps = kept_by(call.task, reply, kept)
            if keeps is not None:
                store.keep(head.ask, keeps)
            sent = shrink(self.compress, reply.sent, call.args)
            return Answer(sent, keeps is not None, list(me.spent))
        except Exception as e:
            return Refusal.of(e, charge_failure(me, head, e))
        finally:
            store.write_ledger(me.spent, durable=self.durable)

    def look(self, head: Head, call: Call[object]) -> Any:
        """Run a task that only reads, for evaluation: nothing is kept, nothing is released."""
        kept = self.store(head.client).kept(head.accepted)
        me = self.client(call.task, head.client, head.round, kept)
        return task_named(call.task).fn(me, **call.args).sent

    def serve(self, kind: str, head: Head, packed: bytes) -> bytes:
        """Run one request and return the packed result, or why there is none.

        Its call is unpacked for this client anew: a task may write to what it is given. It seeds
        torch's generator: whoever runs it beside other code puts that back.
        """
        try:
            call = unpack(packed, known=True)
            ask = kind == "ask"
            return pack(self.handle(head, call, packed) if ask else self.look(head, call))
        except Exception as e:
            return pack(Refusal.of(e))


def kept_by(task: str, reply: Reply[object], before: Mapping[str, object]) -> Kept | None:
    """Return what a reply leaves at the client, its pool included; None: all stays as it is.

    A pool of a task of the user's own is refused: what is in a pool counts as released.
    """
    if reply.pool is not None and not task_named(task).built_in:
        raise BadInput("pool: a task of your own cannot declare examples released; use keep")
    if POOL in (reply.keep or {}):
        raise BadInput(
            f"keep: {POOL!r} is where samples from other clients are kept; choose another name"
        )
    if reply.keep is None and reply.pool is None:
        return None
    own = before if reply.keep is None else reply.keep
    pool = before.get(POOL) if reply.pool is None else reply.pool
    return {**own, **({} if pool is None else {POOL: pool})}


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _stream(task: str) -> str:
    """Return what a task's randomness is named after.

    Methods of this package draw the same batches in tasks of the same name, so that they compare;
    a task of the user's own has a stream of its own, however its module was named or imported.
    """
    module, _, name = task.rpartition(".")
    known = Task.registry.get(task)
    if known is None or known.built_in:
        return name
    return f"{own_code.stem(module)}.{name}"


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch add up in one thread, as in a worker: the same order of sums everywhere."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
