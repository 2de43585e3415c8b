"""A network is as it was in the beginning, whatever a task did to it."""

import copy

import pytest
import torch
from torch import nn

from tacit.engines.client_host import World


@pytest.fixture
def fresh(tmp_path):
    """Return what makes a network as it was in the beginning, for one network."""
    return lambda model: World(None, model, seed=0, folder=tmp_path).fresh


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


def begin_anew(model):
    """As a task might: modules have other dicts then."""
    model[1].__init__(4)
    model[0].__init__(3, 4)


def take_another_ones_state(model):
    other = network()
    model[0].__dict__.update(copy.deepcopy(other[0].__dict__))
    train(other)


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
        begin_anew,
        take_another_ones_state,
    ],
)
def test_no_task_meets_what_another_one_left(fresh, done):
    model = network()
    first = copy.deepcopy(model.state_dict())
    restore = fresh(model)
    assert restore() is model
    for _ in range(2):
        done(model)
        train(model)  # what was exchanged is trained, too
        assert restore() is model
        now = model.state_dict()
        assert now.keys() == first.keys()
        assert all(torch.equal(now[name], first[name]) for name in first)
        assert all(m.training for m in model.modules())


def test_a_network_that_sees_its_mode_change_still_does(fresh):
    model = Moody()
    restore = fresh(model)
    restore()
    restore()
    assert model.modes == [True, True]


def test_one_that_was_given_another_train_is_asked(fresh):
    model, asked = network(), []
    model.train = lambda mode=True: asked.append(mode) or model
    fresh(model)()
    assert asked == [True]


def traced(model):
    return torch.jit.trace(model, torch.ones(2, 3))


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize("compiled", [torch.jit.script, traced])
def test_a_scripted_or_traced_network_is_restored_too(fresh, compiled):
    """Their parts lie in no dicts."""
    model = compiled(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)))
    first = copy.deepcopy(model.state_dict())
    restore = fresh(model)
    restore()
    train(model)
    restore()
    assert all(torch.equal(v, first[name]) for name, v in model.state_dict().items())


def test_a_network_without_parameters_is_restored_too(fresh):
    model = nn.Sequential(nn.Flatten())
    model.eval()
    assert fresh(model)().training
