"""Methods that are another in a special case are that one to the bit, and only in that case.

All compare final states after three rounds in one process. The same batches are drawn whatever the
method (they depend on the seed, the round and the client), so nothing but the mathematics can make
a difference.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tacit.codec import same
from tacit.core import Params, params_of
from tacit.data.examples import Dataset, Examples
from tacit.data.federated import Federation
from tacit.data.splits import Split
from tacit.engines.client_host import World
from tacit.engines.serial import Serial
from tacit.experiment.drive import drive
from tacit.local.sgd import SGD
from tacit.methods import Centralised, FedAvg, FedMix, FedNova, FedProx, Scaffold
from tacit.methods.ditto import Ditto
from tacit.methods.fedavgm import FedAvgM
from tacit.methods.moon import Moon
from tacit.models import build

# with batches of 8: 2 steps each; 1, 2 and 4 steps, the last ones short
EQUAL, UNEQUAL = (15, 15, 15), (5, 12, 28)
CLASSES = 4
LOCAL = SGD(lr=0.1, epochs=2, batch=8)


def examples(model, n, rng):
    y = torch.from_numpy(rng.integers(0, CLASSES, n))
    if model == "mlp":
        return Examples(torch.from_numpy(rng.normal(size=(n, 6)).astype(np.float32)), y)
    return Examples(torch.from_numpy(rng.integers(0, 256, (n, 1, 16, 16), dtype=np.uint8)), y)


def final(folder, model, sizes, method):
    """Return the parameters after the last round."""
    rng = np.random.default_rng(7)
    train, test = examples(model, sum(sizes), rng), examples(model, 4, rng)
    rows = tuple(
        np.sort(part) for part in np.split(rng.permutation(sum(sizes)), np.cumsum(sizes)[:-1])
    )
    nothing = tuple(np.arange(0) for _ in sizes)
    held = Federation(
        Dataset("random", train, test, tuple("abcd")), Split(train=rows, test=nothing), seed=3
    )
    if method.pooled:
        held = held.pooled()
    network = build(model, held.dataset.shape, CLASSES, 3)
    engine = Serial(World(held, network, 3, folder))
    s = drive(method, engine, method.init(params_of(network)))
    assert s.round == method.rounds
    return s.x


@pytest.fixture(params=["mlp", "dafl-cnn"])
def ends(request, tmp_path):
    """Return a function from sizes and methods to where each method ends."""
    count = iter(range(100))

    def go(sizes, *methods):
        return [
            final(tmp_path / str(next(count)), request.param, sizes, method) for method in methods
        ]

    return go


def gap(a, b):
    return (a - b).norm()


def differ(a, b):
    """Tell whether two ends are visibly apart, not by rounding."""
    return gap(a, b) > 1e-4


def test_the_same_method_twice_ends_in_the_same_bits_and_moves(ends):
    first, second, earlier = ends(
        UNEQUAL, FedAvg(3, sgd=LOCAL), FedAvg(3, sgd=LOCAL), FedAvg(1, sgd=LOCAL)
    )
    assert same(first, second)
    assert differ(first, earlier)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fedprox_without_its_term_is_fedavg(ends, momentum):
    sgd = SGD(lr=0.05, epochs=2, batch=8, momentum=momentum, weight_decay=1e-3)
    fedavg, without, with_it = ends(
        UNEQUAL, FedAvg(3, sgd=sgd), FedProx(3, mu=0.0, sgd=sgd), FedProx(3, mu=0.5, sgd=sgd)
    )
    assert same(fedavg, without)
    assert differ(fedavg, with_it)


def test_without_what_they_add_the_newer_ones_are_fedavg(ends):
    """And Ditto's shared model is FedAvg's, whatever clients train beside it."""
    fedavg, plain, contrast, beside = ends(
        UNEQUAL,
        FedAvg(3, sgd=LOCAL),
        FedAvgM(3, beta=0.0, sgd=LOCAL),
        Moon(3, mu=0.0, sgd=LOCAL),
        Ditto(3, lam=0.5, sgd=LOCAL),
    )
    assert same(fedavg, plain)
    assert same(fedavg, contrast)
    assert same(fedavg, beside)
    assert differ(fedavg, *ends(UNEQUAL, FedAvgM(3, sgd=LOCAL)))
    assert differ(fedavg, *ends(UNEQUAL, Moon(3, mu=5.0, sgd=LOCAL)))


def test_fednova_with_equal_steps_is_fedavg(ends):
    fedavg, fednova = ends(EQUAL, FedAvg(3, sgd=LOCAL), FedNova(3, sgd=LOCAL))
    assert same(fedavg, fednova)


def test_fednova_with_equal_steps_but_unequal_sizes_is_fedavg(ends):
    whole = SGD(lr=0.1, epochs=2, batch=100)  # full batches: 2 steps for everyone
    fedavg, fednova = ends(UNEQUAL, FedAvg(3, sgd=whole), FedNova(3, sgd=whole))
    assert same(fedavg, fednova)


def test_fednova_with_equal_steps_and_momentum_is_fedavg_but_for_rounding(ends):
    """||a_i||_1 is then not a whole number,
    so tau_eff / ||a_i||_1 is 1 only to the last bit of a double.
    """
    sgd = SGD(lr=0.05, epochs=2, batch=8, momentum=0.9)
    fedavg, fednova, plain = ends(
        EQUAL, FedAvg(3, sgd=sgd), FedNova(3, sgd=sgd), FedAvg(3, sgd=SGD(0.05, 2, 8))
    )
    assert gap(fedavg, fednova) < 1e-5 * fedavg.norm()
    assert differ(fedavg, plain)


def test_fednova_with_unequal_steps_is_not_fedavg(ends):
    fedavg, fednova = ends(UNEQUAL, FedAvg(3, sgd=LOCAL), FedNova(3, sgd=LOCAL))
    assert differ(fedavg, fednova)


def test_fednova_counts_momentum(ends, monkeypatch):
    """With unequal steps and momentum, ||a||_1 is not the number of steps, and it matters."""
    method = FedNova(3, sgd=SGD(lr=0.05, epochs=2, batch=8, momentum=0.9))
    (aware,) = ends(UNEQUAL, method)
    monkeypatch.setattr(SGD, "reach", lambda self, steps: float(steps))
    (unaware,) = ends(UNEQUAL, method)
    assert differ(aware, unaware)


def test_scaffolds_first_round_is_fedavg_and_the_next_are_not(ends):
    fedavg, scaffold = ends(EQUAL, FedAvg(1, sgd=LOCAL), Scaffold(1, sgd=LOCAL))
    assert same(fedavg, scaffold)
    fedavg, scaffold = ends(EQUAL, FedAvg(3, sgd=LOCAL), Scaffold(3, sgd=LOCAL))
    assert differ(fedavg, scaffold)


def test_scaffolds_mean_is_not_weighted(ends):
    fedavg, scaffold = ends(UNEQUAL, FedAvg(1, sgd=LOCAL), Scaffold(1, sgd=LOCAL))
    assert differ(fedavg, scaffold)


@pytest.mark.parametrize("method", [FedAvg, FedProx, FedNova, FedMix])
def test_one_client_is_centralised(ends, method):
    extra = {FedProx: {"mu": 0.0}, FedMix: {"lam": 0.0}}.get(method, {})
    sgd = SGD(lr=0.1, epochs=2, batch=8, momentum=0.5)
    alone, centralised = ends((30,), method(3, sgd=sgd, **extra), Centralised(3, sgd=sgd))
    assert same(alone, centralised)


def test_three_clients_are_not_centralised(ends):
    fedavg, centralised = ends(EQUAL, FedAvg(3, sgd=LOCAL), Centralised(3, sgd=LOCAL))
    assert differ(fedavg, centralised)


SLOW = pytest.mark.slow


@pytest.mark.parametrize("M", [4, *(pytest.param(M, marks=SLOW) for M in (1, 100))])
def test_fedmix_without_mixing_is_fedavg(ends, M):
    fedavg, without = ends(UNEQUAL, FedAvg(3, sgd=LOCAL), FedMix(3, lam=0.0, M=M, sgd=LOCAL))
    assert same(fedavg, without)


def test_fedmix_with_mixing_is_not_fedavg(ends):
    fedavg, with_it, others = ends(
        UNEQUAL,
        FedAvg(3, sgd=LOCAL),
        FedMix(3, lam=0.2, M=4, sgd=LOCAL),
        FedMix(3, lam=0.2, M=100, sgd=LOCAL),
    )
    assert differ(fedavg, with_it)
    assert differ(with_it, others)


def test_all_clients_sampled_is_everyone(ends):
    everyone, three = ends(UNEQUAL, FedAvg(3, sgd=LOCAL), FedAvg(3, per_round=3, sgd=LOCAL))
    assert same(everyone, three)
    (two,) = ends(UNEQUAL, FedAvg(3, per_round=2, sgd=LOCAL))
    assert differ(everyone, two)


def test_the_measure_of_difference_can_tell():
    x = Params(w=torch.zeros(3))
    assert not differ(x, x)
    assert differ(x, Params(w=torch.tensor([0.0, 1e-3, 0.0])))
    assert not same(x, Params(w=torch.tensor([0.0, 1e-38, 0.0])))
