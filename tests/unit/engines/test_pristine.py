"""A network is as it was in the beginning, whatever a task did to it."""

import copy

import pytest
import torch
from torch import nn

from tacit.engines.pristine import Pristine


class Moody(nn.Module):
    """A network that sees its mode change."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.modes = []

    def train(self, mode=True):
        self.modes.append(mode)
        return super().train(mode)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))


def train(model):
    model(torch.randn(8, 3)).sum().backward()
    with torch.no_grad():
        for p in model.parameters():
            p.sub_(p.grad)


def evaluate(model):
    model.eval()


def only_one_layer_sleeps(model):
    model[2].eval()


def exchange_a_weight(model):
    model[0].weight = nn.Parameter(torch.full((4, 3), 7.0))


def exchange_a_layer(model):
    model[3] = nn.Linear(4, 2)


def exchange_a_buffer(model):
    model[1].running_mean = torch.full((4,), 9.0)


def turn_to_other_memory(model):
    model[0].weight.data = torch.full((4, 3), 7.0)


@pytest.mark.parametrize(
    "done",
    [
        train,
        evaluate,
        only_one_layer_sleeps,
        exchange_a_weight,
        exchange_a_layer,
        exchange_a_buffer,
        turn_to_other_memory,
    ],
)
def test_no_task_meets_what_another_one_left(done):
    model = network()
    first = copy.deepcopy(model.state_dict())
    pristine = Pristine(model)
    for _ in range(2):
        done(model)
        assert pristine.restore() is model
        now = model.state_dict()
        assert now.keys() == first.keys()
        assert all(torch.equal(now[name], first[name]) for name in first)
        assert all(m.training for m in model.modules())


def test_a_network_that_sees_its_mode_change_still_does():
    model = Moody()
    pristine = Pristine(model)
    pristine.restore()
    pristine.restore()
    assert model.modes == [True, True]


def test_a_network_without_parameters_is_restored_too():
    model = nn.Sequential(nn.Flatten())
    model.eval()
    assert Pristine(model).restore().training
