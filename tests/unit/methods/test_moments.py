"""DP feature moments as a method.

Classifiers against scikit-learn, the whole run in a small world, and its cost.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis

from tacit import privacy
from tacit.codec import same
from tacit.core import BadInput, Client, Gaussian, Ledger, Nothing
from tacit.experiment.drive import drive
from tacit.methods.moments import Moments, label
from tacit.synthesis import classifiers
from tacit.synthesis.classifiers import linear, predictor, quadratic, scores, trained
from tacit.synthesis.moments import Gaussians, Terms, pooled, release

DELTA = 1e-5


pytestmark = pytest.mark.usefixtures("one_thread")


def overlapping(n=600, gap=0.15):
    """Return three classes of unequal sizes and shapes, which overlap unless the gap is large."""
    rng = np.random.default_rng(0)
    y = rng.choice(3, n, p=[0.6, 0.3, 0.1])
    shapes = 0.08 * (np.eye(4) + 0.4 * rng.normal(size=(3, 4, 4)))
    x = np.einsum("nij,nj->ni", shapes[y], rng.normal(size=(n, 4))) + gap * np.eye(3, 4)[y]
    return torch.from_numpy(x), torch.from_numpy(y)


def exact(x, y):
    """Return the sample's own Gaussians."""
    m = torch.stack([x[y == c].mean(0) for c in range(3)])
    S = torch.stack([torch.cov(x[y == c].T, correction=0) for c in range(3)])
    return Gaussians(torch.bincount(y).double(), m, S)


def test_quadratic_is_that_of_scikit_learn():
    """With its covariances: its versions differ on whether to divide by n or by n - 1."""
    x, y = overlapping()
    theirs = QuadraticDiscriminantAnalysis(store_covariance=True).fit(x.numpy(), y.numpy())
    g = replace(exact(x, y), S=torch.from_numpy(np.stack(theirs.covariance_)))
    got = scores(quadratic(g), x.float())
    assert np.array_equal(got.argmax(1).numpy(), theirs.predict(x.numpy()))
    np.testing.assert_allclose(got.softmax(1).numpy(), theirs.predict_proba(x.numpy()), atol=1e-4)


def test_linear_is_that_of_scikit_learn():
    x, y = overlapping()
    theirs = LinearDiscriminantAnalysis(solver="lsqr").fit(x.numpy(), y.numpy())
    got = scores(linear(exact(x, y)), x.float())
    assert np.array_equal(got.argmax(1).numpy(), theirs.predict(x.numpy()))
    np.testing.assert_allclose(got.softmax(1).numpy(), theirs.predict_proba(x.numpy()), atol=1e-4)
    # another classifier
    assert (got.argmax(1) != scores(quadratic(exact(x, y)), x.float()).argmax(1)).any()


def test_with_next_to_no_noise_released_moments_give_the_classifiers_of_the_sample():
    x, y = overlapping()
    terms = Terms(1e7, R=10.0)
    me = Client(
        "0", 0, None, None, torch.nn.Identity(), {}, np.random.default_rng(0), "seeded", Ledger()
    )
    g = pooled([release(me, x, y, 3, terms)], terms, mix=0.0, ridge=0.0)
    one = pooled([release(me, x, y, 3, terms, shared=True)], terms, mix=0.0, ridge=0.0)
    for ours, own in ((quadratic(g), quadratic(exact(x, y))), (linear(one), linear(exact(x, y)))):
        assert torch.equal(scores(ours, x.float()).argmax(1), scores(own, x.float()).argmax(1))


@pytest.mark.parametrize("hidden", [0, 8])
def test_heads_that_are_trained_on_virtual_features(hidden, monkeypatch):
    monkeypatch.setattr(classifiers, "DRAWS", 500)
    x, y = overlapping(gap=2.0)
    before = torch.get_rng_state()
    head = trained(exact(x, y), hidden, np.random.default_rng(1))
    assert torch.equal(before, torch.get_rng_state())
    assert ("2.weight" in head) == bool(hidden)
    assert float((scores(head, x.float()).argmax(1) == y).double().mean()) > 0.99
    assert same(head, trained(exact(x, y), hidden, np.random.default_rng(1)))


# -------------------------------------------------------------------------------------------------
# in the small world


def finished(sandbox, method):
    engine = sandbox.serial(method)
    return engine, drive(method, engine, method.init(sandbox.x0))


def someone(engine):
    """Return the first client, as it would test."""
    data = engine.world.federation
    return Client(
        "0", 1, data.train("0"), data.test("0"), torch.nn.Identity(), {}, np.random.default_rng(0)
    )


def priced(ledger):
    """Return the lines that cost something; that sizes are public is written, too."""
    return [line for line in ledger if line.event != Nothing()]


@pytest.mark.parametrize("head", ["auto", "lda", "qda", "logistic", "mlp"])
def test_a_run_gives_a_classifier_and_costs_what_was_asked_for(sandbox, head, monkeypatch):
    monkeypatch.setattr(classifiers, "DRAWS", 50)
    method = Moments(epsilon=0.7, head=head)
    engine, s = finished(sandbox, method)
    assert s.round == 1
    # 81 records are few: by itself it takes a common covariance
    assert ("m" in s.x) == (head == "qda")
    assert all(isinstance(line.event, Gaussian) for line in priced(engine.ledger))
    spent = privacy.by_owner(engine.ledger, unit="example", observer="server", delta=engine.delta)
    assert spent == pytest.approx(dict.fromkeys(engine.everyone, 0.7), rel=1e-6)
    me = someone(engine)
    inputs, _ = me.test.batch(slice(0, 5))
    found = method.predictor(me, s)(inputs)
    assert found.shape == (5, 3)
    assert torch.isfinite(found).all()


def test_with_a_large_budget_it_learns(sandbox):
    """Features are clipped to norm 1 when they are released and when they are classified.

    Far out, direction counts.
    """
    method = Moments(epsilon=1e6, R=2.0)
    engine, s = finished(sandbox, method)
    every = engine.world.federation.test("test:0/1")
    x, y = every.batch(slice(0, 81))
    right = method.predictor(replace(someone(engine), test=every), s)(x).argmax(1) == y
    assert float(right.double().mean()) > 0.5  # a third by guessing
    predict = method.predictor(someone(engine), s)
    torch.testing.assert_close(predict(100 * x), predict(1e4 * x), atol=1e-3, rtol=1e-3)


def test_a_finished_run_is_not_done_again(sandbox):
    method = Moments()
    engine, s = finished(sandbox, method)
    before = Ledger(engine.ledger)
    assert same(drive(method, engine, s), s)
    assert list(method.run(engine, s)) == []
    assert engine.ledger == before


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_the_cost_is_known_before_the_run(sandbox, epsilon):
    method = Moments(epsilon=epsilon)
    engine, _ = finished(sandbox, method)
    sizes = engine.world.federation.sizes()
    before = Ledger(method.releases(sizes, dict.fromkeys(sizes, 1), engine.delta))
    assert [(x.what, x.owner, x.event, x.rounds, x.steps) for x in before] == [
        (x.what, x.owner, x.event, x.rounds, x.steps) for x in priced(engine.ledger)
    ]
    for relation in ("zero-out", "replace"):
        a, b = (
            privacy.by_owner(
                ledger, unit="example", observer="server", delta=engine.delta, relation=relation
            )
            for ledger in (before, engine.ledger)
        )
        assert a == pytest.approx(b)


def test_it_labels_what_the_server_may_see(sandbox):
    engine, s = finished(sandbox, Moments(epsilon=10.0))
    me = someone(engine)
    want = predictor(me, s.x)(me.data.batch(slice(0, len(me.data)))[0]).argmax(1)
    found = label.fn(me, s.x).sent.y
    assert torch.equal(found, want)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("epsilon", 0.0), ("epsilon", -1.0), ("share", 0.0), ("share", 1.0), ("s", 0.0), ("R", 0.0)],
)
def test_bad_settings_are_refused_by_name(setting, value):
    with pytest.raises(BadInput, match=f"{setting} = {value}"):
        Moments(**{setting: value})
