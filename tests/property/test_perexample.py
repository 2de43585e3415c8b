"""Per-example gradients against autograd, one example at a time, over layers and shapes."""

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from often import often
from torch import nn

from tacit.privacy import own_gradients
from tacit.privacy.perexample import CannotClip, clipped_sum, micro_batch

pytestmark = pytest.mark.usefixtures("one_thread")

quick = often(30)


def per_example_loss(model, x, y):
    return F.cross_entropy(model(x), y, reduction="none")


def squared(model, x, y):
    """A loss that any output shape has."""
    return (model(x) * y).flatten(1).square().sum(1)


def one_by_one(model, loss, x, y, clip):
    """The definition: each example alone through autograd, clipped over all layers, added up."""
    weights = [p for p in model.parameters() if p.requires_grad]
    total, norms = [torch.zeros_like(w) for w in weights], []
    for i in range(len(x)):
        g = torch.autograd.grad(loss(model, x[i : i + 1], y[i : i + 1]).sum(), weights)
        norm = torch.sqrt(sum(t.square().sum() for t in g))
        norms.append(norm)
        for t, part in zip(total, g, strict=True):
            t += part * min(1.0, clip / float(norm))
    return total, torch.stack(norms)


def assert_agree(model, loss, x, y, clip=0.5, micro=64):
    want, want_norms = one_by_one(model, loss, x, y, clip)
    got, norms = clipped_sum(model, loss, x, y, clip, micro)
    torch.testing.assert_close(norms, want_norms, rtol=1e-4, atol=1e-6)
    for w, p in zip(want, [p for p in model.parameters() if p.requires_grad], strict=True):
        torch.testing.assert_close(got[p], w, rtol=1e-4, atol=2e-5 * clip * len(x))


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@given(
    n=st.integers(1, 5),
    size=st.tuples(st.integers(5, 9), st.integers(5, 9)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 2), st.integers(1, 3)),
    padding=st.one_of(st.tuples(st.integers(0, 2), st.integers(0, 2)), st.just("same")),
    dilation=st.integers(1, 2),
    groups=st.sampled_from([1, 2]),
    bias=st.booleans(),
    layout=st.booleans(),
    mode=st.sampled_from(["zeros", "circular"]),
)
@quick
def test_conv2d(n, size, kernel, stride, padding, dilation, groups, bias, layout, mode):
    torch.manual_seed(0)
    stride = (1, 1) if padding == "same" else stride
    layer = nn.Conv2d(
        4,
        6,
        kernel,
        stride,
        padding,
        dilation=dilation,
        groups=groups,
        bias=bias,
        padding_mode=mode,
    )
    model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Tanh(), layer)
    x = torch.randn(n, 4, *size)
    x = x.to(memory_format=torch.channels_last) if layout else x
    y = torch.randn(model(x).shape)
    assert_agree(model, squared, x, y)


@given(
    n=st.integers(1, 40),
    stride=st.integers(1, 2),
    padding=st.integers(0, 1),
    bias=st.booleans(),
    frozen=st.sampled_from(["", "weight", "bias"]),
    pairs=st.booleans(),
)
@quick
def test_one_channel(n, stride, padding, bias, frozen, pairs):
    torch.manual_seed(0)
    model = nn.Conv2d(1, 6, (3, 2), stride, padding, bias=bias or frozen == "bias")
    for name, p in model.named_parameters():
        p.requires_grad_(name != frozen or not bias)
    x = torch.randn(n, 2 if pairs else 1, 9, 8)

    def loss(model, x, y):
        out = model(x.flatten(0, 1).unsqueeze(1))
        return out.square().view(len(x), -1).sum(1)

    want, want_norms = one_by_one(model, loss, x, torch.zeros(n), 0.5)
    got, norms = clipped_sum(model, loss, x, torch.zeros(n), 0.5, rows=x.shape[1])
    torch.testing.assert_close(norms, want_norms, rtol=1e-4, atol=1e-6)
    for w, g in zip(want, got.values(), strict=True):
        torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-5 * n)


@given(
    n=st.integers(1, 4),
    kernel=st.integers(1, 4),
    stride=st.integers(1, 3),
    padding=st.integers(0, 1),
    extra=st.integers(0, 1),
    groups=st.sampled_from([1, 2]),
    bias=st.booleans(),
)
@quick
def test_transposed_conv2d(n, kernel, stride, padding, extra, groups, bias):
    torch.manual_seed(0)
    padding, extra = min(padding, (kernel - 1) // 2), min(extra, stride - 1)
    layer = nn.ConvTranspose2d(4, 6, kernel, stride, padding, extra, groups=groups, bias=bias)
    model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Tanh(), layer)
    x = torch.randn(n, 4, 4, 5)
    assert_agree(model, squared, x, torch.randn(model(x).shape))


@pytest.mark.parametrize("stride", [(1, 1), (1, 2), (2, 1)])
@pytest.mark.parametrize("size", [4, 12])
def test_transposed_conv2d_whose_output_has_room_for_the_kernel_once_more(stride, size):
    """Its output may be padded by a stride and more, where it is dilated."""
    torch.manual_seed(0)
    layer = nn.ConvTranspose2d(4, 6, 3, stride, 1, 2, dilation=3)
    model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Tanh(), layer)
    x = torch.randn(3, 4, size, size + 1)
    assert_agree(model, squared, x, torch.randn(model(x).shape))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv1d(4, 6, 3, 2, 1),
        nn.Conv1d(9, 6, 3),
        nn.ConvTranspose1d(4, 6, 3, 2, 1, 1, groups=2),
        nn.ConvTranspose1d(4, 6, 3, 1, 1, 1, dilation=2),
    ],
)
def test_one_dimension(layer):
    channels = layer.in_channels
    x = torch.randn(3, channels, 9)
    assert_agree(
        nn.Sequential(nn.Conv1d(channels, channels, 1), layer),
        squared,
        x,
        torch.randn(layer(x).shape),
    )


@given(n=st.integers(1, 6), middle=st.sampled_from([(), (3,), (2, 2)]), bias=st.booleans())
@quick
def test_linear(n, middle, bias):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3, bias=bias))
    x = torch.randn(n, *middle, 5)
    assert_agree(model, squared, x, torch.randn(model(x).shape))


@pytest.mark.parametrize(
    "norm",
    [
        nn.GroupNorm(2, 4),
        nn.InstanceNorm2d(4, affine=True),
        own_gradients.InstanceNorm2d(4),
        nn.LayerNorm([4, 5, 5]),
        nn.LayerNorm(5),
    ],
)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_norms(norm, layout):
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), norm, nn.Tanh(), nn.Conv2d(4, 2, 1))
    x = torch.randn(4, 2, 5, 5).contiguous(memory_format=layout)
    assert_agree(model, squared, x, torch.randn(4, 2, 5, 5))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_an_instance_norm_that_keeps_the_layout_is_torchs(dtype):
    torch.manual_seed(0)
    theirs, ours = nn.InstanceNorm2d(4, affine=True).to(dtype), own_gradients.InstanceNorm2d(4)
    for p in theirs.parameters():
        nn.init.normal_(p)
    ours.to(dtype).load_state_dict(theirs.state_dict())
    x = torch.randn(3, 4, 5, 6, dtype=dtype).contiguous(memory_format=torch.channels_last)
    g = torch.randn_like(x)
    outs, grads = [], []
    for norm in (theirs, ours):
        given = x.clone().requires_grad_()
        outs.append(norm(given))
        grads.append(torch.autograd.grad(outs[-1], [given, *norm.parameters()], g))
    torch.testing.assert_close(outs[1], outs[0])
    torch.testing.assert_close(grads[1], grads[0])
    if dtype == torch.float64:
        assert outs[1].is_contiguous(memory_format=torch.channels_last)
        assert grads[1][0].is_contiguous(memory_format=torch.channels_last)


def test_an_instance_norm_of_one_image_is_torchs():
    """Images without a batch, whose first axis are channels."""
    theirs, ours = nn.InstanceNorm2d(3, affine=True), own_gradients.InstanceNorm2d(3)
    x = torch.randn(3, 5, 6)
    torch.testing.assert_close(ours(x), theirs(x))


def test_an_instance_norm_of_single_pixels_is_refused_as_torchs_is():
    with pytest.raises(ValueError, match="more than 1 spatial element"):
        own_gradients.InstanceNorm2d(3)(torch.randn(2, 3, 1, 1))


def test_an_instance_norm_has_no_second_derivative():
    x = torch.randn(2, 3, 4, 4, requires_grad=True)
    y = own_gradients.InstanceNorm2d(3)(x)
    (g,) = torch.autograd.grad(y.pow(3).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        g.square().sum().backward()


@given(index=st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), min_size=1, max_size=4))
@quick
def test_embedding_adds_up_an_index_met_twice(index):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(4, 5, padding_idx=0), nn.Flatten(), nn.Linear(15, 2))
    assert_agree(
        model, per_example_loss, torch.tensor(index), torch.zeros(len(index), dtype=torch.int64)
    )


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(1, 6, 3, 2, 1),  # one channel: copied along the image's rows
        nn.ConvTranspose2d(8, 1, 4, 2, 1),
        # few channels, and a row left over: the input's gradient is folded
        nn.Conv2d(2, 6, 4, 2, 1),
        nn.Conv2d(9, 6, 3, (1, 2), 1, dilation=2),  # many: torch's own
    ],
)
def test_few_and_many_channels(layer, layout):
    torch.manual_seed(0)
    channels = layer.in_channels
    x = torch.randn(3, channels, 7, 8).contiguous(memory_format=layout)
    assert_agree(
        nn.Sequential(nn.Conv2d(channels, channels, 1), layer),
        squared,
        x,
        torch.randn(layer(x).shape),
    )


@pytest.mark.parametrize("numbers", [1, 2000])
def test_blocks_change_nothing(monkeypatch, numbers):
    monkeypatch.setattr(own_gradients, "BLOCK", numbers)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Conv2d(4, 8, 3), nn.Flatten())
    x = torch.randn(5, 1, 9, 9)
    assert_agree(model, squared, x, torch.randn(model(x).shape))


def test_micro_batches_follow_the_size_of_the_convolutions():
    layer = nn.Conv2d(64, 64, 5, bias=False)
    assert micro_batch(nn.Sequential(nn.Linear(3000, 3000), nn.Linear(3000, 10))) == 256
    assert micro_batch(layer) == 64
    assert micro_batch(nn.Sequential(*(nn.Conv2d(64, 64, 5) for _ in range(4)))) == 32
    assert micro_batch(layer.requires_grad_(False)) == 256


def test_gram_form_of_a_large_layer_agrees():
    model = nn.Sequential(nn.Conv2d(64, 300, 3), nn.Flatten(), nn.Linear(300 * 4, 2))
    x = torch.randn(2, 64, 4, 4)
    assert_agree(model, per_example_loss, x, torch.tensor([0, 1]))


@pytest.mark.parametrize("apart", [1e-1, 1e-2, 1e-3, 1e-4])
def test_gram_form_does_not_pass_the_clip_where_positions_cancel(apart):
    """Two positions with almost opposite gradients.

    What is left of them is small against what is rounded.
    """
    model = nn.Linear(512, 512, bias=False)
    seen, back = torch.randn(8, 1, 512), torch.randn(8, 1, 512)
    x, y = torch.cat([seen, (1 + apart) * seen], 1), torch.cat([back, -back], 1)

    def product(model, x, y):
        return (model(x) * y).flatten(1).sum(1)

    _, exact = one_by_one(copy.deepcopy(model).double(), product, x.double(), y.double(), 1.0)
    clip = float(exact.median()) / 2 + 1e-6
    _, norms = clipped_sum(model, product, x, y, clip)
    assert (norms >= exact * (1 - 1e-5)).all()
    for i in range(8):
        total, _ = clipped_sum(model, product, x[i : i + 1], y[i : i + 1], clip)
        assert total[model.weight].double().norm() <= clip * (1 + 1e-5)


def test_a_linear_model_takes_as_many_examples_as_fill_the_same_memory():
    hog = nn.Sequential(nn.Flatten(), nn.Linear(288, 10))
    assert micro_batch(hog) == micro_batch(hog[1]) == 4096  # 1.2 million numbers, 4.9 MB
    assert micro_batch(nn.Linear(3000, 3000)) == 1024
    assert micro_batch(nn.Linear(1 << 20, 10)) == 256
    # what a network of somebody's own does with its only layer nobody knows
    assert micro_batch(nn.Sequential(nn.Sequential(nn.Linear(288, 10)))) == 256


def test_more_examples_than_fit_at_a_time_are_clipped_one_by_one():
    model = nn.Sequential(nn.Flatten(), nn.Linear(20, 3))
    x, y = torch.randn(5000, 20), torch.arange(5000) % 3
    assert micro_batch(model) < len(x)
    assert_agree(model, per_example_loss, x, y, micro=None)


@pytest.mark.parametrize("micro", [1, 2, 3, 64])
def test_micro_batches_change_nothing(micro):
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    assert_agree(model, per_example_loss, torch.randn(7, 4), torch.arange(7) % 3, micro=micro)


def test_an_empty_batch_gives_zero():
    model = nn.Linear(4, 3)
    total, norms = clipped_sum(
        model, per_example_loss, torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), 1.0
    )
    assert all(not t.any() for t in total.values())
    assert len(norms) == 0


def test_frozen_parameters_are_left_out():
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    model[0].weight.requires_grad_(False)
    assert_agree(model, per_example_loss, torch.randn(3, 4), torch.tensor([0, 1, 2]))
    model[0].bias.requires_grad_(False)
    assert_agree(model, per_example_loss, torch.randn(3, 4), torch.tensor([0, 1, 2]))


def test_one_example_moves_the_sum_by_at_most_the_clip():
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    x, y = 100 * torch.randn(9, 4), torch.arange(9) % 3
    whole, _ = clipped_sum(model, per_example_loss, x, y, 0.1)
    for i in range(9):
        rest = [j for j in range(9) if j != i]
        part, _ = clipped_sum(model, per_example_loss, x[rest], y[rest], 0.1)
        assert torch.sqrt(sum((whole[p] - part[p]).square().sum() for p in whole)) <= 0.1 + 1e-5


def test_a_gradient_that_is_not_finite_counts_for_nothing():
    model = nn.Linear(2, 2)
    x = torch.tensor([[1.0, 2.0], [float("inf"), 1.0], [float("nan"), 1.0]])
    y = torch.tensor([0, 1, 1])
    got, _ = clipped_sum(model, per_example_loss, x, y, 1.0)
    want, _ = clipped_sum(model, per_example_loss, x[:1], y[:1], 1.0)
    assert all(torch.allclose(got[p], want[p]) for p in want)


def test_the_model_is_itself_again_afterwards():
    model = nn.Sequential(nn.Linear(4, 3))
    before = model(torch.ones(1, 4))
    clipped_sum(model, per_example_loss, torch.randn(2, 4), torch.tensor([0, 1]), 1.0)
    assert torch.equal(before, model(torch.ones(1, 4)))
    assert "forward" not in vars(model[0])
    assert model[0].weight.grad is None


def test_a_layer_used_twice_is_refused():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            return self.layer(self.layer(x))

    with pytest.raises(CannotClip, match="used more than once"):
        clipped_sum(Twice(), per_example_loss, torch.randn(2, 3), torch.tensor([0, 1]), 1.0)
