"""Prototypes by hand and against scikit-learn; episodes; and their private form."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.neighbors import NearestCentroid

from tacit.core import BadInput, Client, Gaussian, Ledger, Params, params_of
from tacit.data.examples import Examples
from tacit.data.federated import LocalData
from tacit.local.prototypes import (
    Episodes,
    Private,
    episode_loss,
    features_of,
    nearest,
    on_sphere,
    private_prototypes,
    prototypes,
)
from tacit.models import build
from tacit.privacy import mechanisms

CLASSES = 3


pytestmark = pytest.mark.usefixtures("one_thread")


def client(x, y, seed=0, model=None, round=0):
    data = LocalData(
        Examples(torch.as_tensor(x).float(), torch.as_tensor(y)), np.arange(len(y)), (0.5,), (0.5,)
    )
    model = model or build("mlp", tuple(data.source.x.shape[1:]), CLASSES, 5)
    rng = np.random.default_rng(seed)
    return Client("0", round, data, data, model, {}, rng, "seeded", Ledger(), task="t.train")


def random_client(n, seed=0, classes=CLASSES, **more):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n)
    return client(rng.normal(size=(n, 4)) + np.eye(3, 4)[y], y, **more)


def same_direction(g, y):
    return g


# --------------------------------------------------------------------------------------------------
# by hand


def test_two_classes_on_a_line():
    """Means 1 and 5; a point at 2 is 1 from the one and 9 from the other, squared.

    Class 2 is nowhere.
    """
    made = prototypes(torch.tensor([[0.0], [2.0], [5.0]]), torch.tensor([0, 0, 1]), 3)
    assert made.points[:2].tolist() == [[1.0], [5.0]]
    assert made.known.tolist() == [True, True, False]
    assert made.scores(torch.tensor([[2.0]])).tolist() == [[-1.0, -9.0, -math.inf]]
    (loss,) = made.losses(torch.tensor([[2.0]]), torch.tensor([0])).tolist()
    assert loss == pytest.approx(math.log1p(math.exp(-8)), rel=1e-4)


def test_examples_of_a_missing_class_count_for_nothing():
    features = torch.tensor(
        [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.5, 0.1, 0.0], [9.0, 9.0, 9.0]], requires_grad=True
    )
    labels = torch.tensor([0, 1, 1, 2])
    loss = episode_loss(features, labels, 2, 3)
    (grad,) = torch.autograd.grad(loss, features)
    assert grad[3].abs().max() == 0
    torch.testing.assert_close(loss, episode_loss(features[:3], labels[:3], 2, 3))


@pytest.mark.parametrize("labels", [[0, 0, 1, 1], [2, 2, 2, 2]])
def test_nothing_to_learn_is_no_loss_and_no_gradient(labels):
    """No class in common, or one class only."""
    features = torch.randn(4, 3, requires_grad=True)
    loss = episode_loss(features, torch.tensor(labels), 2, 3)
    (grad,) = torch.autograd.grad(loss, features)
    assert loss == 0
    assert grad.abs().max() == 0


def test_the_gradient_goes_through_the_prototypes_too():
    features = torch.randn(8, 3, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
    torch.autograd.gradcheck(lambda f: episode_loss(f, labels, 4, 3), features)
    (grad,) = torch.autograd.grad(episode_loss(features, labels, 4, 3), features)
    assert grad[:4].abs().min() > 0


def test_the_predictor_is_the_nearest_centroid():
    me = random_client(60)
    x = params_of(me.model)
    predict = nearest(me, x)
    inputs, labels = me.data.batch(slice(None))
    with torch.no_grad():
        features = me.model[:-1](inputs).numpy()
        got = predict(inputs).argmax(1).numpy()
    want = NearestCentroid().fit(features, labels.numpy()).predict(features)
    assert (got == want).all()


def test_the_predictor_never_names_a_class_that_the_client_does_not_hold():
    me = random_client(20, classes=2)
    far = torch.randn(50, 4) * 100
    assert set(nearest(me, params_of(me.model))(far).argmax(1).tolist()) <= {0, 1}


def test_features_are_what_the_last_layer_sees_if_it_is_not_alone():
    x = torch.randn(3, 4)
    mlp, logistic = build("mlp", (4,), CLASSES, 5), build("logistic", (4,), CLASSES, 5)
    assert torch.equal(features_of(mlp, x), mlp[:-1](x))
    assert torch.equal(features_of(logistic, x), logistic(x))
    assert not any(module._forward_pre_hooks for module in mlp.modules())
    cnn = build("cuag-cnn", (3, 32, 32), 10, 5)
    assert features_of(cnn, torch.zeros(2, 3, 32, 32)).shape == (2, 192)


# --------------------------------------------------------------------------------------------------
# episodes


@given(st.integers(1, 130), st.integers(1, 60))
@settings(max_examples=60, deadline=None)
def test_the_two_batches_are_disjoint_and_never_larger_than_the_data(n, batch):
    for rows in Episodes(steps=3, batch=batch).pairs(n, np.random.default_rng(0)):
        first, second = rows[: len(rows) // 2], rows[len(rows) // 2 :]
        assert len(first) == len(second) == min(batch, max(1, n // 2))
        assert set(rows) <= set(range(n))
        if n > 1:
            assert len(set(rows)) == len(rows)


def test_one_step_is_one_gradient():
    """lr decays with the round, weight decay is added to the gradient,
    and the correction comes before it.
    """
    me = random_client(30, round=10)
    x = params_of(me.model)
    rows = next(Episodes(batch=8).pairs(30, np.random.default_rng(0)))
    inputs, labels = me.data.batch(rows)
    body = me.model[:-1]
    g = torch.autograd.grad(episode_loss(body(inputs), labels, 8, CLASSES), list(body.parameters()))
    g += tuple(torch.zeros_like(p) for p in me.model[-1].parameters())
    local = Episodes(lr=0.1, steps=1, batch=8, decay=0.9, weight_decay=0.01, max_norm=1e9)
    y = local.fit(me, x, grad=lambda g, y: 3.0 * g)
    for name, slope in zip(x, g, strict=True):
        want = x[name] - 0.1 * 0.9**10 * (3.0 * slope + 0.01 * x[name])
        torch.testing.assert_close(y[name], want)
    assert not y.released


def test_long_gradients_are_shortened():
    me = random_client(30)
    x = params_of(me.model)
    local = Episodes(lr=1.0, steps=1, batch=8, decay=1, weight_decay=0, max_norm=1e-3)
    assert (local.fit(me, x, grad=lambda g, y: 1e6 * g) - x).norm() == pytest.approx(1e-3, rel=1e-4)


def test_training_separates_the_classes():
    me = random_client(80)
    x = params_of(me.model)
    inputs, labels = me.data.batch(slice(None))

    def loss(w):
        return float(F.cross_entropy(nearest(me, w)(inputs).detach(), labels))

    assert loss(Episodes(steps=60, batch=20).fit(me, x, grad=same_direction)) < 0.7 * loss(x)


@pytest.mark.parametrize(("n", "classes"), [(1, 1), (2, 1), (3, 3), (7, 2)])
@pytest.mark.parametrize("private", [None, Private(1.0, 1.0, 1.0, 2.0)])
def test_few_examples_and_few_classes(n, classes, private):
    me = random_client(n, classes=classes)
    y = Episodes(steps=3).fit(
        me, params_of(me.model).as_released(), grad=same_direction, private=private
    )
    assert math.isfinite(y.norm())
    assert y.released is (private is not None)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("lr", 0.0),
        ("steps", 0),
        ("batch", 0),
        ("decay", 1.1),
        ("weight_decay", -1.0),
        ("max_norm", 0.0),
    ],
)
def test_wrong_settings_are_refused(field, value):
    with pytest.raises(BadInput, match=rf"local\.{field} = "):
        Episodes(**{field: value})


# --------------------------------------------------------------------------------------------------
# private


def released(me, private, monkeypatch):
    """Return what goes into the Gaussian release of the prototypes, and its sensitivity."""
    seen = []
    real = mechanisms.gaussian

    def spy(me, what, value, *, sensitivity, z, **rest):
        seen.append((value, sensitivity))
        return real(me, what, value, sensitivity=sensitivity, z=z, **rest)

    monkeypatch.setattr(mechanisms, "gaussian", spy)
    private_prototypes(me, on_sphere(private.radius), private)
    return seen[0]


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_one_example_moves_sums_and_counts_by_at_most_the_sensitivity(scale, monkeypatch):
    private = Private(1.0, 1.0, 1.0, 3.0)
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(12, 4)), rng.integers(0, 3, 12)
    x[-1] *= scale
    model = build("mlp", (4,), CLASSES, 5)
    with_, bound = released(client(x, y, model=model), private, monkeypatch)
    without, _ = released(client(x[:-1], y[:-1], model=model), private, monkeypatch)
    assert bound == pytest.approx(math.sqrt(2) * 3)
    assert bound * 0.999 < (with_ - without).norm() <= bound * (1 + 1e-6)


def test_without_noise_private_prototypes_are_class_means_of_scaled_outputs():
    me = random_client(60)
    made = private_prototypes(me, on_sphere(2.0), Private(1.0, 0.0, 0.0, 2.0))
    inputs, labels = me.data.batch(slice(None))
    with torch.no_grad():
        want = prototypes(2.0 * F.normalize(me.model[:-1](inputs)), labels, CLASSES)
    torch.testing.assert_close(made.points, want.points)
    assert made.known.all()


def test_classes_that_drown_in_the_noise_are_left_out():
    me = random_client(60, classes=2)
    made = private_prototypes(me, on_sphere(2.0), Private(1.0, 0.0, 5.0, 2.0))
    assert made.known.tolist() == [True, True, False]


def test_classes_are_known_by_their_noisy_counts(monkeypatch):
    """However many examples there are: with counts that noise has turned round, none is known."""
    me, private = random_client(60), Private(1.0, 0.0, 0.1, 2.0)
    assert private_prototypes(me, on_sphere(2.0), private).known.all()
    real = mechanisms.gaussian

    def turned_round(*args, **kwargs):
        noisy = real(*args, **kwargs)
        return Params(sums=noisy["sums"], counts=-noisy["counts"])

    monkeypatch.setattr(mechanisms, "gaussian", turned_round)
    made = private_prototypes(me, on_sphere(2.0), private)
    assert not made.known.any()
    assert made.points.norm(dim=1).min() > 2.0  # sums that are divided by nothing


def test_a_private_round_has_two_lines_and_its_result_may_leave():
    me = random_client(40)
    local = Episodes(steps=4, batch=10)
    y = local.fit(
        me,
        params_of(me.model).as_released(),
        grad=same_direction,
        private=Private(1.0, 0.8, 3.0, 2.0),
    )
    assert y.released
    first, steps = me.spent
    assert (first.what, first.event, first.steps, first.unit) == (
        "t.train prototypes",
        Gaussian(3.0),
        1,
        "example",
    )
    assert (steps.what, steps.event, steps.steps) == ("t.train dp-sgd", Gaussian(0.8), 4)
    assert (steps.sampling.law, steps.sampling.q) == ("poisson", 0.25)


def test_a_correction_that_was_not_released_keeps_the_result_in():
    me = random_client(40)
    x = params_of(me.model).as_released()
    secret = 0.1 * params_of(me.model)
    local = Episodes(steps=1, batch=10)
    assert not local.fit(
        me, x, grad=lambda g, y: g + secret, private=Private(1.0, 1.0, 1.0, 2.0)
    ).released


def test_a_private_step_without_noise_and_clip_is_the_gradient_under_fixed_prototypes():
    me = random_client(24)
    x = params_of(me.model)
    private = Private(1e9, 0.0, 0.0, 2.0)
    made = private_prototypes(me, on_sphere(2.0), private)
    inputs, labels = me.data.batch(slice(None))
    loss = made.losses(2.0 * F.normalize(me.model[:-1](inputs)), labels).sum() / 24
    g = torch.autograd.grad(loss, list(me.model.parameters()), materialize_grads=True)
    y = Episodes(lr=0.5, steps=1, batch=24, weight_decay=0).fit(
        me, x, grad=same_direction, private=private
    )
    for name, slope in zip(x, g, strict=True):
        torch.testing.assert_close(y[name], x[name] - 0.5 * slope, atol=1e-6, rtol=1e-4)
