"""What DP-SGD of a linear model chooses itself, and that it never touches what a user has said."""

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tacit
from tacit import privacy
from tacit.core import Known
from tacit.data import load
from tacit.experiment.config import Experiment, Setting
from tacit.experiment.plan import Plan
from tacit.local.linear import FASTEST, STABLE, STEPS, WALK, noise_in_mean
from tacit.local.sgd import SGD
from tacit.methods.ditto import Own
from tacit.methods.spec import method_from_spec
from tacit.privacy.gdp import gdp_mu

pytestmark = pytest.mark.usefixtures("one_thread")
DELTA = 1e-5
SIZES = {"0": 100, "1": 400}
FEATURES = Known(SIZES, DELTA, linear=50)
PIXELS = Known(SIZES, DELTA)
CLIPPED = ("fedavg", "fedprox", "fednova", "scaffold", "fedavgm", "fedadam", "ditto", "mr_mtl")
CLIPPED += ("local", "centralised")
WHOLE_CLIENTS = ("dp_fedavg", "nbafl", "udp", "cl_fl")
DIGITS = load("digits")


def planned(method, **setting):
    return Plan.of(Experiment(method, Setting(workers=0, clients=3, **setting)), DIGITS).experiment


def private(name, **settings):
    method = method_from_spec(f"{name}:sgd.clip=1" if name in CLIPPED else name)
    return replace(method, **settings)


@pytest.mark.parametrize("name", [*CLIPPED, "dp_scaffold", *WHOLE_CLIENTS])
def test_who_adds_noise_has_features_and_a_linear_model_unless_told_otherwise(name):
    method = private(name, epsilon=4.0)
    setting = planned(method).setting
    assert (setting.features, setting.model) == ("hog", "logistic")
    for said in ({"features": "none"}, {"model": "mlp"}):
        assert planned(method, **said).setting.features == "none"


@pytest.mark.parametrize("name", CLIPPED)
def test_who_adds_none_has_neither_and_trains_as_ever(name):
    found = planned(method_from_spec(name))
    assert found.setting.features == "none"
    assert found.method.sgd == SGD()


@pytest.mark.parametrize("name", ["dp_scaffold", "nbafl", "udp", "cl_fl"])
def test_what_was_published_has_none_either(name):
    found = planned(method_from_spec(f"{name}:mode=paper"))
    assert found.setting.features == "none"
    usual = (0.05, 1, 64 if name == "dp_scaffold" else 32)
    assert (found.method.sgd.lr, found.method.sgd.epochs, found.method.sgd.batch) == usual


@pytest.mark.parametrize("name", [*CLIPPED, "dp_scaffold"])
def test_with_another_network_it_is_as_ever(name):
    sgd = private(name, epsilon=4.0).tuned(PIXELS).sgd
    assert (sgd.lr, sgd.epochs, sgd.batch) == (0.05, 1, 64 if name == "dp_scaffold" else 32)


@pytest.mark.parametrize("rounds", [1, 20, 100, 300])
def test_every_step_sees_all_examples_and_there_are_about_a_hundred(rounds):
    sgd = private("fedavg", epsilon=1.0, rounds=rounds).tuned(FEATURES).sgd
    for n in SIZES.values():
        assert sgd.rate(n) == 1
        assert rounds * sgd.steps_on(n) == max(rounds, STEPS)


def test_the_step_size_by_hand():
    """The noise of all steps, in the mean of two clients, moves the model so far."""
    sgd = private("fedavg", epsilon=1.0).tuned(FEATURES).sgd
    z = math.sqrt(STEPS) / gdp_mu(1.0, DELTA)
    one = math.hypot(z, z) / 500 * math.sqrt(50)  # in the mean over all 500 examples
    assert sgd.lr * one * math.sqrt(STEPS) == pytest.approx(WALK, rel=1e-3)
    even = private("scaffold", epsilon=1.0).tuned(FEATURES).sgd  # both count alike
    first, second = z / 100, z / 400
    one = math.hypot(first / 2, second / 2) * math.sqrt(50)
    assert even.lr * one * math.sqrt(STEPS) == pytest.approx(WALK, rel=1e-3)
    alone = private("local", epsilon=1.0).tuned(FEATURES).sgd  # nobody averages any noise away
    assert alone.lr == pytest.approx(even.lr / math.sqrt(2), rel=1e-3)
    again = private("fedavg", epsilon=1.0, sgd=replace(AUTO, momentum=0.9)).tuned(FEATURES).sgd
    assert again.lr * again.reach(5) == pytest.approx(sgd.lr * 5, rel=1e-3)


AUTO = SGD(lr="auto", epochs="auto", batch="auto", clip=1.0)


def test_a_step_has_a_bound():
    many = Known({"0": 10**7}, DELTA, linear=50)
    assert private("fedavg", epsilon=8.0).tuned(many).sgd.lr == FASTEST
    tight = replace(AUTO, clip=0.1)
    assert private("fedavg", epsilon=8.0, sgd=tight).tuned(many).sgd.lr == 10 * FASTEST
    drawn = private("mr_mtl", epsilon=8.0, sgd=tight, lam=0.2).tuned(many)
    assert drawn.sgd.lr == STABLE / 0.2


def test_momentum_shortens_the_longest_step_only_where_clients_drift_apart():
    moving = replace(AUTO, momentum=0.9)
    one, two = (Known(dict.fromkeys("01"[:n], 10**7), DELTA, linear=50) for n in (1, 2))
    pooled = private("centralised", epsilon=8.0, rounds=1, sgd=moving)
    assert pooled.tuned(one).sgd.lr == FASTEST
    shared = private("fedavg", epsilon=8.0, rounds=1, sgd=moving).tuned(two).sgd
    assert shared.lr * shared.reach(STEPS) == pytest.approx(FASTEST * STEPS, rel=1e-3)
    # a gradient that acts ten times brings its noise ten times, alone as well
    few = Known({"0": 400}, DELTA, linear=50)
    still = private("centralised", epsilon=1.0, rounds=1).tuned(few).sgd
    swung = replace(pooled, epsilon=1.0).tuned(few).sgd
    assert swung.lr * swung.reach(STEPS) == pytest.approx(still.lr * STEPS, rel=1e-3)


SAID = st.fixed_dictionaries(
    {"clip": st.sampled_from([0.1, 1.0])},
    optional={
        "lr": st.sampled_from([0.05, 3.0]),
        "epochs": st.sampled_from([1, 2]),
        "batch": st.sampled_from([32, 100]),
        "steps": st.sampled_from([0, 4]),
        "momentum": st.sampled_from([0.0, 0.5]),
    },
)


@given(said=SAID, name=st.sampled_from([*CLIPPED, "dp_scaffold"]))
def test_what_is_said_stays(said, name):
    method = private(name, sgd=replace(AUTO, **said), epsilon=1.0)
    chosen = method.tuned(FEATURES)
    assert {key: getattr(chosen.sgd, key) for key in said} == said
    assert "auto" not in (chosen.sgd.lr, chosen.sgd.epochs, chosen.sgd.batch)
    assert chosen.tuned(FEATURES) == chosen  # as when a run goes on
    rest = replace(chosen, sgd=method.sgd)
    assert rest == (replace(method, own=chosen.own) if name == "ditto" else method)


def test_adam_keeps_its_usual_step():
    sgd = replace(AUTO, optimizer="adam")
    assert private("fedavg", sgd=sgd, epsilon=1.0).tuned(FEATURES).sgd.lr == 0.05


def test_dittos_own_models_are_trained_without_noise_and_without_its_numbers():
    chosen = private("ditto", epsilon=1.0).tuned(FEATURES)
    assert chosen.own == Own(0.05, 1, 32)
    assert chosen.sgd.batch == 400
    said = private("ditto", epsilon=1.0, sgd=replace(AUTO, lr=0.3, momentum=0.5)).tuned(FEATURES)
    assert said.own.beside(said.sgd) == SGD(lr=0.3, momentum=0.5)
    own = private("ditto", own=Own(lr=0.7)).tuned(FEATURES).own
    assert own == Own(0.7, 1, 32)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "dp_scaffold", "fednova", "mr_mtl"])
def test_a_run_spends_what_was_promised_and_learns(name, tmp_path):
    method = private(name, epsilon=4.0)
    run = tacit.run(method, data="digits", clients=3, workers=0, out=tmp_path / "run")
    spent = privacy.epsilon(run.ledger, unit="example", observer="server", delta=DELTA)
    assert 0.99 * 4.0 < spent <= 4.0 * (1 + 1e-6)
    assert run.accuracy > 0.8


@pytest.mark.parametrize("name", [*CLIPPED, "dp_scaffold"])
def test_noise_that_was_given_is_for_the_usual_steps(name):
    """With all examples in every step it would cost far more than whoever gave it expects."""
    given = private(name, sgd=replace(AUTO, z=1.0))
    assert not given.prefers_features
    sgd = given.tuned(FEATURES).sgd
    assert (sgd.lr, sgd.epochs, sgd.batch) == (0.05, 1, 64 if name == "dp_scaffold" else 32)
    of_training = private(name, sgd=replace(AUTO, epsilon=1.0))
    assert of_training.tuned(FEATURES).sgd.lr == private(name, epsilon=1.0).tuned(FEATURES).sgd.lr


@pytest.mark.parametrize("k", [1, 2, 5])
def test_the_noise_of_a_mean_by_size_over_some_clients_is_that_of_such_rounds(k):
    """Five clients of 40 examples and five of 10,000: who is in a round decides."""
    sizes = [40] * 5 + [10_000] * 5
    sds = [1 / n for n in sizes]
    found = []
    for some in itertools.combinations(range(10), k):
        n = sum(sizes[i] for i in some)
        found.append(sum((sizes[i] * sds[i]) ** 2 for i in some) / n**2)
    true = math.sqrt(sum(found) / len(found) * 50)
    assert noise_in_mean(sds, k, 50, sizes) == pytest.approx(true, rel=0.25)
