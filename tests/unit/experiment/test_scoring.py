"""One way from predictions to metrics, for simulations and for sites."""

import math

import pytest
import torch

from tacit.core import Method
from tacit.experiment.evaluate import evaluate
from tacit.experiment.scoring import Evaluation, Tally, counted, counted_apart, summed
from tacit.experiment.sites import tally, tally_own
from tacit.methods import METHODS


def test_counts_by_hand():
    right = torch.tensor([True, False, True, True])
    labels = torch.tensor([0, 0, 2, 2])
    assert counted(right, labels, 3, 1.5) == Tally([1, 0, 2], [1, 0, 0], 1.5)


def test_many_clients_at_once_are_counted_as_one_by_one():
    generator = torch.Generator().manual_seed(0)
    whose = torch.tensor([0, 0, 0, 1, 2, 2, 3, 3, 3, 3, 0, 2])
    right = torch.randint(0, 2, whose.shape, generator=generator).bool()
    labels = torch.randint(0, 4, whose.shape, generator=generator)
    mine = [whose == k for k in range(4)]
    alone = [counted(right[rows], labels[rows], 5, 0.0) for rows in mine]
    assert counted_apart(right, labels, 5, whose) == alone
    assert len({str(tally) for tally in alone}) == 4


def test_every_example_counts_alike_or_every_client_if_models_are_personal():
    clients = {"0": Tally([3, 0], [0, 1], 2.0), "1": Tally([0, 1], [1, 0], 1.0)}
    shared = Evaluation.of(clients, personal=False)
    assert (shared.accuracy, shared.loss) == (4 / 6, 0.5)
    assert shared.per_class == [0.75, 0.5]
    assert shared.per_client == {"0": 0.75, "1": 0.5}
    assert shared.line()["own_data"] == {"mean": 0.625, "std": 0.125, "worst": 0.5}
    assert Evaluation.of(clients, personal=True).accuracy == 0.625


def test_a_client_without_test_data_is_no_client_with_accuracy_zero():
    clients = {"0": Tally([1], [1], 1.0), "1": Tally([0], [0], 0.0)}
    assert Evaluation.of(clients, personal=True).per_client == {"0": 0.5}


def test_one_noisy_count_hides_the_loss():
    exact, noisy = Tally([1], [0], 0.5), Tally([1], [0], None)
    assert summed([exact, exact]).loss == 1.0
    assert summed([exact, noisy]).loss is None
    assert Evaluation.of({"0": exact, "1": noisy}, personal=False).line()["loss"] is None


def of_sites(method: Method, s, engine):
    """Evaluate as a coordinator does: each client counts on its own test data."""
    personal = method.answers == "personal"
    call = tally_own(method=method, s=s) if personal else tally(x=s.x)
    return Evaluation.of(engine.look(call, engine.everyone, s.round), personal=personal)


@pytest.mark.parametrize("name", ["fedavg", "local"])
def test_a_simulation_and_sites_say_the_same_of_the_same_data(sandbox, one_thread, name):
    method = METHODS[name]()
    engine = sandbox.serial(method)
    s = method.init(sandbox.x0)
    here = evaluate(method, s, engine, engine.world.federation, 3).line()
    there = of_sites(method, s, engine).line()
    assert math.isclose(here.pop("loss"), there.pop("loss"), rel_tol=1e-6)
    assert here == there
    assert here["per_client"].keys() == set(engine.everyone)
