"""DA-FL: who gets which samples, what the main phase may see, and what the ledger says."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit import privacy
from tacit.codec import same
from tacit.core import BadInput, BudgetReached, Everyone, Gaussian, NonPrivate
from tacit.data.examples import Examples
from tacit.engines.client_host import POOL
from tacit.experiment.drive import drive
from tacit.local.sgd import SGD
from tacit.methods.dafl import DAFL
from tacit.methods.fedavg import FedAvg
from tacit.methods.scaffold import Scaffold
from tacit.synthesis.augment import Augment
from tacit.synthesis.pool import Joined, even, others


def shares_of(sizes):
    """Client i's share: `sizes[i]` examples that are all i."""
    return {
        str(i): Examples(torch.full((n, 1), float(i)), torch.full((n,), i))
        for i, n in enumerate(sizes)
    }


@given(st.lists(st.integers(0, 5), min_size=2, max_size=6))
def test_nobody_gets_his_own_share_back(sizes):
    dealt = others(shares_of(sizes), [str(i) for i in range(len(sizes))])
    for i, part in dealt.items():
        assert int(i) not in part.y.tolist()
        assert len(part) == sum(sizes) - sizes[int(i)]


@given(st.lists(st.integers(1, 5), min_size=2, max_size=6), st.integers(0, 99))
def test_an_even_deal_hands_out_every_sample_once(sizes, seed):
    ids = [str(i) for i in range(len(sizes))]
    dealt = even(shares_of(sizes), ids, np.random.default_rng(seed))
    assert sorted(y for part in dealt.values() for y in part.y.tolist()) == sorted(
        i for i, n in enumerate(sizes) for _ in range(n)
    )
    assert max(map(len, dealt.values())) - min(map(len, dealt.values())) <= 1


def test_a_pool_that_is_too_small_to_deal_is_refused():
    with pytest.raises(BadInput, match=r"gamma: the pool has 1 samples for 2 clients"):
        even(shares_of([1, 0]), ["0", "1"], np.random.default_rng(0))


def test_without_samples_an_open_main_phase_is_the_method_itself(sandbox):
    method = DAFL(gamma=1e-9, main="open", rounds=3, per_round=4)
    got = drive(method, sandbox.serial(method), method.init(sandbox.x0))
    alone = FedAvg(rounds=3, per_round=4)
    assert same(got.inner.state, drive(alone, sandbox.serial(alone), alone.init(sandbox.x0)))


def test_certified_and_synthetic_costs_what_the_pool_costs_however_long_it_trains(sandbox):
    method = DAFL(gamma=1.0, pool_epsilon=2.0, rounds=4)
    engine = sandbox.serial(method)
    drive(method, engine, method.init(sandbox.x0))
    assert all(
        isinstance(line.event, Gaussian)
        for line in engine.ledger
        if line.what.startswith("moments")
    )
    spent = privacy.by_owner(engine.ledger, unit="example", observer="server", delta=1e-5)
    assert spent == pytest.approx(dict.fromkeys(engine.everyone, 2.0), rel=1e-6)


def test_the_synthetic_main_phase_does_not_see_the_real_data(sandbox):
    """After the pool is dealt out, other real data give the same model."""
    method = DAFL(gamma=1.0, rounds=2)
    engine = sandbox.serial(method)
    s = drive(method, engine, method.init(sandbox.x0), stop_after=2)
    assert s.joined == engine.everyone
    here = drive(method, engine, s)
    train = engine.world.federation.dataset.train
    train.x.neg_()
    try:
        there = sandbox.serial(method, folder=engine.world.folder)
        there.restore(engine.snapshot(), engine.ledger)
        assert same(here, drive(method, there, s))
    finally:
        train.x.neg_()


def test_an_open_main_phase_is_infinite_and_says_why(sandbox):
    method = DAFL(gamma=1.0, main="open", rounds=1)
    engine = sandbox.serial(method)
    drive(method, engine, method.init(sandbox.x0))
    assert privacy.epsilon(engine.ledger, unit="example", observer="server", delta=1e-5) == math.inf
    assert "fedavg.train sends dx" in privacy.reason(engine.ledger)
    assert any(isinstance(line.event, NonPrivate) for line in engine.ledger)


def test_a_dp_sgd_main_phase_adds_its_cost(sandbox):
    method = DAFL(gamma=1.0, main="dp-sgd", rounds=2, sgd=SGD(clip=1.0, z=2.0))
    engine = sandbox.serial(method)
    drive(method, engine, method.init(sandbox.x0))
    spent = privacy.epsilon(engine.ledger, unit="example", observer="server", delta=1e-5)
    assert 1.0 < spent < math.inf


def test_the_pool_stays_beside_what_a_method_keeps(sandbox):
    method = DAFL.in_front_of(Scaffold(rounds=3), Augment(gamma=1.0, main="open"))
    engine = sandbox.serial(method)
    drive(method, engine, method.init(sandbox.x0))
    kept = engine.world.store("2").kept(engine.accepted["2"])
    assert POOL in kept
    assert len(kept) > 1
    me = engine.world.client("scaffold.train", "2", 3, kept)
    assert POOL not in me.kept
    assert len(me.data) == len(engine.world.federation.train("2")) + len(kept[POOL].examples)


def test_clients_without_their_pool_do_not_train(sandbox):
    engine = sandbox.serial(FedAvg())
    some = Joined(engine, ("1", "4"))
    assert some.sample(Everyone(), 0).ids == ("1", "4")
    assert some.delta == engine.delta


def test_the_budget_stops_before_the_pool(sandbox):
    method = DAFL(gamma=1.0, pool_epsilon=3.0)
    world = sandbox.world(method, sandbox.fresh())

    def approve(ledger):
        privacy.approve(ledger, budget=2.0, unit="example", observer="server", delta=1e-5)

    engine = sandbox.serial(method)
    engine.world = replace(world, approve=approve)
    with pytest.raises(BudgetReached):
        drive(method, engine, method.init(sandbox.x0))


def test_settings_of_the_main_method_survive():
    inner = DAFL.in_front_of(Scaffold(rounds=7, per_round=3), Augment(main="open")).method
    assert inner == Scaffold(rounds=7, per_round=3)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"gamma": 0.0}, "gamma"),
        ({"pool_epsilon": -1.0}, "pool_epsilon"),
        ({"mode": "paper", "generator": "moments"}, "generator"),
        ({"generator": "gan", "pool_epsilon": 0.05}, "label_epsilon"),
        ({"main": "dp-sgd"}, "main"),
    ],
)
def test_bad_settings_are_refused_by_name(settings, field):
    with pytest.raises(BadInput, match=field):
        DAFL(**settings)
