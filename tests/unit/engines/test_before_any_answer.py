"""What a client has released is in its ledger and in the run's before anybody hears of anything."""

import json
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from tacit import codec, privacy
from tacit.core import (
    BadInput,
    BudgetReached,
    Client,
    Diverged,
    Everyone,
    Ledger,
    NonPrivate,
    Params,
    PublicFloat,
    PublicInt,
    Reply,
    Sample,
    check,
    public,
    task,
)
from tacit.data.examples import Examples, Pool
from tacit.engines import client_host
from tacit.engines.messages import Head
from tacit.engines.serial import Serial
from tacit.engines.store import Draws
from tacit.engines.workers import Workers
from tacit.experiment.drive import drive
from tacit.local.sgd import SGD
from tacit.methods.dp_fedavg import DPFedAvg, Update
from tacit.methods.fedavg import FedAvg, train
from tacit.methods.moments import Size
from tacit.privacy.guard import Budget
from tacit.privacy.mechanisms import gaussian

DELTA = 1e-5
PRIVATE = SGD(clip=1.0, z=1.0, batch=4)


def epsilon(ledger, **how):
    return privacy.epsilon(ledger, unit="example", observer="server", delta=DELTA, **how)


def own_ledgers(engine):
    """Everything that clients have written themselves."""
    lines = [line for i in engine.everyone for line in engine.world.store(i).ledger()]
    return Ledger(lines)


@pytest.fixture(params=["serial", "workers"])
def budgeted(request, sandbox):
    """An engine whose clients have so much to spend."""

    def make(budget):
        world = replace(sandbox.world(None, sandbox.fresh()), approve=Budget(budget).check)
        if request.param == "serial":
            return Serial(world)
        sandbox.open.append(Workers(world, 2))
        return sandbox.open[-1]

    return make


# ------------------------------------------------------------------------------- a run that stops


def test_a_run_that_its_budget_stops_knows_all_that_was_spent(budgeted, sandbox):
    """The smallest client, whose sampling rate is highest, refuses first; others have answered."""
    method = FedAvg(rounds=50, sgd=PRIVATE)
    engine = budgeted(12.0)
    with pytest.raises(BudgetReached):
        drive(method, engine, method.init(sandbox.x0))
    assert engine.ledger == own_ledgers(engine)
    assert 6.0 < epsilon(engine.ledger) <= 12.0


def test_what_others_released_in_the_round_that_stops_a_run_is_known(budgeted, sandbox):
    """At this budget the smallest client cannot take part even once."""
    method = FedAvg(rounds=1, sgd=PRIVATE)
    costs = {n: epsilon(Ledger(PRIVATE.lines("0", n, 1))) for n in (6, 9)}
    engine = budgeted((costs[6] + costs[9]) / 2)
    with pytest.raises(BudgetReached):
        drive(method, engine, method.init(sandbox.x0))
    assert {line.owner for line in engine.ledger} == {"1", "2", "3", "4", "5"}
    assert engine.ledger == own_ledgers(engine)


def test_clients_that_keep_no_budget_are_stopped_by_the_server(sandbox):
    """A client process that does not refuse, whatever the reason, ends the run all the same."""
    method = FedAvg(rounds=50, sgd=PRIVATE)
    engine = sandbox.serial(method, approve_clients=Budget(5.0).check)
    with pytest.raises(BudgetReached):
        drive(method, engine, method.init(sandbox.x0))
    rounds = {last for line in engine.ledger for _, last in line.rounds}
    assert max(rounds) < 49


# ---------------------------------------------------------------------------------------- refusals


@task
def overflowing(me: Client, x: Params, scale: float) -> Reply[Update]:
    """Send something that is finite if, and only if, the largest feature is small enough."""
    top = me.data.examples.x.abs().max()
    return Reply(Update(Params(w=scale * top.reshape(1))))


@task
def crashing(me: Client, x: Params, above: float) -> Reply[Update]:
    """Fail if, and only if, the largest feature is large."""
    if float(me.data.examples.x.abs().max()) > above:
        raise IndexError("secret 3.14")
    return Reply(Update(x))


def ask(engine, call, client="2", round=0):
    return engine.ask(call, Sample((client,), round, Everyone()), need=0.0)


def test_that_training_is_not_finite_is_charged_before_it_is_told(sandbox):
    engine = sandbox.serial(FedAvg())
    with pytest.raises(Diverged):
        ask(engine, overflowing(x=sandbox.x0, scale=3e38))
    assert engine.ledger == own_ledgers(engine)
    assert epsilon(engine.ledger) == math.inf


def test_a_client_with_a_budget_refuses_before_it_says_whether_numbers_are_finite(
    budgeted, sandbox
):
    for scale in (1.0, 3e38):
        with pytest.raises(BudgetReached):
            ask(budgeted(1.0), overflowing(x=sandbox.x0, scale=scale))


def test_a_failure_that_may_depend_on_the_data_is_charged(sandbox):
    engine = sandbox.serial(FedAvg())
    ask(engine, crashing(x=sandbox.x0, above=0.0))
    assert [type(line.event) for line in engine.ledger] == [NonPrivate]
    assert "failed" in next(iter(engine.ledger)).event.why
    assert engine.ledger == own_ledgers(engine)
    assert "test_before_any_answer.py" in engine.failed["2"]  # the line to mend


def test_a_refusal_for_public_reasons_is_not_charged(budgeted, sandbox):
    engine = budgeted(1e-3)
    with pytest.raises(BudgetReached):
        ask(engine, train(x=sandbox.x0, sgd=PRIVATE))
    assert len(engine.ledger) == 0
    assert len(own_ledgers(engine)) == 0


def huge(sandbox, method, client=2):
    """An engine in which one record of one client is huge."""
    world = sandbox.world(method, sandbox.fresh())
    d = world.federation.dataset
    x = d.train.x.clone()
    x[int(world.federation.split.train[client][0])] = 1e30
    dataset = replace(d, train=Examples(x, d.train.y))
    return Serial(replace(world, federation=replace(world.federation, dataset=dataset)))


def test_dp_fedavg_does_not_tell_who_has_a_huge_record(sandbox):
    """It used to stop and name the client."""
    method = DPFedAvg(rounds=2, q=1.0, z=1.0, sgd=SGD(lr=1.0))
    s = drive(method, huge(sandbox, method), method.init(sandbox.x0))
    assert s.round == 2
    assert math.isfinite(s.x.norm())


# ------------------------------------------------------------------- one draw for one release


@task
def noisy_mean(me: Client, x: Params, weight: float) -> Reply[Update]:
    w = Params(w=weight * me.data.examples.x.mean(0))
    return Reply(Update(gaussian(me, "mean", w, sensitivity=1.0, z=2.0)))


def test_two_different_requests_in_a_round_are_two_lines_and_two_draws(sandbox):
    """Else their difference has no noise at all."""
    engine = sandbox.serial(FedAvg())
    (a,) = ask(engine, noisy_mean(x=sandbox.x0, weight=1.0))
    (b,) = ask(engine, noisy_mean(x=sandbox.x0, weight=1.0 + 1e-6))
    assert (a.dx - b.dx).norm() > 0.1
    assert sum(line.total() for line in engine.ledger) == 2
    assert epsilon(engine.ledger) == pytest.approx(privacy.spend(2.0, 2, delta=DELTA))


@task
def other_mean(me: Client, x: Params, weight: float) -> Reply[Update]:
    w = Params(w=weight * me.data.examples.x.mean(0))
    return Reply(Update(gaussian(me, "mean", w, sensitivity=1.0, z=2.0)))


def test_two_tasks_in_a_round_are_two_lines_and_two_draws(sandbox):
    engine = sandbox.serial(FedAvg())
    (a,) = ask(engine, noisy_mean(x=sandbox.x0, weight=1.0))
    (b,) = ask(engine, other_mean(x=sandbox.x0, weight=1.0))
    assert (a.dx - b.dx).norm() > 0.1
    assert epsilon(engine.ledger) == pytest.approx(privacy.spend(2.0, 2, delta=DELTA))


def test_a_task_of_ones_own_does_not_draw_what_another_of_its_name_draws(sandbox):
    world = sandbox.world(None, sandbox.fresh())
    own = world.generator(noisy_mean.name, 0, "2").random()
    assert own != world.generator(f"elsewhere.{noisy_mean.fn.__name__}", 0, "2").random()


def test_the_very_same_request_done_again_is_one_release(sandbox):
    """As after a kill: a simulation repeats it to the bit."""
    engine = sandbox.serial(FedAvg())
    (a,) = ask(engine, noisy_mean(x=sandbox.x0, weight=1.0))
    (b,) = ask(engine, noisy_mean(x=sandbox.x0, weight=1.0))
    assert torch.equal(a.dx["w"], b.dx["w"])
    assert sum(line.total() for line in engine.ledger) == 1


def test_a_request_is_known_by_the_bytes_that_it_came_as(sandbox):
    digests = client_host.Digests()
    one, other = (codec.pack(noisy_mean(x=sandbox.x0, weight=weight)) for weight in (1.0, 2.0))
    first, later = (Head("0", "a", 0, accepted, None) for accepted in (None, "b"))
    found = [digests.request(head, call) for call in (one, other) for head in (first, later, first)]
    assert found[0] == found[2]
    assert len({found[0], found[1], found[3], found[4]}) == 4
    again = codec.pack(noisy_mean(x=sandbox.x0, weight=1.0))
    assert found[0] == client_host.Digests().request(first, again)


@task
def writes_to_what_it_is_given(me: Client, x: Params, weight: float) -> Reply[Update]:
    for v in x.values():
        v.add_(1.0)
    first = float(next(iter(x.values())).flatten()[0])
    mean = Params(w=0.01 * first * me.data.examples.x.mean(0))
    return Reply(Update(gaussian(me, "mean", mean, sensitivity=1.0, z=2.0)))


@pytest.mark.parametrize("workers", [0, 1])
def test_what_a_task_writes_to_its_arguments_no_other_client_meets(sandbox, workers):
    """A client that is asked beside another one gets what it gets alone, and so it is charged."""
    engine = sandbox.workers(None, count=1) if workers else sandbox.serial(None)
    call = writes_to_what_it_is_given(x=sandbox.x0, weight=1.0)
    beside = engine.ask(call, Sample(("1", "2"), 0, Everyone()))
    alone = engine.ask(call, Sample(("2",), 0, Everyone()))
    assert torch.equal(list(beside)[1].dx["w"], next(iter(alone)).dx["w"])
    assert sum(line.total() for line in engine.ledger if line.owner == "2") == 1


def test_two_means_of_the_server_in_a_round_have_noise_of_their_own(sandbox):
    """One reply is lost the first time, so that the two sums differ by one client."""
    method = DPFedAvg(rounds=1, q=1.0, z=1.0)
    first = sandbox.serial(method, lambda i, t: "lost" if i == "3" else None)
    a = drive(method, first, method.init(sandbox.x0))
    second = sandbox.serial(method, draws=first.config.draws)
    second.ledger = Ledger(first.ledger)
    b = drive(method, second, method.init(sandbox.x0))
    assert (a.x - b.x).norm() > 2 / 6  # both clipped updates together are not so far apart
    mean = [line for line in second.ledger if line.covers]
    assert sum(line.total() for line in mean) == 2


def test_draws_outlast_a_restart_and_forget_what_is_long_past(tmp_path):
    file = tmp_path / "draws.json"
    assert Draws(file).number("mean@3", "a") == 0
    assert Draws(file).number("mean@3", "b") == 1
    assert Draws(file).number("mean@3", "a") == 0
    assert Draws(file).number("mean@4", "c") == 0
    assert Draws(file).number("mean@3", "b") == 1
    Draws(file).number("mean@14", "c")
    assert list(json.loads(file.read_text().splitlines()[-1])["known"]) == ["mean@4", "mean@14"]


# ------------------------------------------------------------------------------------- the mark


def test_a_private_number_takes_the_mark_away():
    x = Params(w=torch.ones(3)).as_released()
    assert (public(0.5) * x).released
    assert (x / PublicInt(3)).released
    assert not (0.5 * x).released
    assert not (x / 0.5).released
    assert not x.clipped(0.5).released
    assert x.clipped(public(0.5)).released


def test_public_numbers_stay_public_among_themselves_only():
    a, b = PublicFloat(0.5), PublicInt(3)
    for made in (a * b, b * a, a / b, b / a, a + b, b - a, -a, -b, b * b, a - a):
        assert isinstance(made, PublicFloat | PublicInt)
    for made in (a * 2.0, 2.0 * a, b * 2.0, b * 2, a + 1, 1 / a, float(b)):
        assert not isinstance(made, PublicFloat | PublicInt)
    assert (a * b, b / a, b - a) == (1.5, 6.0, 2.5)


def test_a_point_does_not_change():
    x = Params(w=torch.ones(3)).as_released()
    private = torch.tensor([1.0, 2.0, 3.0])
    attempts = [
        lambda: x.__setitem__("w", private),
        lambda: x.update(w=private),
        lambda: x.setdefault("v", private),
        lambda: x.pop("w"),
        lambda: x.clear(),
        lambda: x.__ior__({"w": private}),
    ]
    for attempt in attempts:
        with pytest.raises(TypeError):
            attempt()
    assert x.released


def test_a_tensor_that_is_written_to_is_no_longer_released():
    x = Params(w=torch.ones(3)).as_released()
    x["w"].copy_(torch.tensor([1.0, 2.0, 3.0]))
    assert not x.released


@pytest.mark.parametrize(
    "write",
    [
        lambda v: v.data.add_(1.0),
        lambda v: v.numpy().__iadd__(1.0),
        lambda v: v.data.view(-1).__setitem__(0, 7.0),
        lambda v: nn.utils.vector_to_parameters(torch.arange(3.0), [v]),
    ],
)
def test_writing_behind_a_tensors_back_takes_the_mark_away_too(write):
    x = Params(w=torch.ones(3)).as_released()
    write(x["w"])
    assert not x.released


@task
def writing(me: Client, x: Params, sgd: SGD, into: str) -> Reply[Update]:
    """Write a private number to where the training is, in a correction that looks innocent."""

    def grad(g, y):
        where = me.model.parameters() if into == "model" else y.values()
        next(iter(where)).data.view(-1)[0] = me.data.examples.x[0, 0]
        return g

    return Reply(Update(sgd.fit(me, x, grad=grad)[0] - x))


@pytest.mark.parametrize("into", ["model", "y"])
def test_a_correction_that_writes_to_the_network_takes_the_mark_away(sandbox, into):
    engine = sandbox.serial(FedAvg())
    ask(engine, writing(x=sandbox.x0, sgd=PRIVATE, into=into))
    assert epsilon(engine.ledger) == math.inf


@task
def counting(me: Client) -> Reply[Size]:
    """Send how many examples of class 0 there are, as if a size were a size."""
    rows = me.data.rows[me.data.examples.y.numpy() == 0]
    return Reply(Size(replace(me, data=replace(me.data, rows=rows)).size))


def test_the_number_of_some_examples_is_not_the_public_size(sandbox):
    engine = sandbox.serial(FedAvg())
    (reply,) = ask(engine, counting())
    assert reply.n == 12


@task
def telling(me: Client, x: Params) -> Reply[Update]:
    """Refuse data in words that hold them, as a careful user would."""
    check.number("largest input", float(me.data.examples.x.max()), at_most=-100.0)
    return Reply(Update(x))


def test_what_a_task_of_the_users_own_refuses_is_charged(sandbox):
    engine = sandbox.serial(FedAvg())
    with pytest.raises(BadInput):
        ask(engine, telling(x=sandbox.x0))
    assert epsilon(engine.ledger) == math.inf


def test_an_empty_point_is_never_released():
    assert not Params({}).as_released().released


@task
def laundering(me: Client, x: Params) -> Reply[Update]:
    private = float(me.data.examples.x.flatten()[0])
    return Reply(Update(x * private))


@task
def unchanged(me: Client, x: Params, half: float) -> Reply[Update]:
    return Reply(Update(x * half))


def test_raw_data_do_not_leave_as_a_factor_of_what_the_server_knows(sandbox):
    engine = sandbox.serial(FedAvg())
    ask(engine, laundering(x=sandbox.x0))
    assert epsilon(engine.ledger) == math.inf


def test_what_follows_from_the_request_alone_costs_nothing(sandbox):
    engine = sandbox.serial(FedAvg())
    ask(engine, unchanged(x=sandbox.x0, half=0.5))
    assert not any(isinstance(line.event, NonPrivate) for line in engine.ledger)


# ------------------------------------------------------------------------- the network of a task


def part_of(x, names):
    return Params({k: v for k, v in x.items() if k in names})


def test_a_part_of_a_model_is_never_taken_for_the_whole(sandbox):
    """Else what the network happens to hold would be sent as if the server knew it."""
    first = next(iter(sandbox.x0))
    for x in (Params({}), part_of(sandbox.x0, [first])):
        engine = sandbox.serial(FedAvg())
        with pytest.raises(Exception, match="must be all"):
            ask(engine, train(x=x, sgd=PRIVATE))


@task
def keep_as_a_pool(me: Client) -> Reply[Size]:
    return Reply(Size(me.size), keep={"pool": Pool(me.data.examples, instead=True)})


@task
def have_a_pool(me: Client) -> Reply[Size]:
    return Reply(Size(me.size), pool=Pool(me.data.examples, instead=True))


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (keep_as_a_pool(), "'pool' is where samples from other clients are kept"),
        (have_a_pool(), "pool: a task of your own cannot declare examples released"),
    ],
)
def test_a_task_of_ones_own_cannot_declare_its_data_released(sandbox, call, why):
    """What is in a pool is trained on without noise and without a line."""
    engine = sandbox.serial(FedAvg())
    with pytest.raises(BadInput, match=why):
        ask(engine, call)
    (update,) = ask(engine, train(x=sandbox.x0, sgd=SGD()))
    assert not update.dx.released
    assert epsilon(engine.ledger) == math.inf


def test_a_task_does_not_take_the_name_of_another_modules():
    def train(me: Client, x: Params) -> Reply[Update]:
        raise NotImplementedError

    train.__module__ = "fedavg"  # a file of the user's, beside methods/fedavg.py
    with pytest.raises(BadInput, match=r"task 'fedavg.train': tacit.methods.fedavg has one"):
        task(train)


class Counting(nn.Module):
    """Keeps the mean of what it has seen in a buffer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x):
        if self.training:
            self.seen += x.detach().mean(0)
        return self.layer(x + self.seen)


def test_no_task_meets_what_another_one_left_in_the_network(sandbox):
    """Client 4 gets the same answer whether or not client 5 has trained before it."""
    world = replace(sandbox.world(None, sandbox.fresh()), model=Counting())
    x0 = Params({k: v.detach().clone() for k, v in world.model.named_parameters()})
    call = train(x=x0, sgd=SGD())
    engine = Serial(world)
    ask(engine, call, client="5")
    (after,) = ask(engine, call, client="4")
    alone = Serial(replace(world, model=Counting(), folder=sandbox.fresh()))
    (first,) = ask(alone, call, client="4")
    assert torch.equal(after.dx["layer.weight"], first.dx["layer.weight"])


def test_simulating_does_not_move_the_generator_of_whoever_simulates(sandbox):
    engine = Serial(sandbox.world(None, sandbox.fresh()))
    x0 = Params({k: v.detach().clone() for k, v in engine.world.model.named_parameters()})
    before = torch.get_rng_state()
    ask(engine, train(x=x0, sgd=SGD()), client="4")
    assert torch.equal(torch.get_rng_state(), before)
