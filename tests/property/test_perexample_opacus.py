"""Per-example gradients against Opacus, an independent implementation,
for every layer that both know.
"""

import copy
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from often import often
from torch import nn

from tacit.privacy.perexample import clipped_sum

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Opacus' own imports warn
    pytest.importorskip("opacus", reason='needs Opacus: pip install "opacus==1.6.*"')
    from opacus import GradSampleModule

# its hooks warn, too
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]
quick = often(25)
CLIP = 0.5


def squared(model, x, y):
    return (model(x) * y).flatten(1).square().sum(1)


def opacus_clipped_sum(model, x, y):
    """Return the clipped sum and the norms from Opacus' gradient of each example.

    It gets a contiguous copy: Opacus 1.6 computes wrong gradients of convolutions and norms for
    channels-last inputs.
    """
    x = x.contiguous()
    private = GradSampleModule(copy.deepcopy(model), loss_reduction="sum")
    squared(private, x, y).sum().backward()
    samples = [p.grad_sample for p in private.parameters()]
    norms = torch.stack([s.flatten(1).norm(dim=1) for s in samples]).norm(dim=0)
    c = (CLIP / norms).clamp(max=1.0)
    return [torch.tensordot(c, s, dims=1) for s in samples], norms


def assert_agree(model, x):
    """Compare in double precision,
    where 1e-5 tells a wrong formula from rounding and the clip's little less.
    """
    model = model.double()
    x = x if x.dtype == torch.int64 else x.double()
    y = torch.randn(model(x).shape, dtype=torch.float64)
    want, want_norms = opacus_clipped_sum(model, x, y)
    got, norms = clipped_sum(model, squared, x, y, CLIP)
    torch.testing.assert_close(norms, want_norms, rtol=1e-5, atol=1e-5)
    for p, w in zip(model.parameters(), want, strict=True):
        torch.testing.assert_close(got[p], w, rtol=2e-5, atol=1e-5)


@given(
    n=st.integers(1, 5),
    size=st.tuples(st.integers(5, 9), st.integers(5, 9)),
    channels=st.sampled_from([(1, 6, 1), (2, 6, 1), (2, 6, 2), (4, 8, 2), (4, 8, 4), (8, 16, 1)]),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 2), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=st.integers(1, 2),
    bias=st.booleans(),
    layout=st.sampled_from([torch.contiguous_format, torch.channels_last]),
)
@quick
def test_conv2d(n, size, channels, kernel, stride, padding, dilation, bias, layout):
    torch.manual_seed(0)
    inside, outside, groups = channels
    kernel = tuple(
        min(k, (s + 2 * p - 1) // dilation + 1)
        for k, s, p in zip(kernel, size, padding, strict=True)
    )
    layer = nn.Conv2d(inside, outside, kernel, stride, padding, dilation, groups, bias)
    model = nn.Sequential(nn.Conv2d(inside, inside, 1), nn.Tanh(), layer)
    assert_agree(model, torch.randn(n, inside, *size).contiguous(memory_format=layout))


@given(
    n=st.integers(1, 5),
    length=st.integers(4, 9),
    kernel=st.integers(1, 4),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    groups=st.sampled_from([1, 2]),
    bias=st.booleans(),
)
@quick
def test_conv1d(n, length, kernel, stride, padding, groups, bias):
    torch.manual_seed(0)
    layer = nn.Conv1d(4, 6, kernel, stride, padding, groups=groups, bias=bias)
    assert_agree(nn.Sequential(nn.Conv1d(4, 4, 1), nn.Tanh(), layer), torch.randn(n, 4, length))


@given(n=st.integers(1, 6), middle=st.sampled_from([(), (3,), (2, 2)]), bias=st.booleans())
@quick
def test_linear(n, middle, bias):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3, bias=bias))
    assert_agree(model, torch.randn(n, *middle, 5))


@given(index=st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), min_size=1, max_size=4))
@quick
def test_embedding(index):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(4, 5), nn.Flatten(), nn.Linear(15, 2))
    assert_agree(model, torch.tensor(index))


@given(
    n=st.integers(1, 5),
    size=st.tuples(st.integers(2, 6), st.integers(2, 6)),
    norm=st.sampled_from(["group", "one group", "instance", "layer", "last"]),
    layout=st.sampled_from([torch.contiguous_format, torch.channels_last]),
)
@quick
def test_norms(n, size, norm, layout):
    torch.manual_seed(0)
    layer = {
        "group": nn.GroupNorm(2, 4),
        "one group": nn.GroupNorm(1, 4),
        "instance": nn.InstanceNorm2d(4, affine=True),
        "layer": nn.LayerNorm([4, *size]),
        "last": nn.LayerNorm(size[1]),
    }[norm]
    for p in layer.parameters():
        nn.init.normal_(p)
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), layer, nn.Tanh(), nn.Conv2d(4, 2, 1))
    assert_agree(model, torch.randn(n, 2, *size).contiguous(memory_format=layout))


def test_instance_norm_in_one_dimension():
    model = nn.Sequential(
        nn.Conv1d(2, 4, 3), nn.InstanceNorm1d(4, affine=True), nn.Tanh(), nn.Conv1d(4, 2, 1)
    )
    assert_agree(model, torch.randn(3, 2, 8))
