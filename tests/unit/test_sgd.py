"""Local training against torch's own optimiser and against counting."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tacit.codec import same
from tacit.core import BadInput, Client, Params, params_of
from tacit.data.examples import Examples
from tacit.data.federated import LocalData
from tacit.local.sgd import SGD, network
from tacit.methods.spec import method_from_spec
from tacit.models import build


def client(n=13, model="mlp", seed=0):
    """Return a client with ``n`` random points and its starting point."""
    generator = torch.Generator().manual_seed(5)
    shape = (1, 16, 16) if model == "dafl-cnn" else (6,)
    data = Examples(
        torch.randn(n, *shape, generator=generator), torch.randint(0, 4, (n,), generator=generator)
    )
    local = LocalData(data, np.arange(n), (0.5,), (0.5,))
    net = build(model, shape, 4, 1)
    return Client("0", 0, local, local, net, {}, np.random.default_rng(seed)), params_of(net)


def by_torch(sgd, me, x, rng):
    """Return where torch.optim.SGD ends from ``x`` on the same batches."""
    with torch.no_grad():
        for name, p in me.model.named_parameters():
            p.copy_(x[name])
    torch_sgd = torch.optim.SGD(
        me.model.parameters(),
        lr=sgd.lr,
        momentum=sgd.momentum,
        weight_decay=sgd.weight_decay,
        foreach=False,
    )
    for rows in sgd.batches(len(me.data), rng):
        inputs, labels = me.data.batch(rows)
        torch_sgd.zero_grad()
        F.cross_entropy(me.model(inputs), labels).backward()
        torch_sgd.step()
    return params_of(me.model)


@pytest.mark.parametrize("model", ["mlp", "dafl-cnn"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
def test_fit_is_torch_sgd(model, momentum, weight_decay):
    sgd = SGD(lr=0.1, epochs=3, batch=4, momentum=momentum, weight_decay=weight_decay)
    me, x = client(model=model, seed=2)
    got, steps = sgd.fit(me, x)
    expected = by_torch(sgd, me, x, np.random.default_rng(2))
    assert steps == 3 * 4
    assert (got - x).norm() > 0.1
    for name in x:
        torch.testing.assert_close(got[name], expected[name], atol=1e-6, rtol=1e-6)


def test_fit_leaves_its_start_alone_and_can_be_repeated():
    sgd = SGD(lr=0.1, epochs=2, batch=4, momentum=0.9)
    me, x = client(seed=3)
    before = 1.0 * x
    first, _ = sgd.fit(me, x)
    assert same(x, before)
    again, _ = sgd.fit(client(seed=3)[0], x)  # velocity starts at zero each time
    assert same(first, again)
    other, _ = sgd.fit(client(seed=4)[0], x)
    assert not same(first, other)


def test_fit_returns_copies():
    me, x = client()
    y, _ = SGD(batch=4).fit(me, x)
    kept = 1.0 * y
    SGD(batch=4).fit(me, y)
    assert same(y, kept)


def test_the_models_mode_is_set():
    me, x = client()
    SGD().fit(me, x)
    assert me.model.training
    assert network(me, x) is me.model
    assert not me.model.training


def test_network_loads_the_parameters():
    me, x = client()
    inputs, _ = me.data.batch([0, 1])
    with torch.no_grad():
        assert network(me, x.zeros())(inputs).tolist() == [[0.0] * 4] * 2
        assert network(me, x)(inputs).abs().sum() > 0


# ---- the hooks
# --------------------------------------------------------------------------------------------------


def test_grad_hook_gets_gradient_and_point_and_its_answer_is_used():
    me, x = client(n=5)
    seen = []

    def grad(g, y):
        seen.append((1.0 * g, 1.0 * y))
        return g.zeros() + Params((name, torch.ones_like(value)) for name, value in g.items())

    y, steps = SGD(lr=0.5, epochs=3, batch=5).fit(me, x, grad=grad)
    assert steps == len(seen) == 3
    for name in x:
        torch.testing.assert_close(y[name], x[name] - 1.5)
    assert same(seen[0][1], x)
    torch.testing.assert_close(seen[1][1]["1.bias"], x["1.bias"] - 0.5)
    net = build("mlp", (6,), 4, 1)  # the same weights as the client's
    inputs, labels = me.data.batch(slice(None))
    F.cross_entropy(net(inputs), labels).backward()
    for name, p in net.named_parameters():
        torch.testing.assert_close(seen[0][0][name], p.grad, atol=1e-6, rtol=1e-5)


def test_grad_hook_comes_after_weight_decay_and_before_momentum():
    """With g replaced by 1 + 0 g, momentum 1/2 and three steps.

    Velocities 1, 3/2, 7/4, in all 17/4.
    """
    me, x = client(n=5)

    def ones(g, y):
        return 0.0 * g + Params((name, torch.ones_like(value)) for name, value in g.items())

    y, _ = SGD(lr=0.1, epochs=3, batch=5, momentum=0.5, weight_decay=0.3).fit(me, x, grad=ones)
    for name in x:
        torch.testing.assert_close(y[name], x[name] - 0.1 * 17 / 4)
    seen = []
    for decay in (0.0, 0.3):
        SGD(epochs=1, batch=5, weight_decay=decay).fit(
            client(n=5)[0], x, grad=lambda g, y: seen.append(g) or g
        )
    for name in x:
        torch.testing.assert_close(
            seen[1][name] - seen[0][name], 0.3 * x[name], atol=1e-6, rtol=1e-5
        )


def test_loss_hook_is_what_is_minimised():
    me, x = client(n=5)

    def half_square(model, inputs, labels):
        return sum(0.5 * p.square().sum() for p in model.parameters())

    # the gradient is the point itself
    y, _ = SGD(lr=0.5, epochs=2, batch=5).fit(me, x, loss=half_square)
    assert same(y, 0.25 * x)


# ---- counting
# --------------------------------------------------------------------------------------------------


def brute_reach(steps, momentum):
    """Count how often each gradient acts.

    Gradient k is in velocity j >= k with weight momentum^(j - k).
    """
    return sum(momentum ** (j - k) for k in range(steps) for j in range(k, steps))


@pytest.mark.parametrize("momentum", [0.0, 0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("steps", [1, 2, 3, 10, 137])
def test_reach_counts_every_action_of_every_gradient(steps, momentum):
    assert SGD(momentum=momentum).reach(steps) == pytest.approx(
        brute_reach(steps, momentum), rel=1e-9
    )


def test_reach_without_momentum_is_exactly_the_number_of_steps():
    assert [SGD().reach(steps) for steps in (1, 7, 1000)] == [1.0, 7.0, 1000.0]


@pytest.mark.parametrize("momentum", [0.0, 0.7])
def test_reach_is_how_far_a_constant_gradient_goes(momentum):
    me, x = client(n=9)
    sgd = SGD(lr=0.01, epochs=2, batch=4, momentum=momentum)
    y, steps = sgd.fit(
        me, x, loss=lambda model, inputs, labels: sum(p.sum() for p in model.parameters())
    )
    for name in x:
        torch.testing.assert_close(
            x[name] - y[name], torch.full_like(x[name], 0.01 * sgd.reach(steps))
        )


# ---- batches
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "batch", "sizes"),
    [
        (12, 4, [4, 4, 4]),
        (13, 4, [4, 4, 4, 1]),
        (5, 100, [5]),
        (5, 5, [5]),
        (3, 1, [1, 1, 1]),
        (1, 1, [1]),
        (0, 4, []),
    ],
)
def test_every_example_once_in_each_epoch(n, batch, sizes):
    batches = list(SGD(epochs=3, batch=batch).batches(n, np.random.default_rng(0)))
    assert [len(rows) for rows in batches] == 3 * sizes
    for epoch in range(3):
        part = batches[epoch * len(sizes) : (epoch + 1) * len(sizes)]
        assert sorted(int(row) for rows in part for row in rows) == list(range(n))


@pytest.mark.parametrize("rows", [0, 9, 1000])
def test_how_many_batches_are_laid_out_at_a_time_changes_nothing(rows, monkeypatch):
    """13 examples in batches of 4, three epochs: the last batch of an epoch has one."""
    monkeypatch.setattr("tacit.data.federated.LAID_OUT", rows * 16 * 16)
    sgd = SGD(lr=0.1, epochs=3, batch=4)
    me, x = client(model="dafl-cnn", seed=2)
    got, steps = sgd.fit(me, x)
    assert steps == 12
    assert same(got, by_torch(sgd, me, x, np.random.default_rng(2)))


def test_batches_are_shuffled_anew_in_every_epoch_and_by_seed():
    def order(seed):
        return [
            rows.tolist()
            for rows in SGD(epochs=2, batch=50).batches(50, np.random.default_rng(seed))
        ]

    first, second = order(0)
    assert first != second
    assert first != list(range(50))
    assert order(0) == [first, second]
    assert order(1) != [first, second]


def test_a_batch_larger_than_the_data_is_all_of_it():
    results = []
    for batch in (5, 6, 10_000):
        me, x = client(n=5)
        results.append(SGD(lr=0.1, epochs=2, batch=batch).fit(me, x))
    assert [steps for _, steps in results] == [2, 2, 2]
    assert same(results[0][0], results[1][0])
    assert same(results[0][0], results[2][0])


def test_a_short_last_batch_is_a_mean_over_itself():
    """Its gradient is not scaled down.

    With batches of 4 and 1 of the same point, both steps are the same step.
    """
    point = Examples(torch.ones(5, 1), torch.zeros(5, dtype=torch.int64))
    local = LocalData(point, np.arange(5), (0.5,), (0.5,))
    me = Client("0", 0, local, local, nn.Linear(1, 2, bias=False), {}, np.random.default_rng(0))
    x = Params(weight=torch.zeros(2, 1))
    seen = []
    SGD(lr=1e-9, batch=4).fit(me, x, grad=lambda g, y: seen.append(1.0 * g) or g)
    assert len(seen) == 2
    for g in seen:
        torch.testing.assert_close(g["weight"], torch.tensor([[-0.5], [0.5]]))


# ---- refusals
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"lr": 0.0}, "sgd.lr = 0.0: must be above 0"),
        ({"lr": -1.0}, "sgd.lr = -1.0: must be above 0"),
        ({"lr": float("nan")}, "sgd.lr = nan: must be above 0"),
        ({"epochs": 0}, "sgd.epochs = 0: must be at least 1"),
        ({"batch": 0}, "sgd.batch = 0: must be at least 1"),
        ({"batch": -3}, "sgd.batch = -3: must be at least 1"),
        ({"momentum": 1.0}, "sgd.momentum = 1.0: must be at least 0 and below 1"),
        ({"momentum": -0.1}, "sgd.momentum = -0.1: must be at least 0 and below 1"),
        ({"weight_decay": -1e-3}, "sgd.weight_decay = -0.001: must be at least 0"),
        ({"weight_decay": float("nan")}, "sgd.weight_decay = nan: must be at least 0"),
    ],
)
def test_refused_settings_are_named_in_one_line(wrong, line):
    with pytest.raises(BadInput) as caught:
        SGD(**wrong)
    assert str(caught.value) == line


def test_infinite_step_is_refused():
    with pytest.raises(BadInput, match=r"^sgd.lr = inf: must be finite"):
        SGD(lr=float("inf"))


@pytest.mark.parametrize("released", [True, False])
def test_a_correction_by_raw_data_takes_the_mark_away(released):
    """What is trained privately may leave, unless something else than noisy gradients went in."""
    me, x = client()
    x.as_released()
    extra = (0.1 * x).as_released(released)
    sgd = SGD(lr=0.1, batch=4, clip=1.0, z=1.0)
    y, _ = sgd.fit(me, x, grad=lambda g, y: g + extra)
    assert y.released is released


# ---- steps, decay and the papers' clipping


@pytest.mark.parametrize(
    ("n", "batch", "steps"), [(13, 5, 1), (13, 5, 7), (3, 32, 4), (100, 32, 3)]
)
def test_a_number_of_steps_takes_the_place_of_epochs(n, batch, steps):
    """The same batches as those of many epochs, cut off."""
    many = SGD(batch=batch, epochs=20).batches(n, np.random.default_rng(0))
    some = list(SGD(batch=batch, steps=steps).batches(n, np.random.default_rng(0)))
    assert [rows.tolist() for rows in some] == [next(many).tolist() for _ in range(steps)]
    assert SGD(batch=batch, steps=steps, clip=1.0).private_steps(n) == steps
    me, x = client(n)
    assert SGD(batch=batch, steps=steps).fit(me, x)[1] == steps


def test_the_step_size_decays_from_round_to_round():
    me, x = client()
    in_round_2 = replace(me, round=2, rng=np.random.default_rng(1))
    y, _ = SGD(lr=0.1, decay=0.5).fit(in_round_2, x)
    again = replace(me, rng=np.random.default_rng(1))
    want, _ = SGD(lr=0.025).fit(again, x)
    assert all(torch.equal(y[k], want[k]) for k in want)


def test_bounded_gradients_are_means_of_clipped_ones():
    """One step on three examples, against the gradients of single examples."""
    me, x = client(3)
    bound = 0.5
    y, _ = SGD(lr=1.0, batch=3).fit(me, x, bound=bound)
    total = x.zeros()
    for i in range(3):
        one = replace(me, data=me.data.only(me.data.rows[i : i + 1]))
        z, _ = SGD(lr=1.0, batch=1).fit(one, x)
        g = x - z
        assert g.norm() > bound  # else nothing is tested
        total = total + g * (bound / g.norm())
    assert ((x - y) - total / 3).norm() < 1e-5
    assert not y.released


def test_a_client_with_fewer_examples_than_a_private_step_asks_for_takes_their_mean():
    me, x = client(3)
    private, _ = SGD(lr=0.1, batch=100, clip=1e3, z=0.0).fit(me, x)
    plain, _ = SGD(lr=0.1, batch=3).fit(me, x)
    assert (private - plain).norm() < 1e-6


# ---- optimisers


@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
def test_adam_is_that_of_torch(weight_decay):
    me, x = client(40)
    sgd = SGD(lr=0.01, optimizer="adam", weight_decay=weight_decay, batch=5, epochs=3)
    y, steps = sgd.fit(me, x)
    assert steps == 24
    with torch.no_grad():
        for name, p in me.model.named_parameters():
            p.copy_(x[name])
    adam = torch.optim.Adam(me.model.parameters(), lr=0.01, weight_decay=weight_decay)
    for rows in sgd.batches(len(me.data), np.random.default_rng(0)):
        inputs, labels = me.data.batch(rows)
        adam.zero_grad()
        F.cross_entropy(me.model(inputs), labels).backward()
        adam.step()
    want = params_of(me.model)
    assert all(torch.allclose(y[k], want[k], atol=1e-5) for k in want)


def test_adam_with_noise_is_released_at_the_price_of_dp_sgd():
    """What it remembers are noised gradients, so it costs what SGD's steps cost."""
    ledgers = []
    for name in ("sgd", "adam"):
        me, x = client(40)
        y, _ = SGD(optimizer=name, batch=8, clip=1.0, z=1.0).fit(me, x.as_released())
        assert y.released
        ledgers.append(me.spent)
    assert ledgers[0] == ledgers[1]


@pytest.mark.parametrize("method", ["scaffold", "fednova", "dp_scaffold", "udp:mode=paper"])
def test_methods_that_count_gradients_refuse_adam(method):
    word = f"{method}{',' if ':' in method else ':'}sgd.optimizer=adam"
    with pytest.raises(BadInput, match=r"sgd\.optimizer = 'adam': must be 'sgd'; .*"):
        method_from_spec(word)


class Renormed(nn.Module):
    """A network with a max-norm, as one may write it: its weights get other memory each time."""

    def __init__(self, *, in_place):
        super().__init__()
        self.layer, self.in_place = nn.Linear(6, 4), in_place

    def forward(self, x):
        bounded = torch.renorm(self.layer.weight.data, p=2, dim=0, maxnorm=0.1)
        if self.in_place:
            self.layer.weight.data.copy_(bounded)
        else:
            self.layer.weight.data = bounded
        return self.layer(x.flatten(1))


@pytest.mark.parametrize("in_place", [True, False])
def test_a_network_that_puts_its_weights_elsewhere_is_refused(in_place):
    """What was trained would not be in it, and what is in it would not be trained."""
    me = replace(client()[0], model=Renormed(in_place=in_place))
    x = params_of(me.model)
    if in_place:
        y, _ = SGD().fit(me, x)
        assert not torch.equal(y["layer.bias"], x["layer.bias"])
    else:
        with pytest.raises(BadInput, match=r"w\.data = "):
            SGD().fit(me, x)
