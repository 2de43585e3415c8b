"""Which networks may train privately: tried, named, and left as they were."""

import copy
import math
import random
from dataclasses import replace
from threading import Thread
from weakref import WeakSet

import networks
import numpy as np
import pytest
import torch
from networks import BAD, CLASSES, GOOD, SHAPE
from sandbox import a_client
from torch import nn

import tacit
from tacit.core import BadInput, params_of
from tacit.data.examples import Dataset, Examples
from tacit.data.federated import LocalData
from tacit.experiment.plan import check_parts
from tacit.local.prototypes import Episodes, Private
from tacit.local.sgd import SGD, clipped_gradient
from tacit.methods.spec import method_from_spec
from tacit.models import build
from tacit.privacy import check_network, checks
from tacit.privacy.checks import check_gradients
from tacit.privacy.losses import cross_entropies
from tacit.privacy.perexample import CannotClip, clipped_sum
from tacit.synthesis.gan import GAN, Game

pytestmark = pytest.mark.usefixtures("one_thread")


def made(make):
    torch.manual_seed(0)
    return make()


def refusal(make):
    with pytest.raises(BadInput) as e:
        check_network(made(make), SHAPE, CLASSES)
    line = str(e.value)
    assert line.startswith("model: ")
    assert "\n" not in line
    return line


@pytest.mark.parametrize("make", BAD, ids=lambda make: make.__name__)
def test_a_network_that_no_guarantee_holds_for_is_refused_by_name(make):
    line = refusal(make)
    assert all(word in line for word in BAD[make]), line


def drawing(times, monkeypatch):
    """Return a network; another thread draws during its first forward passes, so many."""
    real, passes = nn.Linear.forward, iter(range(times))

    def forward(self, x):
        if next(passes, None) is not None:
            thread = Thread(target=random.random)
            thread.start()
            thread.join()
        return real(self, x)

    monkeypatch.setattr(nn.Linear, "forward", forward)
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(SHAPE), CLASSES))


def test_who_draws_each_time_is_refused_and_another_thread_is_not_taken_for_it(monkeypatch):
    """The heartbeat of a site draws its pauses from the generator that everybody shares."""
    with monkeypatch.context() as patch:
        assert check_network(drawing(1, patch), SHAPE, CLASSES)
    with pytest.raises(BadInput, match="draws random numbers in train mode"):
        check_network(drawing(1000, monkeypatch), SHAPE, CLASSES)


@pytest.mark.parametrize("kind", GOOD)
def test_a_network_whose_examples_stay_apart_is_told_so(kind):
    said = check_network(made(GOOD[kind]), SHAPE)
    assert said.startswith("can train privately: in all ")


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("logistic", (5,)),
        ("mlp", (1, 8, 8)),
        ("dafl-cnn", (1, 28, 28)),
        ("ldp-cnn", (3, 32, 32)),
        ("cuag-cnn", (3, 16, 16)),
        pytest.param("conv6", (3, 16, 16), marks=pytest.mark.slow),
        pytest.param("resnet18", (1, 8, 8), marks=pytest.mark.slow),
        pytest.param("vgg16", (3, 32, 32), marks=pytest.mark.slow),
    ],
)
def test_networks_of_the_package_can_train_privately(name, shape):
    model = build(name, shape, 10, 0).to(memory_format=torch.channels_last)
    layers = [m for m in model.modules() if list(m.parameters(recurse=False))]
    assert f"in all {len(layers)} layers" in check_network(model, shape, 10)


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, lambda n: nn.BatchNorm1d(n, affine=False)])
def test_batch_norm_is_refused_with_and_without_parameters(kind):
    with pytest.raises(BadInput, match=r"^model: (layer '1' is a BatchNorm1d|buffer '1\.)"):
        check_network(nn.Sequential(nn.Linear(4, 6), kind(6), nn.Linear(6, 2)), (4,))


def test_scores_that_are_not_of_the_classes_are_refused():
    with pytest.raises(BadInput, match=r"of shape \(3, 3\) for 3 inputs; must be \(3, 7\)"):
        check_network(made(networks.Base), SHAPE, 7)


def test_a_network_that_cannot_be_copied_is_refused():
    model = made(networks.Base)
    model.made_by = (n for n in range(3))
    with pytest.raises(BadInput, match=r"^model: cannot be copied \(TypeError"):
        check_network(model, SHAPE)


class Late(networks.Base):
    """Mixes examples only behind a layer that begins at zero."""

    def __init__(self):
        super().__init__()
        nn.init.zeros_(self.last.weight)

    def between(self, h):
        return h - h.mean(0).detach()


def test_a_layer_that_begins_at_zero_hides_nothing():
    assert "depends on the others" in refusal(Late)


# ---- nothing is changed


@pytest.mark.parametrize("make", [networks.Base, networks.Remembering, networks.Running])
@pytest.mark.parametrize("training", [True, False])
def test_the_network_is_left_as_it_was(make, training):
    model = made(make).train(training)
    model.first.weight.grad = torch.ones_like(model.first.weight)
    before, attributes = copy.deepcopy(model.state_dict()), dict(vars(model))
    state = torch.get_rng_state()
    if make is networks.Base:
        check_network(model, SHAPE)
    else:
        with pytest.raises(BadInput):
            check_network(model, SHAPE)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training is training
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert vars(model) == attributes
    assert torch.equal(model.first.weight.grad, torch.ones_like(model.first.weight))
    assert all("forward" not in vars(m) for m in model.modules())


def test_what_is_found_does_not_depend_on_chance():
    lines = set()
    for seed in range(3):
        model = made(networks.OwnBatchNorm)
        torch.manual_seed(seed)
        with pytest.raises(BadInput) as e:
            check_network(model, SHAPE)
        lines.add(str(e.value))
    assert len(lines) == 1


# ---- what it is for


def moved(model, clip, steps=2):
    """By how much one example more, the first, moves the clipped sums of a few steps in a row."""
    rng, gaps = torch.Generator().manual_seed(3), []
    twins = [copy.deepcopy(model).train() for _ in range(2)]
    for _ in range(steps):
        x = torch.rand(40, *SHAPE, generator=rng)
        y = torch.randint(0, CLASSES, (40,), generator=rng)
        x[0] *= 20
        sums = []
        for twin, first in zip(twins, (0, 1), strict=True):
            torch.manual_seed(0)
            found, _ = clipped_sum(twin, cross_entropies, x[first:], y[first:], clip)
            sums.append(list(found.values()))
        gaps.append(math.hypot(*(float((a - b).norm()) for a, b in zip(*sums, strict=True))))
    return max(gaps)


@pytest.mark.parametrize("kind", [k for k in GOOD if k != "tokens"])
def test_in_a_network_that_may_one_example_moves_the_sum_by_the_clip_at_most(kind):
    assert moved(made(GOOD[kind]), 0.1) <= 0.1 * (1 + 1e-4)


@pytest.mark.parametrize(
    "make",
    [networks.OwnBatchNorm, networks.Attention, networks.Hooked, networks.Dropping],
)
def test_in_a_network_that_may_not_it_moves_by_more(make):
    """So they are refused for a reason, and nothing but the check stands between them and a run."""
    assert moved(made(make), 0.1) > 0.12


# ---- the last line of defence: clipping itself


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (networks.Folded, "layer 'patch' sees inputs of shape"),
        (networks.TimeFirst, "layer 'step' sees inputs of shape"),
        (networks.Functional, "parameter 'last.weight' is used outside of its layer"),
        (networks.Beside, "parameter 'first.weight' is used outside of its layer"),
        (networks.Tied, "used more than once"),
        (networks.ForEachPatch, "losses of shape|batch_size"),
    ],
)
def test_clipping_fails_on_rows_and_parameters_that_it_cannot_see(make, why):
    """By an error that is charged: with data it can come only from what the data decide."""
    x, y = torch.rand(6, *SHAPE), torch.arange(6) % CLASSES
    with pytest.raises((CannotClip, ValueError), match=why):
        clipped_sum(made(make), cross_entropies, x, y, 1.0)


def client(model):
    x, y = torch.rand(12, *SHAPE), torch.arange(12) % CLASSES
    data = LocalData(Examples(x, y), np.arange(12), (0.5,), (0.5,))
    return replace(a_client(data=data, model=model), classes=CLASSES)


@pytest.mark.parametrize("make", [networks.OwnBatchNorm, networks.Folded, networks.Dropping])
def test_a_client_refuses_before_anything_is_released(make):
    me = client(made(make))
    x = params_of(me.model)
    tries = [
        lambda: SGD(clip=1.0, z=1.0).fit(me, x),
        lambda: clipped_gradient(me, x, 1.0),
        lambda: Episodes().fit(me, x, grad=lambda g, y: g, private=Private(1.0, 1.0, 1.0, 2.0)),
    ]
    for attempt in tries:
        with pytest.raises(BadInput, match=r"^model: "):
            attempt()
    assert list(me.spent) == []


# ---- the generators' discriminators


@pytest.mark.parametrize("conditional", [True, False])
@pytest.mark.parametrize("loss", ["standard", "wgan"])
def test_discriminators_keep_examples_apart(conditional, loss):
    gan = GAN(width=4, conditional=conditional, loss=loss)
    game = Game(gan, (1, 8, 8), CLASSES, np.random.default_rng(0))
    x, y = torch.rand(3, 1, 32, 32) * 2 - 1, torch.tensor([0, 2, 2])
    for each in (game.real_loss, game.fake_loss):
        check_gradients(game.D.train(), each, x, y)
    if loss != "wgan":  # whose two terms cancel in the last bias
        pairs = torch.stack([x, x.flip(0)], 1)
        check_gradients(game.D, game.pair_loss, pairs, y, rows=2)


# ---- runs


def test_which_methods_clip_examples():
    words = {
        "fedavg": False,
        "fedavg:sgd.clip=1.0,sgd.z=1.0": True,
        "dp_scaffold": True,
        "ldp_fl": True,
        "ldp_fl:mode=gradient": True,
        "ldp_fl:mode=update": False,
        "ldp_fl:mode=paper": True,
        "udp": False,
        "udp:mode=paper": True,
        "cuag": True,
        "cuag:unit=client": False,
        "cuag:mode=paper": False,
        "kd_dpfl": True,
        "kd_dpfl:mode=paper": False,
        "pate": False,
        "moments": False,
        "dafl": False,
        "dafl:main=dp-sgd,sgd.clip=1.0,sgd.z=1.0": True,
        "dafl:method=ldp_fl": True,
        "gfl": False,
        "gfl:sgd.clip=1.0,sgd.z=1.0": True,
    }
    assert {word: method_from_spec(word).per_example for word in words} == words


def test_parts_of_a_method_that_does_not_clip_examples_are_its_own_business():
    check_parts(method_from_spec("fedavg"), made(networks.OwnBatchNorm), SHAPE, CLASSES)
    with pytest.raises(BadInput, match="depends on the others"):
        check_parts(method_from_spec("dp_scaffold"), made(networks.OwnBatchNorm), SHAPE, CLASSES)


@pytest.mark.parametrize(
    "word", ["fedavg:sgd.clip=1.0,sgd.z=1.0,rounds=1", "ldp_fl:rounds=1", "cuag:rounds=1"]
)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_is_refused_before_it_starts(word, workers, tmp_path):
    x, y = torch.rand(60, *SHAPE), torch.arange(60) % CLASSES
    data = Dataset("mine", Examples(x, y), Examples(x, y), ("a", "b", "c"))
    with pytest.raises(BadInput, match=r"^model: layer 'patch' sees"):
        tacit.run(
            word,
            data=data,
            model="networks:Folded",
            clients=3,
            workers=workers,
            out=tmp_path / "run",
        )
    assert not (tmp_path / "run").exists()


class Later(nn.Module):
    """Mixes examples from its hundredth batch on."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.batches = 0

    def forward(self, x):
        self.batches += 1
        h = self.layer(x)
        return h if self.batches < 100 else h - h.mean(0)


def test_a_network_that_counts_its_batches_is_refused():
    """What it does later cannot be tried, but that it remembers can be seen."""
    with pytest.raises(BadInput, match="attribute batches changes in the forward pass"):
        check_network(Later(), (4,))


@pytest.mark.parametrize(
    "rng",
    [
        random.Random(0),
        np.random.default_rng(0),
        np.random.RandomState(0),
    ],
    ids=lambda rng: type(rng).__name__,
)
def test_a_network_with_a_generator_of_its_own_is_refused(rng):
    """However seldom what it draws changes anything."""
    line = refusal(lambda: networks.SeldomByItsOwn(rng))
    assert "attribute rng changes in the forward pass" in line


class WhenLarge(networks.Base):
    """Keeps something of a batch, but only of one with a number that no trial has."""

    def __init__(self):
        super().__init__()
        self.largest = 1e6

    def between(self, h):
        return h

    def forward(self, x):
        self.largest = max(self.largest, float(x.max()))
        return super().forward(x)


@pytest.mark.parametrize("size", [1.0, 1e7])
def test_what_a_network_keeps_of_real_data_only_ends_its_training(size):
    """By an error that is charged, since the data have decided on it."""
    me = client(made(WhenLarge))
    me.data.source.x.mul_(size)
    x = params_of(me.model)
    tries = [
        lambda: SGD(clip=1.0, z=1.0).fit(me, x),
        lambda: clipped_gradient(me, x, 1.0),
        lambda: Episodes().fit(me, x, grad=lambda g, y: g, private=Private(1.0, 1.0, 1.0, 2.0)),
    ]
    for attempt in tries:
        me.model.largest = 1e6
        if size == 1:
            attempt()
        else:
            with pytest.raises(CannotClip, match="largest of the network changed in training"):
                attempt()


def test_gradients_of_single_examples_are_not_kept(monkeypatch):
    """Each is as large as the network: a site with a large one would run out of memory."""
    there, most = WeakSet(), []
    alone = checks._alone

    def watched(*args):
        own = alone(*args)
        there.update(own.values())
        most.append(len(there))
        return own

    monkeypatch.setattr(checks, "_alone", watched)
    check_network(made(lambda: nn.Sequential(nn.Linear(4, 3))), (4,))
    assert len(most) >= checks.MANY
    assert max(most) <= 2 * 2  # weight and bias, of one example and of the one before
