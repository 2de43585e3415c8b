"""Votes counted by hand, the noise and its price against closed forms and dp-accounting,
and what is refused.
"""

import copy
import math
import random
from dataclasses import replace
from typing import ClassVar

import dp_accounting as dp
import numpy as np
import pytest
import torch
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.rdp import RdpAccountant
from sandbox import Sandbox

import tacit
from tacit import privacy
from tacit.core import BadInput, Client, Gaussian, Ledger, Nothing, Release, params_of
from tacit.data.examples import Examples
from tacit.experiment.drive import drive
from tacit.local.sgd import SGD
from tacit.local.teachers import ballots, parts, sub_ballots
from tacit.methods.pate import PATE
from tacit.privacy.calibrate import laplace_for, vote_noise_for
from tacit.privacy.mechanisms import noisy_counts, noisy_max, vote_event
from tacit.privacy.noise import FromSeed
from tacit.privacy.perexample import CannotClip

DELTA = 1e-5


pytestmark = pytest.mark.usefixtures("one_thread")


def seeded(n=0):
    return FromSeed(np.random.default_rng(n))


# ---- counting
# --------------------------------------------------------------------------------------------------


def test_votes_are_counted_exactly():
    counts = np.sum(
        [np.eye(3)[[0, 1, 2, 2]], np.eye(3)[[0, 1, 1, 0]], np.eye(3)[[0, 0, 1, 1]]], axis=0
    )
    assert counts.tolist() == [[3, 0, 0], [1, 2, 0], [0, 2, 1], [1, 1, 1]]
    # a tie goes to the first class
    assert noisy_max(seeded(), counts, scale=0.0).tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_noise_breaks_ties_evenly(kind):
    won = np.bincount(noisy_max(seeded(), np.ones((6000, 3)), scale=1.0, kind=kind), minlength=3)
    assert abs(won / 6000 - 1 / 3).max() < 0.03


@pytest.mark.parametrize(("kind", "sd"), [("gaussian", 5.0), ("laplace", 5.0 * math.sqrt(2))])
def test_noise_has_its_scale(kind, sd, me):
    noisy = noisy_counts(me, "votes", np.zeros((20_000, 3)), scale=5.0, kind=kind).value
    assert noisy.std() == pytest.approx(sd, rel=0.02)
    assert abs(noisy.mean()) < 0.1


@pytest.fixture
def me(tmp_path):
    sandbox = Sandbox(tmp_path)
    return sandbox.world(PATE(), tmp_path).client("vote", "5", 0, {})


def test_a_teacher_votes_once_on_every_image(me):
    x0 = Sandbox(None).x0
    votes = ballots(me, x0, SGD(), torch.randn(11, 4))
    assert votes.shape == (11, 3)
    assert votes.sum(1).tolist() == [1.0] * 11
    assert set(votes.flatten()) == {0.0, 1.0}


def test_a_teacher_that_knows_one_class_votes_for_it(me):
    own = me.data.examples
    one = replace(
        me.data, source=Examples(own.x, torch.full_like(own.y, 2)), rows=np.arange(len(own))
    )
    votes = ballots(
        replace(me, data=one), Sandbox(None).x0, SGD(lr=1.0, epochs=20), torch.randn(9, 4)
    )
    assert votes.argmax(1).tolist() == [2] * 9


def test_sub_teachers_vote_as_often_as_there_are(me):
    # more than examples: some learn nothing
    counts = sub_ballots(me, Sandbox(None).x0, SGD(), torch.randn(7, 4), 40)
    assert counts.sum(1).tolist() == [40.0] * 7


def test_parts_are_disjoint_and_no_example_moves_when_another_one_goes(me):
    whole = parts(me, 4)
    assert sorted(np.concatenate(whole).tolist()) == list(range(len(me.data)))
    gone = 3
    rest = replace(me.data, rows=np.delete(me.data.rows, gone))
    after = parts(replace(me, data=rest), 4)
    for before, now in zip(whole, after, strict=True):
        moved = [i - (i > gone) for i in before.tolist() if i != gone]
        assert now.tolist() == moved


def test_one_example_changes_one_sub_teacher(me):
    """Every count moves by at most one, and at most two of a query.

    The sensitivity that the noise is made for.
    """
    images, x0 = torch.randn(30, 4), Sandbox(None).x0
    sgd = SGD(lr=1.0, epochs=2, batch=4)
    whole = sub_ballots(fresh(me), x0, sgd, images, 5)
    for gone in range(0, len(me.data), 9):
        rest = replace(me.data, rows=np.delete(me.data.rows, gone))
        other = sub_ballots(fresh(replace(me, data=rest)), x0, sgd, images, 5)
        difference = np.abs(whole - other)
        assert difference.max() <= 1
        assert difference.sum(1).max() <= 2


class Careless(torch.nn.Module):
    """Draws in training, and keeps a running mean: what one batch does shows in the next."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(4, 16), torch.nn.Linear(16, 3)
        self.register_buffer("mean", torch.zeros(16))

    def forward(self, x):
        h = torch.nn.functional.dropout(torch.relu(self.first(x)), 0.5, self.training)
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * h.detach().mean(0))
        return self.last(h - self.mean)


class CarelessElsewhere(Careless):
    """Draws from generators that are not torch's."""

    def forward(self, x):
        h = torch.relu(self.first(x))
        if self.training:
            h = h * torch.from_numpy(np.random.rand(*h.shape) < 0.5) * 2  # noqa: NPY002
            h = h * torch.tensor([[random.random() < 0.5] for _ in h]) * 2
        return self.last(h)


class CarelessTogether(Careless):
    """Keeps a running mean that all its copies share."""

    together: ClassVar = [torch.zeros(16)]

    def forward(self, x):
        h = torch.relu(self.first(x))
        if self.training:
            self.together[0] = 0.9 * self.together[0] + 0.1 * h.detach().mean(0)
        return self.last(h - self.together[0])


@pytest.mark.parametrize("kind", [Careless, CarelessElsewhere])
@pytest.mark.parametrize("gone", [0, 5, 11, 20])
def test_chance_and_state_of_one_sub_teacher_do_not_reach_another(me, gone, kind):
    """Dropout and running means, too:
    one example more shifts the masks of its own sub-teacher only.
    """
    torch.manual_seed(0)
    model, images = kind(), torch.randn(1000, 4)
    me, x0, sgd = replace(me, model=model), params_of(model), SGD(lr=1.0, epochs=2, batch=4)
    rest = replace(me.data, rows=np.delete(me.data.rows, gone))
    counts = []
    for data in (me.data, rest):
        # as an engine does before each task
        torch.manual_seed(7)
        np.random.seed(7)  # noqa: NPY002
        random.seed(7)
        own = replace(fresh(me), data=data, model=copy.deepcopy(model))
        counts.append(sub_ballots(own, x0, sgd, images, 5))
    difference = np.abs(counts[0] - counts[1])
    assert difference.max() <= 1
    assert difference.sum(1).max() <= 2
    assert np.linalg.norm(difference, axis=1).max() <= math.sqrt(2)


def test_sub_teachers_whose_networks_share_a_memory_fail(me):
    """By an error that is charged: the votes of one could depend on the records of another."""
    model = CarelessTogether()
    with pytest.raises(CannotClip, match="together of the network changed in training"):
        sub_ballots(replace(me, model=model), params_of(model), SGD(), torch.randn(3, 4), 4)


@pytest.mark.parametrize("kind", [Careless, CarelessElsewhere])
def test_sub_teachers_leave_chance_and_network_as_they_were(me, kind):
    model = kind()
    state, mean = torch.get_rng_state(), model.mean.clone()
    elsewhere = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    sub_ballots(replace(me, model=model), params_of(model), SGD(), torch.randn(3, 4), 4)
    assert torch.equal(model.mean, mean)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == elsewhere  # noqa: NPY002
    # but for the images that the test itself draws
    after = torch.get_rng_state()
    torch.set_rng_state(state)
    torch.randn(3, 4)
    assert torch.equal(torch.get_rng_state(), after)


def fresh(me: Client) -> Client:
    return replace(me, rng=np.random.default_rng(1))


# ---- the price
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sigma", "queries"), [(40.0, 286), (20.0, 1000), (100.0, 5000)])
def test_gnmax_costs_what_its_renyi_bound_says(sigma, queries):
    """Papernot et al. 2018, proposition 8.

    One query of GNMax is (alpha, alpha / sigma^2)-RDP, whatever the votes.
    """
    event = vote_event(sigma, "gaussian")
    orders = 1 + np.arange(1, 20_000) / 100
    closed = min(queries * a / sigma**2 + math.log(1 / DELTA) / (a - 1) for a in orders)
    accountant = RdpAccountant(orders)
    accountant.compose(dp.GaussianDpEvent(event.z), queries)
    assert np.allclose(accountant._rdp, queries * orders / sigma**2)
    exact = privacy.gdp_epsilon(math.sqrt(2 * queries) / sigma, DELTA)
    assert exact == pytest.approx(privacy.spend(event.z, queries, delta=DELTA))
    assert 0.75 * closed < exact < closed


def test_lnmax_costs_twice_gamma_for_one_query():
    """Papernot et al. 2017: noise Lap(1 / gamma) on every count is 2 gamma-DP."""
    gamma = 0.3
    line = ledger_of(vote_event(1 / gamma, "laplace"), 1)
    assert privacy.epsilon(line, unit="client", observer="clients", delta=1e-9) == pytest.approx(
        2 * gamma, rel=1e-2
    )


def test_one_laplace_shift_of_two_dominates_two_shifts_of_one():
    """What is accounted is one number that moves by 2.

    What happens is two counts that move by 1 each.
    """
    two = pld.from_laplace_mechanism(3.0, value_discretization_interval=1e-4).self_compose(2)
    one = pld.from_laplace_mechanism(1.5, value_discretization_interval=1e-4)
    for epsilon in np.linspace(0, 0.7, 29):
        assert two.get_delta_for_epsilon(epsilon) <= one.get_delta_for_epsilon(epsilon) + 1e-6


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
@pytest.mark.parametrize(("epsilon", "queries"), [(1.0, 100), (8.0, 1000)])
def test_the_noise_is_the_least_that_the_budget_allows(kind, epsilon, queries):
    scale = vote_noise_for(epsilon, queries, kind, delta=DELTA)
    spent = [
        privacy.epsilon(
            ledger_of(vote_event(s, kind), queries), unit="client", observer="clients", delta=DELTA
        )
        for s in (scale, 0.99 * scale)
    ]
    assert spent[0] <= epsilon < spent[1]
    assert spent[0] > 0.99 * epsilon


def test_few_laplace_queries_cost_what_simple_composition_says():
    assert laplace_for(4.0, 1, delta=1e-9) == pytest.approx(1 / 4, rel=1e-2)


def ledger_of(event, queries):
    line = Release("votes", "client", "0", "clients", event, ((0, 0),), queries, relation="either")
    return Ledger([line])


def test_votes_cost_the_same_for_removal_and_replacement_of_a_client_and_of_an_example():
    lines = ledger_of(Gaussian(10.0), 50)
    spent = {
        privacy.epsilon(lines, unit=unit, observer="clients", delta=DELTA, relation=relation)
        for unit in privacy.UNITS
        for relation in privacy.RELATIONS
    }
    assert len(spent) == 1


# ---- the ledger
# --------------------------------------------------------------------------------------------------


def run(method, tmp_path, **world):
    sandbox = Sandbox(tmp_path)
    engine = sandbox.serial(method)
    return drive(method, engine, method.init(sandbox.x0)), engine


def test_the_server_sees_votes_and_says_so(tmp_path):
    s, engine = run(PATE(labels="vote", rounds=1, epsilon=2.0), tmp_path)
    assert len(s.labels) == 8
    at = {
        o: privacy.epsilon(engine.ledger, unit="client", observer=o, delta=DELTA)
        for o in privacy.OBSERVERS
    }
    assert at["server"] == math.inf
    assert at["clients"] == at["public"] == pytest.approx(2.0)
    each = privacy.by_owner(engine.ledger, unit="client", observer="clients", delta=DELTA)
    assert sorted(i for i, e in each.items() if e > 0) == [
        "3",
        "4",
        "5",
    ]  # the others told their sizes
    assert {type(line.event) for line in engine.ledger if line.owner in "012"} == {Nothing}


def test_the_noise_of_the_vote_is_that_of_the_ledger(tmp_path):
    """The mechanism writes its lines before it draws: one for each voter, for all queries."""
    _, engine = run(PATE(labels="vote", rounds=1, queries=5), tmp_path)
    lines = [line for line in engine.ledger if line.what == "pate.vote (noisy max)"]
    assert [(line.owner, line.steps, line.unit, line.observer) for line in lines] == [
        (i, 5, "client", "clients") for i in "345"
    ]
    assert lines[0].event.z == pytest.approx(privacy.noise_for(8.0, 5, delta=DELTA))


def test_sub_teachers_protect_examples_from_the_server(tmp_path):
    _, engine = run(PATE(rounds=1, epsilon=2.0, sub=3), tmp_path)
    at = privacy.by_owner(engine.ledger, unit="example", observer="server", delta=DELTA)
    assert {i: round(e, 6) for i, e in at.items()} == {
        i: 2.0 if i in "345" else 0.0 for i in "012345"
    }
    twice = privacy.epsilon(
        engine.ledger, unit="example", observer="server", delta=DELTA, relation="replace"
    )
    assert twice > 2.0  # a replaced example may change two sub-teachers


def test_true_labels_of_the_public_set_change_nothing_but_the_report(tmp_path):
    method = PATE(rounds=2, sub=3, epsilon=50.0)
    states = []
    for shift in (0, 1):
        sandbox = Sandbox(tmp_path / str(shift))
        public = sandbox.federation(method).public()
        shifted = Examples(public.x, (public.y + shift) % 3)
        engine = sandbox.serial(method, public=shifted)
        states.append(drive(method, engine, method.init(sandbox.x0)))
    assert torch.equal(states[0].labels, states[1].labels)
    assert all(
        torch.equal(a, b) for a, b in zip(states[0].x.values(), states[1].x.values(), strict=True)
    )
    assert method.measured(states[0]) != method.measured(states[1])


def test_with_a_large_budget_the_labels_are_the_plain_majority(tmp_path):
    sandbox = Sandbox(tmp_path)
    method = PATE(labels="vote", epsilon=1e6, rounds=0, teacher=SGD(lr=0.5, epochs=5))
    engine = sandbox.serial(method)
    s = drive(method, engine, method.init(sandbox.x0))
    votes = []
    for i in "345":
        me = sandbox.world(method, tmp_path / "w").client("pate.vote", i, 0, {})
        votes.append(ballots(me, sandbox.x0, method.teacher, engine.public.x))
    counts = np.sum(votes, axis=0)
    clear = counts.max(1) > 1  # of three votes; where all differ, noise decides
    assert clear.any()
    assert s.labels.numpy()[clear].tolist() == counts.argmax(1)[clear].tolist()


# ---- groups, and what is refused
# -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "m", "large"),
    [
        ([2500] * 2 + [1000] * 3, 0, "01"),
        ([5, 5, 5], 0, "012"),  # all alike: everybody teaches
        ([6, 9, 12, 15, 18, 21], 0, "345"),
        ([6, 9, 12, 15, 18, 21], 1, "5"),
        ([7, 9, 9, 1], 1, "1"),  # of equal ones, the first
        ([7, 9, 9, 1], 4, "0123"),  # more teachers than large clients: the next in size
    ],
)
def test_large_clients_follow_from_public_sizes(sizes, m, large):
    groups = PATE(m=m).groups({str(i): n for i, n in enumerate(sizes)})
    assert groups["large"] == list(large)


@pytest.mark.parametrize(
    ("word", "split", "words"),
    [
        ("pate", "iid", ["split = 'iid'", "pate needs a public set", "sizes:kd-mnist"]),
        ("pate", "sizes:2x300,3x100", ["needs a public set"]),  # a public set of size 0
        ("pate:m=9", "sizes:2x300,3x100,public=100", ["m = 9", "at most 5"]),
        ("pate:epsilon=0", "iid", ["epsilon = 0", "above 0"]),
        ("pate:sub=0", "iid", ["sub = 0", "at least 1"]),
        ("pate:queries=-1", "iid", ["queries = -1", "at least 0"]),
        ("pate:sgd.clip=1.0", "iid", ["sgd.clip", "must be 0"]),
        ("pate:teacher.clip=1.0", "iid", ["teacher.clip", "must be 0"]),
        ("pate:labels=moments", "iid", ["labels", "sub-teachers"]),
    ],
)
def test_refused_in_one_line_and_no_folder_is_left(word, split, words, tmp_path):
    with pytest.raises(BadInput) as e:
        tacit.run(word, split=split, out=tmp_path / "run", workers=0)
    assert all(w in str(e.value) for w in words), str(e.value)
    assert "\n" not in str(e.value)
    assert not (tmp_path / "run").exists()


def test_more_queries_than_images_ask_for_all(tmp_path):
    s, _ = run(PATE(rounds=0, queries=100, sub=2), tmp_path)
    assert len(s.labels) == 8


def test_a_run_reports_how_many_labels_are_right(tmp_path):
    word = "pate:rounds=2,epsilon=50.0,sub=4,teacher.epochs=4"
    done = tacit.run(
        word, split="sizes:2x300,3x100,public=200", out=tmp_path / "r", workers=0, noise="seeded"
    )
    assert 0 <= done.final["measured"]["pseudo-labels"] <= 1
    assert done.epsilon["example/server"] == pytest.approx(50.0)
