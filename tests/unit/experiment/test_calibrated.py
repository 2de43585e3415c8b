"""The noise that ``sgd.epsilon`` asks for.

Solved, found again by a resumed run, and in nobody's way.
"""

from dataclasses import replace

import pytest

from tacit import privacy
from tacit.core import BadInput
from tacit.experiment.calibration import calibrated
from tacit.local.sgd import SGD
from tacit.methods.dp_scaffold import DPScaffold
from tacit.methods.fedavg import FedAvg

DELTA = 1e-5
ALIKE = {"0": 150, "1": 150}
# the first is smaller than a batch: every example is in every step
UNLIKE = {"0": 20, "1": 33, "2": 150, "3": 700}


def solved(method, sizes):
    return calibrated(method, sizes, DELTA, 0)


@pytest.mark.parametrize("sizes", [ALIKE, UNLIKE])
@pytest.mark.parametrize("epsilon", [0.5, 4.0, 30.0])
def test_solved_noise_is_found_again(sizes, epsilon):
    once = solved(FedAvg(rounds=3, sgd=SGD(clip=1.0, epsilon=epsilon)), sizes)
    assert once.sgd.z > 0
    assert solved(once, sizes) == once


def test_noise_that_was_solved_for_something_else_is_refused():
    once = solved(FedAvg(rounds=3, sgd=SGD(clip=1.0, epsilon=4.0)), ALIKE)
    for other in (
        replace(once, rounds=9),
        replace(once, rounds=1),
        replace(once, sgd=replace(once.sgd, epsilon=8.0)),
    ):
        with pytest.raises(
            BadInput, match=r"sgd\.z = .*: costs eps .*, not sgd\.epsilon = \d; give one"
        ):
            solved(other, ALIKE)
        assert solved(replace(other, sgd=replace(other.sgd, z=0.0)), ALIKE).sgd.z > 0


@pytest.mark.parametrize("epsilon", [0.5, 20.0])
def test_a_method_s_default_noise_gives_way_to_an_epsilon(epsilon):
    sgd = replace(DPScaffold().sgd, epsilon=epsilon)
    z = solved(DPScaffold(rounds=3, sgd=sgd), ALIKE).sgd.z
    spent = privacy.spend(z, 3 * sgd.private_steps(150), sgd.rate(150), delta=DELTA)
    assert spent == pytest.approx(epsilon, rel=0.01)
    assert (z > 1) == (epsilon < 1)
