"""The step size by round: small cases by hand, torch as the oracle, and what is refused."""

import math

import pytest
import torch

from tacit.core import BadInput
from tacit.core.ledger import is_public
from tacit.local.schedules import factor
from tacit.local.sgd import SGD


def of_torch(make, rounds):
    """Return the factors by round of one of torch's own schedules."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = make(optimizer)
    found = []
    for _ in range(rounds):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


def test_cosine_and_steps_are_those_of_torch():
    from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR

    want = of_torch(lambda o: CosineAnnealingLR(o, 10), 10)
    assert [factor("cosine:10", t) for t in range(10)] == pytest.approx(want)
    want = of_torch(lambda o: StepLR(o, 3, 0.5), 10)
    assert [factor("step:3:0.5", t) for t in range(10)] == pytest.approx(want)


def test_the_step_size_is_never_zero_and_public():
    for word in ("cosine:5", "linear:5", "warmup:5", "step:2:0.5", "warmup:2+cosine:5"):
        sizes = [SGD(lr=0.1, schedule=word).lr_in(t) for t in range(20)]
        assert all(0 < lr <= 0.1 for lr in sizes)
        assert all(map(is_public, sizes))
    assert SGD(lr=0.1, schedule="warmup:4+linear:4").lr_in(1) == pytest.approx(0.1 * 0.5 * 0.75)
    assert SGD(lr=0.1, decay=0.5, schedule="linear:2").lr_in(1) == pytest.approx(0.1 * 0.5 * 0.5)
    assert SGD(lr=0.1).lr_in(7) == 0.1


@pytest.mark.parametrize(
    "word",
    ["", "cosine", "cosine:0", "cosine:x", "step:3", "step:3:0", "step:3:2", "sine:3", "linear:3+"],
)
def test_what_is_no_schedule_is_refused(word):
    with pytest.raises(BadInput, match=r"sgd\.schedule = "):
        SGD(schedule=word)


def test_a_schedule_changes_no_ledger_line():
    """It is a function of the round alone, so DP-SGD costs what it costs without it."""
    plain, shaped = SGD(clip=1.0, z=1.0), SGD(clip=1.0, z=1.0, schedule="cosine:9")
    assert shaped.lines("0", 100, 5) == plain.lines("0", 100, 5)
    assert math.isclose(shaped.lr_in(0), plain.lr_in(0))
