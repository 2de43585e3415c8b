"""What every entry of the registry must satisfy on every engine, without being asked."""

import itertools
import math
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sandbox import Sandbox, small

from tacit import privacy
from tacit.codec import same
from tacit.compress import Compressor
from tacit.core import Fixed, Ledger, NonPrivate, Nothing, TooFewReplies, mean
from tacit.data.examples import Examples
from tacit.data.federated import LocalData
from tacit.engines.serial import Serial
from tacit.engines.store import read_ledger
from tacit.experiment.drive import drive
from tacit.local.prototypes import Episodes
from tacit.local.sgd import SGD
from tacit.methods import METHODS
from tacit.methods.fedavg import FedAvg, train
from tacit.methods.scaffold import Scaffold
from tacit.methods.spec import name_of
from tacit.privacy import mechanisms
from tacit.synthesis.source import Source
from tacit.testing import checks
from tacit.testing.checks import asked_of, faulty, run_to_end
from tacit.testing.claims import claims_hold
from tacit.testing.settings import settings_survive


def runs(examples):
    """Return settings for tests whose examples are two whole runs each."""
    fixtures = [HealthCheck.function_scoped_fixture]
    return settings(max_examples=examples, deadline=None, suppress_health_check=fixtures)


@cache
def undisturbed(name):
    """Return who is asked in which round if all goes well, and the ledger then: one run for all."""
    with tempfile.TemporaryDirectory() as folder:
        return asked_of(small(name), Sandbox(Path(folder) / "sandbox"))


@pytest.fixture
def asked(method):
    return undisturbed(name_of(method))[0]


def test_nothing_survives_outside_the_state(method, sandbox):
    assert checks.nothing_survives(sandbox, method) == []


def test_engines_agree_bit_for_bit(method, sandbox):
    assert checks.engines_agree(sandbox, method) == []


@pytest.mark.slow
def test_a_run_does_not_depend_on_the_number_of_workers_or_the_global_generator(method, sandbox):
    """The engines with one worker and with three see other generators and another clock."""
    assert checks.engines_agree(sandbox, method, counts=(1, 3)) == []


def test_neither_the_clock_nor_a_global_generator_decides(method, sandbox):
    assert checks.only_seeds_decide(sandbox, method) == []


def test_states_can_be_saved_and_rounds_are_kept(method, sandbox):
    assert checks.states_are_fit(sandbox, method) == []
    assert checks.rounds_are_kept(sandbox, method) == []


def test_the_last_model_can_be_scored(method, sandbox):
    assert checks.models_answer(sandbox, method) == []


def test_settings_survive_a_file_and_a_word(method):
    assert settings_survive(method) == []


def test_what_is_promised_is_kept(method, sandbox):
    assert claims_hold(sandbox, method) == []


EVERY_CUT = [*itertools.product(range(4), (False, True))]
ANYWHERE = pytest.param(EVERY_CUT, id="anywhere", marks=pytest.mark.slow)


@pytest.mark.parametrize("cuts", [pytest.param([(1, True)], id="once"), ANYWHERE])
def test_resume_after_any_round_is_invisible(method, sandbox, cuts):
    whole = checks.undisturbed(sandbox, method)
    for cut, server_dies in cuts:
        assert checks.resume_is_invisible(sandbox, method, whole, cut, server_dies) == []


def compressed(method, sandbox, word="binary:0.3"):
    """Return the state after two rounds in which updates travel compressed."""
    method = method if name_of(method) == "moments" else replace(method, rounds=2)
    world = replace(sandbox.world(method, sandbox.fresh()), compress=Compressor.of(word))
    return run_to_end(method, Serial(world), sandbox)


def test_a_compressed_run_ends_with_a_finite_model(method, sandbox):
    s = compressed(method, sandbox)
    assert math.isfinite(s.x.norm())
    assert s.x.size() > 0


@pytest.fixture(params=["as it is", "paper"])
def idle(request, method, monkeypatch):
    """A method whose clients return the model that they got, with noise that is zero."""
    monkeypatch.setattr(SGD, "fit", lambda self, me, x, **how: (x * 1.0, 1))
    monkeypatch.setattr(Episodes, "fit", lambda self, me, x, **how: x * 1.0)
    monkeypatch.setattr(mechanisms, "noised", lambda draw, values, sd: list(values))
    monkeypatch.setattr(Source, "kind", "moments")  # the papers' GAN needs images
    if request.param == "as it is":
        return method
    if not hasattr(method, "mode"):
        pytest.skip("has no mode")
    return replace(method, mode="paper")


@pytest.mark.parametrize("word", ["none", "binary:0.3"])
def test_clients_that_learn_nothing_leave_the_model_as_it_was(idle, sandbox, word):
    """Compression is for differences.

    A model that was sent whole would come back with its blocks levelled.
    """
    if not (before := idle.init(sandbox.x0).x):
        pytest.skip("no client is sent a model")
    assert (compressed(idle, sandbox, word).x - before).norm() < 1e-5 * before.norm()


clients = [str(i) for i in range(6)]
schedules = st.dictionaries(
    st.tuples(st.sampled_from(clients), st.integers(0, 5)),
    st.sampled_from(["crash", "lost"]),
    max_size=12,
)


@given(data=st.data())
@runs(1)
def test_a_lost_reply_is_as_if_the_client_had_never_worked(method, sandbox, asked, data):
    """Every example loses a reply that was asked for, and perhaps others."""
    lost = data.draw(st.sampled_from([*dict.fromkeys(asked)]))
    table = data.draw(schedules) | {lost: "lost"}
    assert checks.lost_is_never_done(sandbox, method, table) == []


@pytest.mark.slow
@given(data=st.data())
@runs(20)
def test_many_lost_replies(method, sandbox, asked, data):
    lost = data.draw(st.sampled_from([*dict.fromkeys(asked)]))
    table = data.draw(schedules) | {lost: "lost"}
    assert checks.lost_is_never_done(sandbox, method, table) == []


@given(table=schedules)
@runs(4)
def test_engines_agree_under_faults(sandbox, table):
    method = Scaffold(rounds=4, per_round=4)
    a, b = (
        faulty(sandbox.serial, method, sandbox, table),
        faulty(sandbox.workers, method, sandbox, table),
    )
    assert (a[0] is None) == (b[0] is None)
    assert a[0] is None or same(a[0], b[0])
    assert a[1].ledger == b[1].ledger


# without memory, with a client's and in phases
DYING = ["fedavg", "scaffold", "kd_dpfl"]
NAMES = [pytest.param(n, marks=() if n in DYING else pytest.mark.slow) for n in METHODS]


@pytest.mark.parametrize("name", NAMES)
def test_a_worker_process_that_dies_costs_one_reply_and_is_replaced(name, sandbox):
    method, asked = small(name), undisturbed(name)[0]
    if method.pooled:
        pytest.skip("one client: nobody is left when it dies")
    victim, t = next((i, t) for i, t in asked if t == min(1, asked[-1][1]))
    a, _ = faulty(sandbox.serial, method, sandbox, {(victim, t): "crash"})
    b, engine = faulty(sandbox.workers, method, sandbox, {(victim, t): "die"})
    assert same(a, b)
    assert engine.failed == {victim: "its process ended with 1"}
    assert all(w.process.is_alive() for w in engine.workers)


def variate_gap(s, engine, sandbox):
    """How far SCAFFOLD's server variate is from the mean of what the clients hold."""
    zero = sandbox.x0.zeros()
    kept = [
        engine.world.store(i).kept(engine.accepted.get(i)).get("c", zero) for i in engine.everyone
    ]
    return (mean(kept) - s.c).norm() / (1 + s.c.norm())


@given(table=schedules)
@settings(max_examples=5, deadline=None)
def test_scaffold_server_variate_is_the_mean_of_client_variates(table):
    with tempfile.TemporaryDirectory() as folder:
        sandbox = Sandbox(Path(folder) / "sandbox")
        s, engine = faulty(sandbox.serial, Scaffold(rounds=6, per_round=4), sandbox, table)
        assert s is None or variate_gap(s, engine, sandbox) < 1e-5


def test_the_scaffold_check_notices_state_that_is_kept_without_acceptance(sandbox):
    method = Scaffold(rounds=1)
    s, engine = faulty(sandbox.serial, method, sandbox, {("1", 0): "lost"})
    assert variate_gap(s, engine, sandbox) < 1e-5
    engine.accepted["1"] = "scaffold.train@0"
    assert variate_gap(s, engine, sandbox) > 1e-3


PRIVATE = {
    "ldp_fl",
    "dp_fedavg",
    "dp_scaffold",
    "cl_fl",
    "nbafl",
    "udp",
    "dafl",
    "gfl",
    "kd_dpfl",
    "pate",
} | {
    "prifedsync",
    "cuag",
    "moments",
}
ONCE = {"dafl"}  # later rounds look at nothing but what was released in the first


def test_silence_is_infinite(method):
    """No method gets a finite epsilon for having said nothing.

    One that sends nothing says so in its ledger.
    """
    ledger = undisturbed(name_of(method))[1]
    assert len(ledger) > 0
    unit, observer = getattr(method, "protects", ("example", "server"))
    got = privacy.epsilon(ledger, unit=unit, observer=observer, delta=1e-5)
    if name_of(method) in PRIVATE:
        assert 0 < got < math.inf
        unprotected = ("client", "server") if (unit, observer) != ("client", "server") else None
        if unprotected:
            everything = privacy.epsilon(ledger, unit="client", observer="server", delta=1e-5)
            assert everything == math.inf
    else:
        assert got == (0.0 if name_of(method) == "local" else math.inf)
        assert all(isinstance(line.event, Nothing | NonPrivate) for line in ledger)


@pytest.mark.parametrize("unit", privacy.UNITS)
@pytest.mark.parametrize("observer", privacy.OBSERVERS)
def test_an_empty_ledger_is_infinite(unit, observer):
    assert privacy.epsilon(Ledger(), unit=unit, observer=observer, delta=1e-5) == math.inf


def test_every_participation_has_a_line_with_its_owner(method):
    asked, ledger = undisturbed(name_of(method))
    lines = {(line.owner, t) for line in ledger for a, b in line.rounds for t in range(a, b + 1)}
    assert len(asked) >= 3
    assert {(i, t) for i, t in asked if t == 0 or name_of(method) not in ONCE} <= lines


def test_a_lost_reply_is_in_the_clients_ledger_and_reaches_the_server_later(sandbox):
    engine = sandbox.serial(FedAvg(), lambda i, t: "lost" if (i, t) == ("3", 0) else None)
    s = drive(FedAvg(rounds=1), engine, FedAvg().init(sandbox.x0))
    assert "3" not in {line.owner for line in engine.ledger}  # the server does not know yet
    own = read_ledger(engine.world.store("3").folder / "ledger.jsonl")
    assert [line.rounds for line in own] == [((0, 0),)]  # the client does
    drive(FedAvg(rounds=2), engine, s)
    # told with its next reply
    assert [line.rounds for line in engine.ledger if line.owner == "3"] == [((0, 1),)]


def test_a_forgotten_phase_guard_is_caught(sandbox):
    class Loops(FedAvg):
        def run(self, cohort, s):
            yield s

    with pytest.raises(RuntimeError, match="guard"):
        run_to_end(Loops(), sandbox.serial(FedAvg()), sandbox)


def test_a_hidden_local_is_caught(sandbox):
    """The check against amnesia notices momentum that a method keeps outside its state."""

    class Forgetful(FedAvg):
        def run(self, cohort, s):
            momentum = s.x.zeros()
            for t in range(s.round, self.rounds):
                replies = cohort.ask(train(x=s.x, sgd=self.sgd), cohort.sample(Fixed(3), t))
                momentum = 0.9 * momentum + mean(r.dx for r in replies)
                s = replace(s, x=s.x + momentum, round=t + 1)
                yield s

    method = Forgetful(rounds=3)
    (said,) = checks.nothing_survives(sandbox, method)
    assert "a local variable of run() that lives across a yield" in said


def test_all_or_nothing_below_need(sandbox):
    """A round that fails accepts no reply, so clients that did answer keep what they had."""
    method = Scaffold(rounds=2, per_round=4)
    ids = sandbox.serial(method).sample(Fixed(4), 1).ids
    engine = sandbox.serial(method, lambda i, t: "crash" if t == 1 and i in ids[:3] else None)
    with pytest.raises(TooFewReplies, match=r"round 2: 1 of 4 clients replied"):
        run_to_end(method, engine, sandbox)
    assert {v for v in engine.accepted.values()} == {"scaffold.train@0"}
    assert any(
        line.rounds[-1][1] == 1 and isinstance(line.event, NonPrivate) for line in engine.ledger
    )


def test_a_worker_that_dies_between_rounds_is_replaced_unnoticed(sandbox):
    method = FedAvg(rounds=2)
    engine = sandbox.workers(method)
    s = drive(method, engine, method.init(sandbox.x0), stop_after=1)
    engine.workers[0].process.kill()
    engine.workers[0].process.join()
    assert same(drive(method, engine, s), run_to_end(method, sandbox.serial(method), sandbox))
    assert not engine.failed


@pytest.mark.slow  # those of a method of one's own are spawned in e2e
def test_spawned_workers_agree_with_forked_ones(sandbox, monkeypatch):
    """Where a fork is not to be had, workers are spawned.

    The data move to shared memory, the result stays.
    """
    method = Scaffold(rounds=2, per_round=4)
    want = run_to_end(method, sandbox.workers(method), sandbox)
    monkeypatch.setattr("sys.platform", "elsewhere")
    spawned = sandbox.workers(method, count=1)  # a new interpreter takes seconds
    assert same(want, run_to_end(method, spawned, sandbox))


def test_evaluation_leaves_the_data_as_they_are():
    """A slice of float images is a view; scaling it must not reach the source."""
    images = torch.rand(6, 1, 4, 4)
    before = images.clone()
    data = LocalData(
        Examples(images, torch.zeros(6, dtype=torch.int64)), np.arange(6), (0.5,), (0.25,)
    )
    for _ in range(2):
        x, _ = data.batch(slice(None))
        torch.testing.assert_close(x, (before - 0.5) / 0.25)
    assert torch.equal(images, before)
