"""Simulate clients in worker processes on this machine.

One torch thread each, data in shared memory.

Two processes with one thread each do almost twice the work of one; one process with two threads
does less than one with one thread, because these networks are small. A worker can be any client: it
holds the data set (shared, not copied), one network, and whatever client it is asked to be at the
moment.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

import torch
import torch.multiprocessing as mp

from tacit.codec import Blob, Opened, pack, unpack
from tacit.core import Call, ClientId, Task, own_code
from tacit.core.data import Examples
from tacit.engines.client_host import World
from tacit.engines.config import Config
from tacit.engines.memory import keep_memory
from tacit.engines.messages import Head
from tacit.engines.serial import Serial
from tacit.engines.server import Engine, Results

T = TypeVar("T")
# requests a worker may have at a time: one it works on and one that waits, so it is never idle
AHEAD = 2
HELD = 1 << 20  # bytes that a line holds unread: as many as Linux gives everybody

# A message is a word of four letters and a body. To a worker: the call of an ask, then heads to
# answer it for.
CALL, ASK, LOOK, DIE, STOP = b"call", b"ask_", b"look", b"die_", b"stop"


def processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def engine(world: World, workers: int, config: Config | None = None) -> Engine:
    """Return the engine for a number of worker processes, where 0 means none: the serial engine."""
    if not workers:
        return Serial(world, config)
    return Workers(world, min(workers, len(world.federation.everyone)), config)


@dataclass
class Worker:
    """A process, the lines to and from it, and what it has been asked and not answered."""

    process: Any
    asks: Connection
    answers: Connection
    waiting: deque[Head] = field(default_factory=deque)

    @property
    def ends(self) -> tuple[Connection, Connection]:
        """This process's ends of the lines."""
        return self.asks, self.answers

    def close(self) -> None:
        """Close the lines: a process that hears nobody any more ends."""
        for end in self.ends:
            end.close()


class Workers(Engine):
    """Spreads each ask over worker processes.

    A worker that dies costs its client's reply and is replaced.
    """

    def __init__(self, world: World, workers: int, config: Config | None = None) -> None:
        super().__init__(config or world.config())
        self.world = world
        self.sizes = world.federation.sizes()
        # A fork starts at once and shares the data as it is; CUDA does not survive one, and only
        # Linux does it well.
        self.fork = sys.platform == "linux" and world.device == "cpu"
        self.workers: list[Worker] = []
        self._left: list[Callable[[], None]] = []  # to be done while clients work
        world.federation.lay_out()
        for _ in range(workers):
            self.workers.append(self._start())

    def own(self, call: Call[T], data: Examples, round: int) -> T:
        """Run a task in this process; the workers have nothing to do meanwhile."""
        self.catch_up()
        return self.world.own(call, data, round)

    @property
    def defers(self) -> bool:
        """It does, since the workers train meanwhile."""
        return True

    def when_busy(self, work: Callable[[], None]) -> None:
        """Leave work of this process for when the workers have some, too."""
        self._left.append(work)

    def catch_up(self) -> None:
        """Do what was left, each once, even if it fails."""
        while self._left:
            self._left.pop(0)()

    def _start(self) -> Worker:
        context: Any = mp.get_context("fork" if self.fork else "spawn")
        heard, asks = context.Pipe(duplex=False)
        answers, told = context.Pipe(duplex=False)
        for line in (asks, told):
            widen(line)
        before = [end for w in self.workers for end in w.ends]
        inherited = [asks, answers, *before] if self.fork else []
        used = {t.fn.__module__ for t in Task.registry.values()} & _of_package()
        modules = [*sorted(used), *own_code.named()]
        process = context.Process(
            target=work, args=(heard, told, inherited, self.world, modules), daemon=True
        )
        process.start()
        heard.close()
        told.close()
        return Worker(process, asks, answers)

    def _replace(self, dead: Worker, call: bytes) -> Worker:
        dead.close()
        dead.process.join()
        fresh = self._start()
        fresh.asks.send_bytes(CALL + call)
        return fresh

    def exchange(self, kind: str, call: bytes, heads: Sequence[Head]) -> Results:
        """Keep every worker busy until all heads are answered.

        The largest clients go first, to end together.
        """
        faults = {
            h.client: self.config.fault(h.client, h.round) if kind == "ask" else None for h in heads
        }
        got: dict[ClientId, Blob] = {}
        failed: dict[ClientId, str] = {i: "crash" for i, f in faults.items() if f == "crash"}
        todo = deque(
            sorted(
                (h for h in heads if h.client not in failed),
                key=lambda h: -self.sizes.get(h.client, 0),
            )
        )
        self._announce(call)

        def word(head: Head) -> bytes:
            return DIE if faults[head.client] == "die" else ASK if kind == "ask" else LOOK

        self._hand_out(todo, word)
        self.catch_up()
        while any(w.waiting for w in self.workers):
            for line in wait([w.answers for w in self.workers if w.waiting]):
                w = next(w for w in self.workers if w.answers is line)
                answer = self._receive(w, call, todo, failed)
                self._hand_out(todo, word)
                if answer is not None:  # opened only now: nobody waits for that
                    client, blob = answer
                    got[client] = Opened(blob)
                self.config.on_answer(len(got) + len(failed), len(heads))
        for client in [i for i, f in faults.items() if f == "lost" and i in got]:
            failed[client] = "lost"
            del got[client]
        return got, failed

    def _announce(self, call: bytes) -> None:
        """Tell every worker what it will be asked next."""
        for at, w in enumerate(self.workers):
            try:
                w.asks.send_bytes(CALL + call)
            except OSError:  # it died while it had nothing to do
                self.workers[at] = self._replace(w, call)

    def _hand_out(self, todo: deque[Head], word: Callable[[Head], bytes]) -> None:
        """Give each worker its next request, and then another one to wait for.

        The last ones are for whoever is free first, so that all end together.
        """
        for ahead in range(1, AHEAD + 1):
            for w in self.workers:
                enough = len(todo) > (0 if ahead == 1 else len(self.workers))
                if enough and len(w.waiting) < ahead:
                    w.waiting.append(head := todo.popleft())
                    # a worker that has died is noticed when its answer is due
                    with contextlib.suppress(OSError):
                        w.asks.send_bytes(word(head) + pack(head))

    def _receive(
        self, w: Worker, call: bytes, todo: deque[Head], failed: dict[ClientId, str]
    ) -> tuple[ClientId, bytes] | None:
        """Take one answer from a worker, or replace the worker if there is none to come."""
        try:
            blob = w.answers.recv_bytes()
        except (EOFError, OSError):
            self.workers[self.workers.index(w)] = self._replace(w, call)
            failed[w.waiting.popleft().client] = f"its process ended with {w.process.exitcode}"
            todo.extendleft(reversed(w.waiting))
            return None
        return w.waiting.popleft().client, blob

    def close(self) -> None:
        """End the worker processes."""
        for w in self.workers:
            with contextlib.suppress(OSError):
                w.asks.send_bytes(STOP)
            w.close()
        for w in self.workers:
            w.process.join(timeout=2)
            if w.process.is_alive():  # in the middle of a task whose result nobody wants
                w.process.kill()
                w.process.join()
        self.workers = []


def _of_package() -> set[str]:
    return {name for name in sys.modules if name.startswith("tacit.")}


def widen(line: Connection) -> None:
    """Let a line hold a whole message, if the system can: whoever has sent it need not wait."""
    if sys.platform == "linux":
        import fcntl  # other systems have none, or not this part of it

        with contextlib.suppress(OSError):  # beyond what this user may have: as it was
            fcntl.fcntl(line.fileno(), fcntl.F_SETPIPE_SZ, HELD)


def work(
    heard: Connection,
    told: Connection,
    inherited: list[Connection],
    world: World,
    modules: list[str],
) -> None:
    """Answer requests until told to stop, or until a line closes: the parent ended, somehow."""
    for other in inherited:
        other.close()  # else this process would hold the lines of its siblings open
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    keep_memory()
    own_code.load_again(modules)
    # what is here stays: no collection need look at it again, or touch its shared pages
    gc.freeze()
    # spawned workers are given a shared one
    world = replace(world, model=copy.deepcopy(world.model).to(world.device))
    call = b""
    while True:
        try:
            blob = heard.recv_bytes()
            word, body = blob[:4], blob[4:]
            if word == CALL:
                call = body
            elif word == STOP:
                return
            elif word == DIE:
                os._exit(1)
            else:
                told.send_bytes(world.serve("ask" if word == ASK else "look", unpack(body), call))
        except (EOFError, OSError):
            return
