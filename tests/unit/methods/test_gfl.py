"""GFL: the balanced set, exact shares, epoch decay, and where it is FedAvg."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit import privacy
from tacit.codec import same
from tacit.core import BadInput, rng_for
from tacit.data.examples import Examples
from tacit.experiment.drive import drive
from tacit.local.sgd import SGD, network
from tacit.methods.fedavg import FedAvg
from tacit.methods.gfl import GFL, State, believable, train_for
from tacit.synthesis.labels import cut, iidify


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(0, 99))
def test_iidify_is_balanced_and_takes_all_of_the_rarest(labels, seed):
    y = torch.tensor(labels)
    rows = iidify(y, np.random.default_rng(seed))
    there, counts = np.unique(y[rows].numpy(), return_counts=True)
    _, had = np.unique(labels, return_counts=True)
    assert set(there) == set(labels)
    assert set(counts.tolist()) == {had.min()}
    assert len(set(rows.tolist())) == len(rows)


def test_iidify_as_printed_counts_all_labels():
    """Five, three and two samples of three classes give two of each; of four classes, nothing."""
    y = torch.tensor([0] * 5 + [1] * 3 + [2] * 2)
    assert torch.bincount(y[iidify(y, np.random.default_rng(0), 3)]).tolist() == [2, 2, 2]
    assert len(iidify(y, np.random.default_rng(0), 4)) == 0
    assert torch.bincount(y[iidify(y, np.random.default_rng(0))]).tolist() == [2, 2, 2]


def test_iidify_of_nothing_is_nothing():
    assert len(iidify(torch.zeros(0, dtype=torch.int64), np.random.default_rng(0))) == 0


@given(st.integers(0, 1000), st.lists(st.floats(0.01, 1.0), min_size=1, max_size=12))
def test_cut_is_exact_and_never_off_by_one(n, weights):
    p = np.array(weights) / sum(weights)
    m = cut(n, p)
    assert m.sum() == n
    assert (np.abs(m - n * p) < 1 + 1e-9).all()


def test_a_server_that_does_not_train_makes_it_fedavg(sandbox):
    method = GFL(online="open", tau=math.inf, rounds=3, per_round=4, n_k=5)
    got = drive(method, sandbox.serial(method), method.init(sandbox.x0))
    alone = FedAvg(rounds=3, per_round=4)
    assert same(got.x, drive(alone, sandbox.serial(alone), alone.init(sandbox.x0)).x)


@pytest.mark.parametrize(("E", "steps"), [(0.0, 0), (0.5, 1), (1.0, 2), (2.25, 5)])
def test_a_fraction_of_an_epoch_sees_that_fraction_of_the_data(sandbox, E, steps, monkeypatch):
    """Twelve examples in batches of six.

    An epoch is two steps, half of one is one, a quarter (three examples) one.
    """
    engine = sandbox.serial(FedAvg())
    seen = []
    plain = SGD._plain
    monkeypatch.setattr(SGD, "_plain", lambda *args: (seen.append(1) or g for g in plain(*args)))
    data = Examples(torch.randn(12, 4), torch.arange(12) % 3)
    sent = engine.own(train_for(x=sandbox.x0, sgd=SGD(batch=6), E=E), data, 0)
    assert len(seen) == steps
    assert all(torch.equal(sent.x[k], sandbox.x0[k]) for k in sandbox.x0) == (E == 0)


@pytest.mark.parametrize(
    ("tau", "t", "E"),
    [(0.1, 0, 10.0), (0.1, 5, 10 * math.exp(-0.5)), (0.0, 9, 10.0), (-math.inf, 9, 10.0)],
)
def test_epoch_decay(sandbox, tau, t, E, monkeypatch):
    asked = []

    class Spy:
        rng = staticmethod(lambda *path: rng_for(0, *path))

        def own(self, call, data, round):
            asked.append(call.args.get("E"))
            return type("Sent", (), {"x": sandbox.x0, "rows": torch.arange(len(data))})

    GFL(tau=tau).server_update(
        Spy(), sandbox.x0, Examples(torch.randn(6, 4), torch.arange(6) % 3), t
    )
    assert asked[-1] == pytest.approx(E)


def test_only_synthetic_data_is_the_last_row_of_table_3(sandbox):
    """Tau = -inf: clients send their samples and nothing else, and the server trains alone."""
    method = GFL(tau=-math.inf, rounds=3, n_k=8, E_s=2.0)
    assert method.work == GFL(mode="paper", tau=-math.inf).work == "none"
    engine = sandbox.serial(method)
    s = drive(method, engine, method.init(sandbox.x0))
    assert s.round == 3
    assert not same(s.x, sandbox.x0)
    assert {line.what.split()[0] for line in engine.ledger}.isdisjoint({"gfl", "fedavg.train"})
    with pytest.raises(BadInput, match=r"^online = 'open': with tau = -inf only the server trains"):
        GFL(tau=-math.inf, online="open")


def test_paper_mode_costs_what_the_paper_chose():
    """Table IV's choice, eps 0.1, and all of it for the GAN: no labels are released besides."""
    assert GFL(mode="paper").cost == GFL(mode="paper").gan_cost == 0.1
    assert GFL(mode="paper", pool_epsilon=0.01).gan_cost == 0.01  # its smallest
    assert GFL(generator="gan").gan_cost == pytest.approx(0.95)  # certified: counts cost 0.05


def test_certified_costs_the_generators_budget_alone(sandbox):
    method = GFL(pool_epsilon=0.5, rounds=3, n_k=8)
    engine = sandbox.serial(method)
    s = drive(method, engine, method.init(sandbox.x0))
    assert [len(S) for S in s.pool.values()] == [8] * 6
    spent = privacy.epsilon(engine.ledger, unit="example", observer="server", delta=1e-5)
    assert spent == pytest.approx(0.5, rel=1e-6)


def test_only_samples_that_the_model_is_sure_about_are_thrown_out(sandbox):
    engine = sandbox.serial(FedAvg())
    x = 20.0 * sandbox.x0  # sure of everything
    inputs = torch.randn(30, 4)
    data = Examples(inputs, torch.zeros(30, dtype=torch.int64))
    kept = set(engine.own(believable(x=x), data, 0).rows.tolist())
    me = engine.world.client("gfl.believable", "0", 0, {})
    with torch.no_grad():
        p = network(me, x)(inputs).softmax(1)
    wrong = ((p.argmax(1) != 0) & (p.max(1).values >= 0.9)).nonzero().flatten().tolist()
    assert kept == set(range(30)) - set(wrong)
    assert wrong


def test_a_client_whose_samples_are_lost_is_not_in_the_pool(sandbox):
    method = GFL(rounds=1, n_k=4)
    assert method.init(sandbox.x0) == State(sandbox.x0)
    engine = sandbox.serial(method, lambda client, round: "lost" if client == "2" else None)
    s = drive(method, engine, method.init(sandbox.x0))
    assert sorted(s.pool) == ["0", "1", "3", "4", "5"]
    assert s.round == 1


@pytest.mark.parametrize(
    ("settings", "field"),
    [({"n_k": 0}, "n_k"), ({"tau": -1.0}, "tau"), ({"online": "dp-sgd"}, "online")],
)
def test_bad_settings_are_refused_by_name(settings, field):
    with pytest.raises(BadInput, match=field):
        GFL(**settings)
