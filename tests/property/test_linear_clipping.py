"""A linear classifier's clipped gradients in closed form, against autograd one by one."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from often import often
from torch import nn

from tacit.privacy import clipping
from tacit.privacy.clipping import clipped_gradients
from tacit.privacy.losses import cross_entropies
from tacit.privacy.perexample import CannotClip, clipped_sum

pytestmark = pytest.mark.usefixtures("one_thread")

quick = often(40)


def batch(n, inside, classes, size, seed):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(n, inside, generator=draw) * size
    return x, torch.randint(0, classes, (n,), generator=draw)


def linear(inside, classes, size=1.0):
    torch.manual_seed(inside + classes)
    model = nn.Sequential(nn.Flatten(), nn.Linear(inside, classes))
    with torch.no_grad():
        model[1].weight.mul_(size)
    return model


def one_by_one(model, x, y, clip):
    """The definition, in double precision."""
    layer = model[1]
    W, b = (t.detach().double().requires_grad_() for t in (layer.weight, layer.bias))
    total = [torch.zeros_like(W), torch.zeros_like(b)]
    for i in range(len(x)):
        scores = F.linear(x[i : i + 1].double(), W, b)
        g = torch.autograd.grad(F.cross_entropy(scores, y[i : i + 1]), [W, b])
        norm = float(torch.sqrt(sum(t.square().sum() for t in g)))
        for t, part in zip(total, g, strict=True):
            t += part * min(1.0, clip / norm if norm else 1.0)
    return total


@given(
    n=st.integers(0, 9),
    inside=st.integers(1, 30),
    classes=st.integers(2, 12),
    size=st.sampled_from([1e-3, 0.1, 1.0, 30.0]),
    clip=st.sampled_from([1e-3, 0.4, 1.0, 100.0]),
    seed=st.integers(0, 99),
)
@quick
def test_it_is_the_sum_of_what_autograd_gives_example_by_example(
    n, inside, classes, size, clip, seed
):
    model = linear(inside, classes)
    x, y = batch(n, inside, classes, size, seed)
    got = clipped_gradients(model, "classes", x, y, clip)
    for w, want in zip(model.parameters(), one_by_one(model, x, y, clip), strict=True):
        torch.testing.assert_close(got[w].double(), want, rtol=1e-4, atol=3e-5 * clip * max(1, n))


@given(
    size=st.sampled_from([1e-30, 1e-20, 1e-3, 1.0, 1e4, 1e18, 1e30]),
    weights=st.sampled_from([1e-20, 1.0, 1e10]),
    clip=st.sampled_from([1e-10, 0.5, 1e10]),
    seed=st.integers(0, 99),
)
@quick
def test_a_twin_with_one_record_less_is_within_the_clip_whatever_the_sizes(
    size, weights, clip, seed
):
    model = linear(12, 5, weights)
    x, y = batch(1, 12, 5, size, seed)
    alone = clipped_gradients(model, "classes", x, y, clip)
    norm = torch.sqrt(sum(g.double().square().sum() for g in alone.values()))
    assert norm <= clip


def test_what_single_precision_cannot_do_is_done_as_elsewhere(monkeypatch):
    """Squares of such inputs have no end in single precision, or vanish there."""
    asked = []

    def noted(*given):
        asked.append(len(given[2]))
        return clipped_sum(*given)

    monkeypatch.setattr(clipping, "clipped_sum", noted)
    model = linear(12, 5)
    x, y = batch(6, 12, 5, 1.0, 0)
    usual = clipped_gradients(model, "classes", x, y, 0.1)
    assert not asked
    x[2] *= 1e25
    got = clipped_gradients(model, "classes", x, y, 0.1)
    want, _ = clipped_sum(model, cross_entropies, x, y, 0.1)
    assert asked == [1]  # that one
    for w in model.parameters():
        torch.testing.assert_close(got[w], want[w], rtol=1e-4, atol=1e-6)
        assert not torch.equal(got[w], usual[w])
    x[2] = torch.nan  # counts for nothing
    rest = torch.arange(6) != 2
    got, want = (
        clipped_gradients(model, "classes", *at, 0.1) for at in ((x, y), (x[rest], y[rest]))
    )
    for w in model.parameters():
        torch.testing.assert_close(got[w], want[w], rtol=1e-4, atol=1e-6)


def test_a_layer_that_does_more_than_it_says_is_gone_through():
    """A hook, another way to flatten, a frozen bias: autograd knows, a formula does not."""
    x, y = batch(7, 12, 5, 1.0, 3)
    hooked = linear(12, 5)
    hooked[1].register_forward_hook(lambda module, given, out: 2 * out)
    frozen = linear(12, 5)
    frozen[1].bias.requires_grad_(False)
    without = nn.Sequential(nn.Linear(12, 5, bias=False))
    for model in (hooked, frozen, without):
        got = clipped_gradients(model, "classes", x, y, 0.3)
        want, _ = clipped_sum(model, cross_entropies, x, y, 0.3)
        assert got.keys() == want.keys()
        for w in want:
            torch.testing.assert_close(got[w], want[w])
    images = x.view(7, 3, 2, 2)
    for w in (model := linear(12, 5)).parameters():
        got = clipped_gradients(model, "classes", images, y, 0.3)
        want, _ = clipped_sum(model, cross_entropies, images, y, 0.3)
        torch.testing.assert_close(got[w], want[w], rtol=1e-4, atol=1e-6)


def test_more_examples_than_fit_at_a_time():
    model = linear(20, 3)
    x, y = batch(5000, 20, 3, 1.0, 1)
    got = clipped_gradients(model, "classes", x, y, 0.5)
    want, _ = clipped_sum(model, cross_entropies, x, y, 0.5, micro=64)
    for w in model.parameters():
        torch.testing.assert_close(got[w], want[w], rtol=1e-4, atol=1e-3)


@given(
    classes=st.sampled_from([2, 10, 100]),
    size=st.sampled_from([1.0, 1e3, 1e6, 1e9]),
    margin=st.sampled_from([0.0, 15.0, 17.0]),
    wild=st.sampled_from([1e19, 1e25, 1e38, float("nan"), float("inf"), 1e-30]),
    seed=st.integers(0, 9),
)
@quick
def test_one_record_that_needs_double_precision_changes_nothing_for_the_others(
    classes, size, margin, wild, seed
):
    """Not even where models are so sure that what is left of p - y is all rounding."""
    model = linear(50, classes)
    x, y = batch(300, 50, classes, size, seed)
    with torch.no_grad():  # every example is right by the margin
        model[1].weight.zero_()
        model[1].bias.zero_()
        model[1].bias[0] = margin
    y[:] = 0
    x[7] = wild
    rest = torch.arange(len(x)) != 7
    both = [clipped_gradients(model, "classes", *at, 1.0) for at in ((x, y), (x[rest], y[rest]))]
    apart = sum((both[0][w].double() - both[1][w].double()).square().sum() for w in both[0])
    assert apart.sqrt() <= 1.0 + 1e-3


def test_where_something_else_is_called_too():
    """Hooks of all modules, of the way back, half precision: autograd, or a refusal."""
    x, y = batch(7, 12, 5, 1.0, 3)
    hook = torch.nn.modules.module.register_module_forward_hook(lambda m, given, out: 2 * out)
    try:
        model = linear(12, 5)
        assert not clipping._plain(model, model[1], x)
    finally:
        hook.remove()
    assert clipping._plain(model, model[1], x)
    model[1].register_full_backward_hook(lambda m, grad_in, grad_out: None)
    assert not clipping._plain(model, model[1], x)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(CannotClip, match="bfloat16"):
        clipped_gradients(linear(12, 5), "classes", x, y, 1.0)
    more = linear(12, 5)
    more[1].register_parameter("spare", nn.Parameter(torch.zeros(1), requires_grad=False))
    assert clipped_gradients(more, "classes", x, y, 1.0).keys() == {more[1].weight, more[1].bias}


def test_of_the_right_class_nothing_cancels():
    """Where a model is sure, p - 1 in single precision would be 0, and the rest would remain."""
    model = linear(1, 3)
    with torch.no_grad():
        model[1].weight.zero_()
        model[1].bias.copy_(torch.tensor([20.0, 0.0, 0.0]))
    got = clipped_gradients(model, "classes", torch.ones(1, 1), torch.tensor([0]), 1.0)
    small = 1 / (2 + torch.tensor(20.0).double().exp())  # of either other class
    want = torch.stack([-2 * small, small, small])
    torch.testing.assert_close(got[model[1].bias].double(), want, rtol=1e-5, atol=0.0)
