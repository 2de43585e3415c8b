"""What a method will have spent after some of its rounds."""

import math

import pytest

from tacit import privacy
from tacit.core import FEDERATION, BadInput, Gaussian, Ledger, Release
from tacit.experiment import forecast
from tacit.experiment.config import Experiment, Setting
from tacit.experiment.forecast import over_rounds
from tacit.methods import CLFL, LDPFL, UDP, DPFedAvg


def line(z, *rounds, owner="0", what="update"):
    return Release(what, "client", owner, "server", Gaussian(z), rounds)


@pytest.fixture
def curve(monkeypatch):
    """Return the curve of a method that will write these lines.

    (round, epsilon) for every one of its rounds.
    """

    def of(lines, rounds):
        monkeypatch.setattr(forecast, "predicted", lambda experiment, plan: Ledger(lines))
        return over_rounds(Experiment(UDP(rounds=rounds), Setting(clients=3)), points=rounds)

    return of


def gdp(*zs):
    return privacy.gdp_epsilon(sum(z**-2 for z in zs) ** 0.5, 1e-5)


def test_noise_that_differs_from_round_to_round_adds_up_round_by_round(curve):
    zs = [2.0, 3.0, 4.0, 5.0]
    got = curve([line(z, (k, k)) for k, z in enumerate(zs)], 4)
    assert got == [(t, pytest.approx(gdp(*zs[:t]))) for t in (1, 2, 3, 4)]


def test_the_same_noise_in_every_round_adds_up_evenly(curve):
    """A hundred rounds.

    7/100 of them are 7, though 100 * (7 / 100) is a little more in floating point.
    """
    got = curve([line(9.0, (0, 99))], 100)
    assert got == [(t, pytest.approx(gdp(*[9.0] * t))) for t in range(1, 101)]


def test_an_owner_with_fewer_rounds_spends_them_evenly(curve):
    """Client 1 takes part in two rounds of four: after one round and after two it has had one."""
    got = curve([line(2.0, (0, 1), owner="1")], 4)
    assert [epsilon for _, epsilon in got] == pytest.approx(
        [gdp(2.0), gdp(2.0), gdp(2.0, 2.0), gdp(2.0, 2.0)]
    )


def test_what_is_released_once_is_there_from_the_first_round_on(curve):
    once, always = line(1.0, (0, 0), what="moments"), line(3.0, (0, 1))
    got = curve([once, always], 2)
    assert [epsilon for _, epsilon in got] == pytest.approx([gdp(1.0, 3.0), gdp(1.0, 3.0, 3.0)])


def test_gaps_stay_gaps(curve):
    """Rounds 1, 3 and 4 of four; what the federation releases counts for everybody."""
    got = curve([line(2.0, (0, 0), (2, 3)), line(5.0, (0, 3), owner=FEDERATION, what="mean")], 4)
    want = [
        gdp(2.0, 5.0),
        gdp(2.0, *[5.0] * 2),
        gdp(2.0, 2.0, *[5.0] * 3),
        gdp(*[2.0] * 3, *[5.0] * 4),
    ]
    assert [epsilon for _, epsilon in got] == pytest.approx(want)


def test_the_curve_of_a_method_ends_with_its_whole_cost():
    experiment = Experiment(DPFedAvg(rounds=6, q=1.0, z=4.0), Setting(clients=3))
    assert over_rounds(experiment) == [(t, pytest.approx(gdp(*[4.0] * t))) for t in range(1, 7)]


def test_a_paper_claims_nothing_for_no_rounds():
    with pytest.raises(BadInput, match="rounds = 0: must be at least 1"):
        LDPFL(rounds=0).claims({"0": 10}, 1e-5)


def test_a_paper_claims_nothing_without_noise():
    assert [epsilon for _, epsilon, _ in CLFL(z=0.0).claims({"0": 10, "1": 10}, 1e-5)] == [
        math.inf,
        math.inf,
    ]
