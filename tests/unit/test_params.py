"""The algebra of parameters."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from tacit.codec import same
from tacit.core import Params, load_params, mean, params_of, public, weighted_sum
from tacit.core.params import PART

X = Params(w=torch.tensor([[1.0, -2.0], [3.0, 0.5]]), b=torch.tensor([4.0]))
Y = Params(w=torch.tensor([[0.5, 1.0], [-1.0, 2.0]]), b=torch.tensor([-8.0]))


def values(x):
    return {name: value.tolist() for name, value in x.items()}


def test_sum_difference_and_multiples():
    assert values(X + Y) == {"w": [[1.5, -1.0], [2.0, 2.5]], "b": [-4.0]}
    assert values(X - Y) == {"w": [[0.5, -3.0], [4.0, -1.5]], "b": [12.0]}
    assert (
        values(2 * X)
        == values(X * 2)
        == values(X / 0.5)
        == {"w": [[2.0, -4.0], [6.0, 1.0]], "b": [8.0]}
    )


def test_nothing_is_changed_in_place():
    before = {name: value.clone() for name, value in X.items()}
    (
        X + Y,
        X - Y,
        3 * X,
        X / 3,
        X.zeros(),
        X.clipped(0.1),
        weighted_sum([(X, 2.0), (Y, 1.0)]),
        mean([X, Y]),
    )
    assert all(torch.equal(X[name], value) for name, value in before.items())


def test_results_do_not_share_memory_with_what_they_came_from():
    for made in (
        X + X.zeros(),
        X * 1.0,
        X / 1.0,
        X.clipped(1e9),
        weighted_sum([(X, 1.0)]),
        mean([X]),
    ):
        assert same(made, X)
        assert all(made[name].data_ptr() != X[name].data_ptr() for name in X)


def test_the_laws_of_a_vector_space():
    zero = X.zeros()
    assert same(X + Y, Y + X)
    assert same(X + zero, X)
    assert same((X - X).as_released(), zero)
    assert same(X * 1.0, X)
    assert same((X + Y) - Y, X)  # exact for these numbers, which are sums of few powers of two
    assert same(0.5 * (X + Y), 0.5 * X + 0.5 * Y)


def test_norm_and_size():
    assert X.norm() == math.sqrt(1 + 4 + 9 + 0.25 + 16)
    assert X.size() == 5
    assert X.zeros().norm() == 0.0
    assert values(X.zeros()) == {"w": [[0.0, 0.0], [0.0, 0.0]], "b": [0.0]}


def test_norm_is_summed_in_double_precision():
    # its square does not fit in single
    big = Params(w=torch.full((1000, 1000), 1e-3), b=torch.tensor([3e19]))
    assert big.norm() == pytest.approx(3e19, rel=1e-6)
    many = Params(w=torch.full((4_000_000,), 0.1))
    assert many.norm() == pytest.approx(0.1 * 2000, rel=1e-7)


@pytest.mark.parametrize("bound", [0.1, 1.0, 5.0])
def test_clipped_keeps_the_direction_and_has_the_bound_as_norm(bound):
    clipped = X.clipped(bound)
    assert clipped.norm() == pytest.approx(bound, rel=3e-6)
    assert clipped.norm() <= bound
    for name in X:
        torch.testing.assert_close(clipped[name] * (X.norm() / bound), X[name])


@pytest.mark.parametrize("bound", [5.6, 100.0, math.inf])
def test_clipped_leaves_alone_what_is_inside(bound):
    assert same(X.clipped(bound), X)


def test_clipped_at_the_ends():
    assert same(X.zeros().clipped(public(1.0)), X.zeros())
    assert same(X.zeros().clipped(public(0.0)), X.zeros())
    assert X.clipped(0.0).norm() == 0.0


def test_clipped_exceeds_its_bound_by_rounding_at_most():
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        x = Params(w=torch.randn(50, generator=generator), b=torch.randn(7, generator=generator))
        assert x.clipped(1.0).norm() <= 1.0 + 2**-23


def test_weighted_sum_and_mean_by_hand():
    assert values(weighted_sum([(X, 2.0), (Y, -1.0)])) == {
        "w": [[1.5, -5.0], [7.0, -1.0]],
        "b": [16.0],
    }
    assert values(mean([X, Y])) == {"w": [[0.75, -0.5], [1.0, 1.25]], "b": [-2.0]}
    assert values(mean([(X, 3), (Y, 1)])) == {"w": [[0.875, -1.25], [2.0, 0.875]], "b": [1.0]}
    assert same(mean([(X, 3), (Y, 1)]), mean([(X, 30), (Y, 10)]))
    assert same(mean([(X, 7)]), X)


def test_means_take_any_iterable_once():
    assert same(mean(x for x in (X, Y)), mean([X, Y]))
    assert same(weighted_sum((x, 0.5) for x in (X, Y)), mean([X, Y]))


def test_the_order_of_names_is_that_of_the_first():
    turned = Params(b=Y["b"], w=Y["w"])
    assert list(X + turned) == list(weighted_sum([(X, 1.0), (turned, 1.0)])) == ["w", "b"]
    assert same(X + turned, X + Y)
    assert same(mean([X, turned]), mean([X, Y]))


@pytest.mark.parametrize("do", [lambda a, b: a + b, lambda a, b: a - b, lambda a, b: mean([a, b])])
def test_names_that_differ_are_refused_by_name(do):
    other = Params(w=X["w"], c=X["b"])
    with pytest.raises(ValueError, match=r"^parameter names differ: \['b', 'c'\]$"):
        do(X, other)
    with pytest.raises(ValueError, match=r"^parameter names differ: \['b'\]$"):
        do(X, Params(w=X["w"]))


def test_params_of_a_model_and_back():
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(3, 2))
    model.to(memory_format=torch.channels_last)
    model[2].bias.requires_grad_(False)
    x = params_of(model)
    assert list(x) == ["0.weight", "0.bias", "2.weight"]  # what is not trained is not a parameter
    assert all(value.is_contiguous() and not value.requires_grad for value in x.values())
    load_params(model, 2 * x)
    assert same(params_of(model), 2 * x)
    assert not same(x, params_of(model))  # a copy, not a view


def test_load_params_returns_them_in_the_order_of_x():
    model = nn.Linear(2, 2)
    x = Params(bias=torch.ones(2), weight=torch.zeros(2, 2))
    assert [p.shape for p in load_params(model, x)] == [(2,), (2, 2)]
    assert model.bias.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_point_that_is_not_finite_counts_for_nothing_when_clipped(bad):
    assert Params(w=torch.tensor([bad, 1e6])).clipped(1.0)["w"].tolist() == [0.0, 0.0]


def test_the_mean_of_nothing_is_refused():
    with pytest.raises(ValueError, match="no points"):
        mean([])


@pytest.mark.parametrize("place", [0, PART - 1, PART, 2 * PART])
def test_a_number_that_is_written_anywhere_in_a_large_tensor_shows(place):
    x = Params(w=torch.zeros(2 * PART + 1)).as_released()
    assert x.released
    x["w"][place] = 1.0
    assert not x.released


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.float16, torch.uint8])
@pytest.mark.parametrize(
    "write",
    [
        lambda w: w.copy_(w.flip(0)),
        lambda w: w.copy_(w[[1, 0, *range(2, 12)]]),
        lambda w: w.resize_(3, 4),
        lambda w: w[5:6].add_(1),
    ],
    ids=["turned", "swapped", "shaped", "written"],
)
def test_a_point_is_known_by_the_order_of_its_numbers_too(write, kind):
    """An order that follows private data tells of them: neurons sorted by whom they fire for."""
    x = Params(w=torch.arange(12).to(kind)).as_released()
    y = Params(w=torch.arange(12).to(kind)).as_released()
    write(x["w"])
    assert not x.released
    assert y.released


def test_the_layout_in_memory_is_no_content():
    x = Params(w=torch.rand(2, 3, 4, 5)).as_released()
    dict.__setitem__(x, "w", x["w"].to(memory_format=torch.channels_last))
    assert x.released
    assert Params(w=torch.tensor(2.0), v=torch.zeros(0)).as_released().released
