"""One epsilon for a whole method: what contradicts it is refused, and a run's config.toml is not.

That methods spend it is in tests/conformance/test_promised.py.
"""

import tomllib

import pytest

from tacit import privacy
from tacit.core import BadInput, Ledger, NotPrivate
from tacit.experiment.config import Experiment, experiment_from, to_toml
from tacit.methods.spec import method_from_spec
from tacit.privacy.gdp import gdp_mu
from tacit.privacy.phases import half_of, rest_of

DELTA = 1e-5
SIZES = {"0": 400, "1": 300}
TIMES = {"0": 20, "1": 20}


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("fedavg:epsilon=4", "epsilon = 4: updates are sent without noise"),
        ("centralised:epsilon=4", "epsilon = 4: updates are sent without noise"),
        ("moon:epsilon=4", "epsilon = 4: updates are sent without noise, and moon has no mode"),
        ("local:epsilon=4", "epsilon = 4: nothing leaves a client"),
        ("dp_scaffold:mode=paper,epsilon=4", "epsilon = 4: means nothing in mode = 'paper'"),
        ("prifedsync:mode=paper,epsilon=4", "epsilon = 4: means nothing in mode = 'paper'"),
        ("gfl:mode=paper,epsilon=4", "epsilon = 4: mode = 'paper' promises none"),
        ("gfl:online=open,epsilon=4", "epsilon = 4: online = 'open' sends"),
        ("dafl:main=open,epsilon=4", "epsilon = 4: main = 'open' sends"),
        ("dafl:method=ldp_fl,epsilon=4", "epsilon = 4: the main phase has an epsilon of its own"),
    ],
)
def test_a_method_that_promises_nothing_takes_no_epsilon(word, says):
    with pytest.raises(NotPrivate, match=f"^{says}"):
        method_from_spec(word)


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("fedavg:sgd.clip=1,sgd.epsilon=3,epsilon=4", r"sgd.epsilon = 3: epsilon = 4 says it"),
        ("gfl:pool_epsilon=3,epsilon=4", r"pool_epsilon = 3.0: epsilon = 4 is all for the samples"),
        ("kd_dpfl:eps_1=8,epsilon=4", r"eps_1 = 8.0: must be at least 0 and at most 4"),
        ("dafl:epsilon=-1", "epsilon = -1"),
        ("prifedsync:epsilon=-1", "epsilon = -1"),
    ],
)
def test_an_epsilon_that_contradicts_another_setting_is_refused(word, says):
    with pytest.raises(BadInput, match=f"^{says}"):
        method_from_spec(word)


@pytest.mark.parametrize("name", ["gfl", "fedavg"])
def test_noise_that_contradicts_an_epsilon_is_refused_before_anything_starts(name):
    method = method_from_spec(f"{name}:sgd.clip=1,sgd.z=9,sgd.batch=500,epsilon=4")
    with pytest.raises(BadInput, match=r"^sgd.z = 9: .*costs eps .*; give one of them"):
        method.solved(SIZES, TIMES, DELTA)


@pytest.mark.parametrize(
    "word",
    [
        "fedavg:sgd.clip=1,sgd.batch=500,epsilon=4",
        "dp_scaffold:sgd.batch=500,epsilon=4",
        "prifedsync:epsilon=4",
        "dafl:epsilon=4",
        "dafl:main=dp-sgd,sgd.clip=1,sgd.batch=500,epsilon=4",
        "gfl:sgd.clip=1,sgd.batch=500,epsilon=4",
    ],
)
def test_what_was_solved_is_in_the_run_directory_and_solved_again_it_is_the_same(word):
    solved = method_from_spec(word).solved(SIZES, TIMES, DELTA)
    again = experiment_from(tomllib.loads(to_toml(Experiment(solved)))).method
    assert again == solved
    assert again.solved(SIZES, TIMES, DELTA) == solved
    ledger = Ledger(solved.releases(SIZES, TIMES, DELTA))
    unit, observer = solved.protects
    spent = privacy.epsilon(ledger, unit=unit, observer=observer, delta=DELTA)
    assert 0.98 * 4 < spent <= 4 * (1 + 1e-6)


@pytest.mark.parametrize("given", ["eps_1=2", "eps_2=2"])
def test_a_phase_that_says_its_epsilon_leaves_the_rest_to_the_other(given):
    """Large clients pay for both where they join."""
    sizes, times = SIZES | {"2": 40, "3": 40}, dict.fromkeys("0123", 3)
    word = f"kd_dpfl:large_join=true,rounds=3,sgd.batch=500,epsilon=4,{given}"
    solved = method_from_spec(word).solved(sizes, times, DELTA)
    assert given in (f"eps_1={solved.eps_1:g}", f"eps_2={solved.eps_2:g}")
    ledger = Ledger(solved.releases(sizes, times, DELTA))
    spent = privacy.epsilon(ledger, unit="example", observer="server", delta=DELTA)
    assert 0.98 * 4 < spent <= 4 * (1 + 1e-6)
    assert solved.solved(sizes, times, DELTA) == solved
    both = method_from_spec(word + ",eps_1=4,eps_2=4")
    with pytest.raises(BadInput, match=r"^eps_1 and eps_2 together cost .*: must be at most 4.004"):
        both.solved(sizes, times, DELTA)


def test_halves_are_of_mu_squared():
    """mu^2 of Gaussian releases adds up: so do a half and the rest, whatever their epsilons."""
    half = half_of(4.0, DELTA)
    assert 2 * gdp_mu(half, DELTA) ** 2 == pytest.approx(gdp_mu(4.0, DELTA) ** 2, rel=1e-6)
    rest = rest_of(4.0, 1.0, DELTA)
    whole = gdp_mu(1.0, DELTA) ** 2 + gdp_mu(rest, DELTA) ** 2
    assert whole == pytest.approx(gdp_mu(4.0, DELTA) ** 2, rel=1e-6)
    with pytest.raises(BadInput, match=r"^epsilon = 1: the first phase alone costs 2"):
        rest_of(1.0, 2.0, DELTA)
