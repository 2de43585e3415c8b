"""What a round leaves to do is done while the next clients work, before any of them counts."""

import multiprocessing
import sys
from collections import deque
from dataclasses import dataclass

import pytest

import tacit
from tacit.core import FEDERATION, Everyone, Gaussian, Params, Release, Sample, mean
from tacit.engines.workers import HELD, Worker, Workers, widen
from tacit.experiment.rundir import RunDir
from tacit.experiment.watch import Nobody
from tacit.local.sgd import SGD, Trains
from tacit.methods.fedavg import FedAvg, train

LINE = Release("mean", "client", FEDERATION, "public", Gaussian(1.0), ((0, 0),))


@pytest.fixture
def engine(sandbox):
    sandbox.open.append(Workers(sandbox.world(FedAvg(), sandbox.fresh()), 2))
    return sandbox.open[-1]


def ask(engine, sandbox, round=0):
    sample = Sample(engine.everyone, round, Everyone())
    return engine.ask(train(x=sandbox.x0, sgd=SGD()), sample)


def test_work_is_left_until_clients_have_some_too(engine, sandbox):
    seen = []
    engine.when_busy(lambda: seen.append([len(w.waiting) for w in engine.workers]))
    assert seen == []
    replies = ask(engine, sandbox)
    assert len(replies) == len(engine.everyone)
    assert seen == [[2, 2]]  # each worked on one and had another


def test_nothing_that_clients_release_is_in_the_ledger_before(engine, sandbox):
    lines = []
    engine.when_busy(lambda: lines.append((len(engine.ledger), engine.bytes_up)))
    ask(engine, sandbox)
    assert lines == [(0, 0)]
    assert len(engine.ledger) == len(engine.everyone)


@pytest.mark.parametrize(
    "what",
    [
        lambda engine: engine.release(LINE),
        lambda engine: engine.turn("mean@0", "content"),
        lambda engine: engine.catch_up(),
    ],
)
def test_a_server_that_releases_first_ends_the_round_before(engine, what):
    seen = []
    engine.when_busy(lambda: seen.append(len(engine.ledger)))
    what(engine)
    assert seen == [0]


def test_a_round_that_cannot_be_saved_ends_the_run_and_is_not_tried_again(engine, sandbox):
    def full():
        raise OSError("no space left")

    engine.when_busy(full)
    with pytest.raises(OSError, match="no space left"):
        ask(engine, sandbox)
    assert len(engine.ledger) == 0
    engine.catch_up()


def test_work_is_done_where_nobody_can_be_asked(sandbox):
    engine = Workers(
        sandbox.world(FedAvg(), sandbox.fresh()),
        2,
        sandbox.world(FedAvg(), sandbox.fresh()).config(fault=lambda i, t: "crash"),
    )
    sandbox.open.append(engine)
    seen = []
    engine.when_busy(lambda: seen.append("done"))
    engine.ask(train(x=sandbox.x0, sgd=SGD()), Sample(engine.everyone, 0, Everyone()), need=0.0)
    assert seen == ["done"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says how much a pipe may hold")
def test_a_worker_need_not_wait_until_its_answer_is_read():
    heard, told = multiprocessing.Pipe(duplex=False)
    with heard, told:
        widen(told)
        told.send_bytes(bytes(HELD - 4))  # nobody reads: it would wait for ever
        assert len(heard.recv_bytes()) == HELD - 4


class Line:
    def send_bytes(self, blob):
        pass


def test_the_last_requests_are_for_whoever_is_free_first():
    """So nobody waits for a client that lies in the queue of another."""
    engine = object.__new__(Workers)  # without processes
    a, b = engine.workers = [Worker(None, Line(), Line()), Worker(None, Line(), Line())]
    todo = deque(range(7))

    def queues():
        engine._hand_out(todo, lambda head: b"ask_")
        return [list(w.waiting) for w in (a, b)]

    assert queues() == [[0, 2], [1, 3]]
    a.waiting.popleft()
    assert queues() == [[2, 4], [1, 3]]  # two are left, one for each
    for _ in range(2):
        b.waiting.popleft()
        queues()
    assert queues() == [[2, 4], [5]]
    b.waiting.popleft()
    assert queues() == [[2, 4], [6]]


@dataclass(frozen=True)
class State:
    x: Params
    seen: list[int]
    round: int = 0


@dataclass(frozen=True)
class InPlace(Trains[State]):
    """A method that changes its state before anybody is asked."""

    def init(self, x0):
        return State(x0, [])

    def run(self, cohort, s):
        for t in range(s.round, self.rounds):
            s.seen.append(t)
            replies = cohort.ask(train(x=s.x, sgd=self.sgd), self.participants(cohort, t))
            s = State(s.x + mean((r.dx, r.n) for r in replies), s.seen, t + 1)
            yield s


def test_what_is_saved_is_the_state_as_it_was(tmp_path):
    """Not what the next round's code has made of it by the time that it is written."""
    saved = []

    class Reads(Nobody):
        def finished_round(self, line, rounds):
            saved.append(RunDir.open(tmp_path / "run").checkpoint()[0].seen)

    how = {"clients": 2, "model": "logistic", "workers": 1, "out": tmp_path / "run"}
    tacit.run(InPlace(rounds=3), watch=Reads(), **how)
    assert saved == [[0], [0, 1], [0, 1, 2]]
