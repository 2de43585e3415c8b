"""One client, the same under every engine; and what every engine does with answers."""

from __future__ import annotations

import hashlib
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from tacit.codec import encode, pack, unpack
from tacit.compress import Compressor
from tacit.compress.replies import restore, shrink
from tacit.core import (
    FEDERATION,
    BadInput,
    BudgetReached,
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
    Reply,
    Sample,
    TacitError,
    Task,
    TooFewReplies,
    no_limit,
    own_code,
    rng_for,
    seed_for,
)
from tacit.core import errors as known_errors
from tacit.data.examples import Examples
from tacit.data.federated import Federation, LocalData
from tacit.engines.store import ClientStore, Draws

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
        attempt: int = 0,
    ) -> Client:
        """Return the client a task will see.

        Its batches depend on who and when, not on the method's name.
        """
        test = self.federation.test(client, self.device)
        examiner = client.startswith("test:")
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
        )

    @cached_property
    def _pristine(self) -> dict[str, Tensor]:
        """The network's parameters and buffers before any task."""
        return {name: t.detach().clone() for name, t in _tensors(self.model)}

    def fresh(self) -> nn.Module:
        """Return the network as it was in the beginning: no task meets what another one left."""
        with torch.no_grad():
            for name, t in _tensors(self.model):
                t.copy_(self._pristine[name])
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
        # torch.manual_seed costs a millisecond here
        torch.default_generator.manual_seed(seed_for(*place))
        if self.device == "cuda":
            torch.cuda.manual_seed(seed_for(*place))
        return rng_for(*place)

    def own(self, call: Call[T], data: Examples, round: int) -> T:
        """Run a task at the server itself, on data that it may see; nothing of that is a release."""
        d = self.federation.dataset
        rows = np.arange(len(data))
        local = LocalData(data, rows, d.mean, d.std, device=self.device, public=True)
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
            )
            sent: T = task_named(call.task).fn(me, **unpack(pack(call), known=True).args).sent
        return sent

    def store(self, client: ClientId) -> ClientStore:
        """Return a client's store."""
        return ClientStore(self.folder / client)

    def handle(self, head: Head, call: Call[Any]) -> Answer | Refusal:
        """Settle the previous reply, run the task, and write down what it releases.

        The ledger is written before anything is answered, whatever the answer is.
        """
        store = self.store(head.client)
        kept = store.kept(head.accepted)
        attempt = store.attempt(head.ask, _request(head, call)) if self.noise == "seeded" else 0
        me = self.client(call.task, head.client, head.round, kept, store.ledger(), attempt)
        store.forget_all_but([head.accepted, head.saved])
        try:
            reply = task_named(call.task).fn(me, **call.args)
            charge(me, reply, head)
            if reply.keep is not None:
                pool = {k: v for k, v in kept.items() if k == POOL}
                store.keep(head.ask, pool | dict(reply.keep))
            sent = shrink(self.compress, reply.sent, call.args)
            return Answer(sent, reply.keep is not None, list(me.spent))
        except Exception as e:
            return Refusal.of(e, charge_failure(me, head, e))
        finally:
            store.write_ledger(me.spent)

    def look(self, head: Head, call: Call[Any]) -> Any:
        """Run a task that only reads, for evaluation: nothing is kept, nothing is released."""
        kept = self.store(head.client).kept(head.accepted)
        me = self.client(call.task, head.client, head.round, kept)
        return task_named(call.task).fn(me, **call.args).sent

    def serve(self, kind: str, head: Head, call: Call[Any]) -> bytes:
        """Run one request and return the packed result, or why there is none."""
        with torch.random.fork_rng(devices=[]):
            try:
                return pack(self.handle(head, call) if kind == "ask" else self.look(head, call))
            except Exception as e:
                return pack(Refusal.of(e))


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
    if known is None or known.fn.__module__.startswith("tacit."):
        return name
    return f"{own_code.stem(module)}.{name}"


def _request(head: Head, call: Call[Any]) -> str:
    """Return a digest of all that a request's outcome depends on besides the client's data."""
    digest = hashlib.blake2b(pack(call), digest_size=16)
    digest.update(str(head.accepted).encode())
    return digest.hexdigest()


def charge(me: Client, reply: Reply[Any], head: Head) -> None:
    """Write what a reply tells without a mechanism; then refuse numbers that are not finite.

    In this order: that training has diverged is told too.
    """
    for line in unprotected(reply.sent, head):
        if isinstance(line.event, Nothing):
            me.spent.add([line])
        else:
            me.release(line)
    try:
        check_finite(dict(reply.keep or {}), head)
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
    ours = task_named(me.task).fn.__module__.startswith("tacit.")
    if not isinstance(e, BudgetReached) and not (ours and isinstance(e, TacitError)):
        me.spent.add([untold(head, f"that it failed ({type(e).__name__})")])
    return me.spent


def untold(head: Head, what: str) -> Release:
    """Return the ledger line for something that a client tells without a mechanism."""
    task = head.ask.partition("@")[0]
    event = NonPrivate(f"{task} tells the server {what}")
    return Release(task, "example", head.client, "server", event, ((head.round, head.round),))


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
        self.approve_clients: Callable[[Ledger], None] = no_limit  # of what they send themselves
        self.bytes_up = self.bytes_down = 0
        self.failed: dict[ClientId, str] = {}
        self.public: Examples | None = None
        self.draws = Draws()
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
        """Close processes and connections."""

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
        """Run ``call`` on every sampled client and accept what came back, all of it or nothing.

        Whatever a client has released is in the ledger first, also if it refused, and also if the
        run stops for another one.

        Args:
            call: the task and its arguments
            of: who is asked
            need: the least share of them that must answer
        """
        ask = f"{call.task}@{of.round}"
        blob = pack(call)
        blobs, failed = self.exchange("ask", blob, [self._head(i, ask, of.round) for i in of.ids])
        self.bytes_down += len(blob) * len(of.ids)
        self.bytes_up += sum(map(len, blobs.values()))
        back: dict[ClientId, Answer | Refusal] = {i: unpack(blobs[i]) for i in of.ids if i in blobs}
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
        sent = {i: restore(self.compress, answer.sent, call.args) for i, answer in got.items()}
        return Replies(ask, of, sent, failed)

    def learn(self, lines: Iterable[Release]) -> None:
        """Write what clients say that they have released."""
        self.on_release(self.ledger.add(lines), self.ledger)

    def check_spent(self, ids: Iterable[ClientId]) -> None:
        """Stop a run in which a client has spent more than the budget: the last line of defence.

        Clients refuse by themselves before that.
        """
        owners = {FEDERATION, *ids}
        self.approve_clients(Ledger(line for line in self.ledger if line.owner in owners))

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
        seen = {i: unpack(blobs[i]) for i in ids}
        refused = {i: r for i, r in seen.items() if isinstance(r, Refusal)}
        raise_first(refused.values())
        for i, r in refused.items():
            raise TooFewReplies(f"evaluation on client {i} failed: {r.words}")
        return seen

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

    def turn(self, name: str, content: str) -> int:
        """Return which of the different contents under a name, ``what@round``, this is, from 0 on.

        For the server's mechanisms, before they draw: seeded noise must not serve two of them.
        """
        return self.draws.number(name, content) if self.noise == "seeded" else 0

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


def raise_first(refused: Iterable[Refusal]) -> None:
    """Raise the first error that concerns the whole run, if there is one."""
    for error in (refusal.again() for refusal in refused):
        if error is not None:
            raise error


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
        """Have nothing to close."""

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
