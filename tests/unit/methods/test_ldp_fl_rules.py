"""What LDP-FL chooses itself, from public facts, and that it never touches what a user has said."""

import math
import tomllib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sandbox import a_client

import tacit
from tacit.core import BadInput, Known
from tacit.data import load
from tacit.experiment.config import Experiment, Setting, experiment_from, to_toml
from tacit.experiment.plan import Plan
from tacit.local.sgd import SGD
from tacit.methods import ldp_fl, ldp_fl_update
from tacit.methods.ldp_fl import LDPFL
from tacit.methods.ldp_fl_choices import FASTEST, MOVED
from tacit.methods.spec import method_from_spec
from tacit.privacy.gdp import gdp_mu

DELTA = 1e-5
TWO = {"0": 100, "1": 400}
FEATURES = Known(TWO, DELTA, linear=50)
PIXELS = Known(TWO, DELTA)


def test_the_noise_in_a_mean_of_two_gradients_by_hand():
    method = LDPFL(mode="gradient", epsilon=1.0, rounds=9, clip=0.5)
    mu = gdp_mu(1.0, DELTA)
    first, second = 0.5 * 3 / mu / 100, 0.5 * 3 / mu / 400  # of single numbers, at each client
    both = math.sqrt((first / 2) ** 2 + (second / 2) ** 2) * math.sqrt(50)
    assert method.noise_in_mean(FEATURES) == pytest.approx(both)
    # replaced instead of zeroed out: twice the noise
    doubled = replace(method, relation="replace").noise_in_mean(FEATURES)
    assert doubled == pytest.approx(2 * both)
    # one of the two in each round: half of the rounds each, and nobody else in the mean
    alone = math.sqrt((first**2 + second**2) / 2 * 50 / 2)
    assert replace(method, per_round=1).noise_in_mean(FEATURES) == pytest.approx(alone)


def test_it_is_the_noise_that_clients_add():
    method = LDPFL(epsilons=(1.0, 4.0), rounds=9).tuned(FEATURES)
    rules = {i: method.rule(i, n, 9, DELTA) for i, n in TWO.items()}
    sums = [rules[i].sensitivity * rules[i].z for i in TWO]  # 500 examples in all
    assert method.noise_in_mean(FEATURES) == pytest.approx(math.hypot(*sums) / 500 * math.sqrt(50))
    alike = replace(method, weights="alike").noise_in_mean(FEATURES)
    sds = [total / n for total, n in zip(sums, TWO.values(), strict=True)]
    assert alike == pytest.approx(math.hypot(*sds) / 2 * math.sqrt(50))


def test_clients_count_by_size_in_a_mean_of_gradients_and_alike_elsewhere():
    assert LDPFL().tuned(FEATURES).weights == "size"
    assert LDPFL(weights="alike").tuned(FEATURES).weights == "alike"
    assert LDPFL().tuned(PIXELS).weights == LDPFL(mode="paper").tuned(FEATURES).weights == "auto"
    with pytest.raises(BadInput, match=r"weights = 'size'.* mode = 'update' hides"):
        LDPFL(mode="update", weights="size")
    with pytest.raises(BadInput, match="weights = 'even'"):
        LDPFL(weights="even")


def test_by_size_a_round_is_one_step_on_all_records_together():
    """Without noise worth speaking of, and nothing clipped: whoever holds them, however unequally.

    What a plain mean of the clients' own means gives is something else.
    """

    def model(**how):
        mode = {"mode": "gradient", "clip": 1e3, "momentum": 0.0, "epsilon": 1e9, "rounds": 1}
        method = LDPFL(sgd=SGD(lr=0.1), **mode, **how)
        split = "quantity:0.3" if "weights" in how else "iid"
        run = tacit.run(method, split=split, model="logistic", features="none", workers=1)
        return run.model().state_dict()

    def apart(one, other):
        return max(float((one[k] - other[k]).abs().max()) for k in one)

    together = model()
    assert apart(model(weights="size"), together) < 1e-3
    assert apart(model(weights="alike"), together) > 1e-2


def test_a_step_is_as_long_as_its_noise_allows_and_never_longer_than_the_longest():
    for epsilon in (0.1, 1.0, 4.0):
        chosen = LDPFL(epsilon=epsilon).tuned(FEATURES)
        moved = chosen.sgd.lr * chosen.noise_in_mean(FEATURES)
        assert moved == pytest.approx(MOVED, rel=1e-3)
    many = Known({"0": 10**7}, DELTA, linear=50)
    assert LDPFL().tuned(many).sgd.lr == FASTEST


SAID = st.fixed_dictionaries(
    {},
    optional={
        "clip": st.sampled_from([0.1, 1.0]),
        "momentum": st.sampled_from([0.0, 0.5]),
        "sgd": st.builds(SGD, lr=st.sampled_from([0.05, 3.0])),
        "rounds": st.sampled_from([0, 20]),
        "epsilon": st.sampled_from([1.0, 4.0]),
    },
)


@given(SAID, st.sampled_from(["auto", "dp-sgd", "gradient"]), st.sampled_from([FEATURES, PIXELS]))
def test_what_a_user_has_said_stays(said, mode, known):
    """Also where it is what another mode takes by itself, such as a step size of 0.05."""
    chosen = LDPFL(mode=mode, **said).tuned(known)
    assert {name: getattr(chosen, name) for name in said} == said
    assert chosen.mode == (mode if mode != "auto" else "gradient" if known.linear else "dp-sgd")
    assert chosen.tuned(known) == chosen  # as when a run goes on


def test_without_features_it_is_dp_sgd_as_ever():
    chosen = LDPFL().tuned(PIXELS)
    assert (chosen.mode, chosen.C, chosen.server_momentum) == ("dp-sgd", 1.0, 0.0)
    assert chosen.sgd.lr_in(0) == SGD().lr_in(0) == 0.05


@pytest.mark.parametrize("mode", ["paper", "update", "dp-sgd"])
def test_other_modes_choose_nothing(mode):
    said = LDPFL(mode=mode)
    assert said.tuned(FEATURES) == replace(said, sgd=replace(said.sgd, lr=0.05))  # the usual one
    assert not said.prefers_features


@pytest.mark.parametrize(
    ("word", "setting", "features", "network", "mode"),
    [
        ("ldp_fl", {}, "hog", "logistic", "gradient"),
        ("ldp_fl", {"features": "dct"}, "dct", "logistic", "gradient"),
        ("ldp_fl", {"features": "none"}, "none", "cnn", "dp-sgd"),
        ("ldp_fl", {"model": "mlp"}, "none", "mlp", "dp-sgd"),
        ("ldp_fl", {"model": "mlp", "features": "hog"}, "hog", "mlp", "dp-sgd"),
        ("ldp_fl:mode=dp-sgd", {}, "none", "cnn", "dp-sgd"),
        ("ldp_fl:mode=gradient", {}, "none", "cnn", "gradient"),
        ("ldp_fl:mode=paper", {}, "none", "cnn", "paper"),
    ],
)
def test_images_have_features_unless_something_else_is_said(word, setting, features, network, mode):
    plan = Plan.of(
        Experiment(method_from_spec(word), Setting(workers=0, **setting)), load("digits")
    )
    got = plan.experiment.setting
    assert (got.features, plan.experiment.method.mode) == (features, mode)
    assert got.model == network or network == "cnn"


def test_with_no_flags_it_learns(tmp_path, one_thread):
    done = tacit.run(
        "ldp_fl:epsilon=8,rounds=12",
        clients=3,
        workers=0,
        noise="seeded",
        eval_every=12,
        out=tmp_path / "run",
    )
    assert done.accuracy > 0.75
    assert done.spent == pytest.approx(8.0, rel=1e-3)


def test_runs_of_before_go_on_as_they_began():
    """Their folder says everything but how clients count; a file of today's may leave it open."""
    began = Experiment(LDPFL(mode="gradient", clip=0.4, momentum=0.9, sgd=SGD(lr=3.0)), Setting())
    raw = tomllib.loads(to_toml(began))
    del raw["method"]["weights"]
    assert experiment_from(raw).method.tuned(FEATURES).weights == "alike"
    short = {"method": {"name": "ldp_fl", "mode": "gradient"}}
    assert experiment_from(short).method.tuned(FEATURES).weights == "size"


def test_what_a_mode_hides_is_not_told_by_asking_for_another_reply(sandbox):
    hides = LDPFL(mode="update", rounds=1)
    me = a_client()
    with pytest.raises(BadInput, match="mode = 'update'"):
        ldp_fl.train.fn(me, x=sandbox.x0, method=hides, K=1, q=1.0, delta=DELTA)
    with pytest.raises(BadInput, match="must be 'update'"):
        ldp_fl_update.train.fn(me, x=sandbox.x0, method=LDPFL(mode="dp-sgd"), K=1, delta=DELTA)
