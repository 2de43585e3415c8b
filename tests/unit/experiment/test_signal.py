"""Noise that drowns all that data can say is told of before a run, with the eps where they meet."""

import math
from dataclasses import dataclass, replace

import pytest

import tacit
from tacit.core import Gaussian, Release
from tacit.experiment.calibration import calibrated, participations
from tacit.experiment.config import Experiment, Setting
from tacit.experiment.plan import Plan
from tacit.experiment.signal import _ratio, of_signal
from tacit.local.sgd import SGD
from tacit.methods.cuag import CUAG
from tacit.methods.dp_fedavg import DPFedAvg
from tacit.methods.fedavg import FedAvg
from tacit.methods.kd_dpfl import KDDPFL
from tacit.methods.ldp_fl import LDPFL
from tacit.methods.moments import Moments
from tacit.methods.pate import PATE
from tacit.synthesis.moments import COVARIANCES, MEANS

SIZES = {"a": 600, "b": 600}
NUMBERS = 400


def ready(method):
    return calibrated(method, SIZES, 1e-5, 0)


def ratio_of(method, sizes=SIZES, sums=1):
    times = participations(tuple(sizes), method.per_round, method.rounds, 0)
    return _ratio(method, sizes, times, 1e-5, NUMBERS, sums)


def said(method, numbers=NUMBERS, inputs=1, classes=1):
    return of_signal(method, ready(method), ready, SIZES, 1e-5, numbers, inputs, classes)


def test_the_ratio_by_hand():
    """Two clients, three rounds of full gradients: sqrt(2 * 3) * (600 / z) / sqrt(400)."""
    method = ready(LDPFL(mode="gradient", epsilon=0.5, rounds=3))
    (line, _) = method.releases(SIZES, {"a": 3, "b": 3}, 1e-5)
    wanted = math.sqrt(6) * 600 / line.event.z / 20
    assert ratio_of(method) == pytest.approx(wanted)


def test_dp_sgd_counts_sampled_examples_of_every_step():
    sgd = SGD(clip=1.0, z=5.0, batch=60, epochs=2)
    wanted = math.sqrt(2 * 20) * (60 / 5.0) / 20  # 20 steps of a tenth of 600
    assert ratio_of(FedAvg(rounds=1, sgd=sgd)) == pytest.approx(wanted)


def test_few_clients_stand_for_all():
    many = {f"{i:03d}": 600 for i in range(100)}
    method = calibrated(LDPFL(mode="gradient", epsilon=0.5, rounds=3), many, 1e-5, 0)
    few = ratio_of(method)
    assert ratio_of(method, many) == pytest.approx(few * math.sqrt(50))


def test_moments_are_a_sum_of_features_for_each_class():
    """Two clients of 3 classes in 9: the means alone, sqrt(2) * (600 / 3) * sqrt(3) / z / 30."""
    method = Moments(epsilon=0.5)
    means, covariances = method.releases({"a": 600}, {"a": 1}, 1e-5)
    assert (means.what, covariances.what) == (MEANS, COVARIANCES)
    wanted = math.sqrt(2) * 200 * math.sqrt(3) / means.event.z / math.sqrt(100 * 9)
    assert ratio_of(method, sums=100 * 9 * 3) == pytest.approx(wanted)
    (line,) = said(replace(method, epsilon=0.001), inputs=100, classes=9)
    assert line.startswith("moments: noise will be")
    assert "they meet at about epsilon = " in line
    personal = CUAG(epsilon=0.01, head="gaussian")  # with its own records, exact
    assert said(replace(method, epsilon=0.01), inputs=100, classes=9)
    assert not said(personal, inputs=100, classes=9)


@pytest.mark.parametrize(("eps_1", "drowned"), [(0.001, True), (50.0, False)])
def test_one_good_phase_does_not_hide_one_that_says_nothing(eps_1, drowned, capsys):
    """KD-DPFL's labels from moments, drowned or not, and gradients with much to say."""
    setting = Setting(data="digits", split="sizes:2x300,4x100,public=200", features="hog")
    kd = KDDPFL(eps_1=eps_1, eps_2=50.0)
    Plan.of(Experiment(kd, setting))
    assert ("kd_dpfl: noise will be" in capsys.readouterr().err) is drowned


def test_votes_are_not_of_examples():
    """A record moves one vote, however many there are: nothing is said of steps."""
    method = PATE(epsilon=4.0, queries=100)
    assert ratio_of(method) == math.inf


def test_it_is_said_with_the_eps_at_which_signal_and_noise_meet():
    method = LDPFL(mode="gradient", epsilon=0.001, rounds=3)
    (line,) = said(method)
    meet = float(line.partition("epsilon = ")[2].partition(";")[0])
    at = ready(replace(method, epsilon=meet))
    assert ratio_of(at) == pytest.approx(1, rel=0.1)
    assert not said(replace(method, epsilon=1.2 * meet))
    assert said(replace(method, epsilon=0.8 * meet))


def test_whole_clients_count_once():
    (line,) = said(DPFedAvg(epsilon=1.0, rounds=3))
    assert "times as long as all that the data can say" in line


@pytest.mark.parametrize("method", [FedAvg(), LDPFL(mode="gradient", epsilon=1.0), Moments()])
def test_nothing_is_said_without_reason(method):
    assert said(method) == []


def test_noise_that_was_given_by_hand_has_no_epsilon_to_change():
    (line,) = said(FedAvg(rounds=1, sgd=SGD(clip=1.0, z=5000.0)))
    assert "epsilon" not in line


def test_a_run_says_it_before_it_starts(capsys):
    setting = Setting(clients=2, model="logistic")
    Plan.of(Experiment(LDPFL(mode="gradient", epsilon=1e-4, rounds=2), setting))
    assert "warning: ldp_fl: noise will be" in capsys.readouterr().err
    Plan.of(Experiment(LDPFL(mode="gradient", epsilon=8.0, rounds=2), setting))
    assert "noise will be" not in capsys.readouterr().err


def test_a_comparison_says_it_once_and_of_whom(tmp_path, capsys):
    words = ["ldp_fl:epsilon=0.0001,rounds=1", "moments:epsilon=0.0001"]
    tacit.compare(words, clients=2, workers=0, out=tmp_path / "c")
    lines = [line for line in capsys.readouterr().err.splitlines() if "noise will be" in line]
    assert [line.split(":")[1] for line in lines] == [" ldp_fl", " moments"]
    tacit.compare(words[:1], clients=2, workers=0, out=tmp_path / "d")  # another one says it anew
    assert capsys.readouterr().err.count("noise will be") == 1


@dataclass(frozen=True)
class Odd(FedAvg):
    """A method of one's own whose prediction is of no use."""

    owner: str = "0"
    z: float = 1.0

    def releases(self, sizes, times, delta):
        if self.owner == "fails":
            raise RuntimeError("not yet")
        return [Release("x", "example", self.owner, "server", Gaussian(self.z), ((0, 3),))]


@pytest.mark.parametrize(
    "odd",
    [
        Odd(owner="test:00"),
        Odd(owner="fails"),
        Odd(owner="a", z=math.inf),
        Odd(owner="a", z=1e200),
        Odd(owner="a", z=1e-200),
    ],
)
def test_a_warning_never_ends_a_run(odd):
    assert said(odd) == []
