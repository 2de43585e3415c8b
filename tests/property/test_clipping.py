"""Whatever is clipped stays within its bound, over every order of magnitude that floats have."""

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from often import often
from sandbox import Server, a_client
from torch import nn

from tacit.core import BadInput, Everyone, Params, Replies, check
from tacit.data.examples import Examples
from tacit.data.federated import LocalData
from tacit.local.prototypes import Private, on_sphere, private_prototypes
from tacit.methods.spec import method_from_spec
from tacit.models import build
from tacit.privacy import mechanisms
from tacit.privacy.layers import LayerBounds
from tacit.privacy.mechanisms import AdaptiveClip, PrivateSteps, clip_rows, gaussian_mean
from tacit.privacy.own_gradients import InstanceNorm2d
from tacit.privacy.perexample import clipped_sum
from tacit.synthesis.moments import Terms, release

pytestmark = pytest.mark.usefixtures("one_thread")

MANY = often(100)
# of inputs and of gradients: 60 orders of magnitude and more, down to denormal numbers
powers = st.integers(-44, 38)
clips = st.integers(-10, 10).map(lambda e: 10.0**e)
# what data can hold: numbers of all sizes, and what is no number
odd = st.one_of(
    st.floats(width=32),
    st.sampled_from([math.inf, -math.inf, math.nan, 1e-45, -1e-45, 1e-38, 3e38, 0.0]),
)


def norm64(tensors):
    """The Euclidean norm, without overflow or underflow."""
    flat = np.concatenate([t.detach().double().numpy().ravel() for t in tensors])
    top = np.abs(flat).max(initial=0.0)
    return float(top * np.sqrt(np.square(flat / top).sum())) if 0 < top < math.inf else float(top)


# ---- per-example gradients


def product(model, x, y):
    """A loss whose gradient at the output is y itself."""
    return (model(x) * y).flatten(1).sum(1)


def seeded(make):
    torch.manual_seed(0)
    return make()


# a layer of each kind, and the shape of its input; Gram matrices, formed gradients, both ways round
PRODUCTS = {
    "linear": (lambda: nn.Linear(6, 4), (6,)),
    "linear without bias": (lambda: nn.Linear(6, 4, bias=False), (6,)),
    "linear, positions, Gram": (lambda: nn.Linear(40, 30), (3, 40)),
    "linear, positions, formed": (lambda: nn.Linear(2, 3), (40, 2)),
    "conv, one channel": (lambda: nn.Conv2d(1, 3, 3, padding=1), (1, 5, 5)),
    "conv, formed": (lambda: nn.Conv2d(3, 4, 3), (3, 8, 8)),
    "conv, Gram": (lambda: nn.Conv2d(40, 50, 3), (40, 4, 4)),
    "conv, groups": (lambda: nn.Conv2d(4, 6, 3, groups=2), (4, 5, 5)),
    "conv1d": (lambda: nn.Conv1d(3, 4, 3), (3, 9)),
    "transposed": (lambda: nn.ConvTranspose2d(3, 2, 3, 2), (3, 4, 4)),
}
NORMS = {
    "group norm": (lambda: nn.GroupNorm(2, 4), (4, 3, 3)),
    "instance norm": (lambda: nn.InstanceNorm2d(4, affine=True), (4, 3, 3)),
    "instance norm of the GAN": (lambda: InstanceNorm2d(4), (4, 3, 3)),
    "layer norm": (lambda: nn.LayerNorm(6), (6,)),
}


def exact_gradient(model, x, y):
    """The gradient of one example by autograd, in double precision."""
    twin = copy.deepcopy(model).double()
    x = x.double() if x.is_floating_point() else x
    return torch.autograd.grad(product(twin, x, y.double()).sum(), list(twin.parameters()))


def check_gradient(model, x, y, clip, *, unchanged=True):
    sums, _ = clipped_sum(model, product, x, y, clip)
    got = [sums[p] for p in model.parameters()]
    assert norm64(got) <= clip
    want = exact_gradient(model, x, y)
    if unchanged and norm64(want) < clip * (1 - 1e-4):
        gap = norm64([g.double() - w for g, w in zip(got, want, strict=True)])
        assert gap <= 1e-4 * norm64(want) + 1e-40


@pytest.mark.parametrize("kind", PRODUCTS)
@given(seen=powers, back=powers, clip=clips, seed=st.integers(0, 9))
@example(seen=0, back=-30, clip=1e-10, seed=0)
@example(seen=15, back=-24, clip=1e-10, seed=0)
@example(seen=38, back=-44, clip=1e-10, seed=1)
@example(seen=-30, back=21, clip=1e-10, seed=2)
@example(seen=25, back=25, clip=1.0, seed=3)
@example(seen=11, back=19, clip=1e-10, seed=0)
@example(seen=18, back=-25, clip=1e-2, seed=0)
@MANY
def test_the_gradient_of_an_example_stays_within_the_clip(kind, seen, back, clip, seed):
    make, shape = PRODUCTS[kind]
    model, rng = seeded(make), torch.Generator().manual_seed(seed)
    x = torch.randn(1, *shape, generator=rng) * 10.0**seen
    y = torch.randn(model(x).shape, generator=rng) * 10.0**back
    check_gradient(model, x, y, clip)


@pytest.mark.parametrize("kind", NORMS)
@given(seen=powers, back=powers, clip=clips, seed=st.integers(0, 9))
@MANY
def test_the_gradient_of_a_norm_stays_within_the_clip(kind, seen, back, clip, seed):
    make, shape = NORMS[kind]
    model, rng = seeded(make), torch.Generator().manual_seed(seed)
    x = torch.randn(1, *shape, generator=rng) * 10.0**seen
    y = torch.randn(1, *shape, generator=rng) * 10.0**back
    # a norm of huge inputs is not finite in single precision: such an example counts for nothing
    check_gradient(model, x, y, clip, unchanged=-15 < seen < 15)


@given(back=powers, clip=clips, index=st.lists(st.integers(0, 4), min_size=6, max_size=6))
@MANY
def test_the_gradient_of_an_embedding_stays_within_the_clip(back, clip, index):
    model, rng = seeded(lambda: nn.Embedding(5, 3)), torch.Generator().manual_seed(0)
    y = torch.randn(1, 6, 3, generator=rng) * 10.0**back
    check_gradient(model, torch.tensor([index]), y, clip)


@given(
    rows=st.lists(st.tuples(powers, powers), min_size=2, max_size=6),
    clip=clips,
    bad=st.sampled_from([None, math.inf, math.nan]),
)
@MANY
def test_in_a_batch_every_example_is_clipped_by_itself(rows, clip, bad):
    """However unlike they are: the sum is that of each alone, but for rounding."""
    model, rng = seeded(lambda: nn.Linear(5, 4)), torch.Generator().manual_seed(1)
    x = torch.stack([torch.randn(5, generator=rng) * 10.0**seen for seen, _ in rows])
    y = torch.stack([torch.randn(4, generator=rng) * 10.0**back for _, back in rows])
    if bad is not None:
        x[0, 0] = bad
    sums, _ = clipped_sum(model, product, x, y, clip)
    alone = [
        clipped_sum(model, product, x[i : i + 1], y[i : i + 1], clip)[0] for i in range(len(x))
    ]
    for p in model.parameters():
        want = sum(one[p].double() for one in alone)
        assert norm64([sums[p].double() - want]) <= 1e-5 * clip * len(x)


@given(apart=st.integers(-7, 0), clip=clips, size=st.sampled_from([2, 30, 512]))
@MANY
def test_positions_that_cancel_stay_within_the_clip(apart, clip, size):
    """Two positions with almost opposite gradients: little is left beside what is rounded."""
    model = seeded(lambda: nn.Linear(size, size, bias=False))
    rng = torch.Generator().manual_seed(0)
    seen, back = torch.randn(2, 1, 1, size, generator=rng)
    x = torch.cat([seen, (1 + 10.0**apart) * seen], 1)
    y = torch.cat([back, -back], 1)
    sums, _ = clipped_sum(model, product, x, y, clip)
    assert norm64(sums.values()) <= clip


@pytest.mark.parametrize("value", [0.1, 0.3, 1 / 3, 0.7, 0.9])
def test_many_numbers_alike_stay_within_the_clip(value):
    """Added up one by one in single precision, the squares of 100,000 would lack one in 10,000."""
    model = seeded(lambda: nn.Conv2d(64, 64, 5, bias=False))
    x, y = torch.full((1, 64, 16, 16), 1.0), torch.full((1, 64, 12, 12), value / 144)
    _, norms = clipped_sum(model, product, x, y, math.inf)
    want = norm64(exact_gradient(model, x, y))
    assert float(norms) == pytest.approx(want, rel=3e-6)
    sums, _ = clipped_sum(model, product, x, y, want / 2)
    assert norm64(sums.values()) <= want / 2


# ---- points, rows and layers


@given(
    values=st.lists(odd, min_size=1, max_size=12),
    clip=clips,
    wide=st.booleans(),
    up=st.integers(-300, 260),
)
@example(values=[1e-30, 0.0], clip=1e-10, wide=False, up=0)
@example(values=[1.0, 1.0], clip=1e-10, wide=True, up=-200)
@MANY
def test_a_point_stays_within_the_clip(values, clip, wide, up):
    dtype = torch.float64 if wide else torch.float32
    x = Params(
        a=torch.tensor(values, dtype=dtype) * (10.0**up if wide else 1.0),
        b=torch.ones(2, dtype=dtype) * min(abs(values[0]), 1.0),
    )
    finite = all(bool(v.isfinite().all()) for v in x.values())
    got = x.clipped(clip)
    assert norm64(got.values()) <= clip
    if finite and norm64(x.values()) < clip * (1 - 1e-5):
        assert all(torch.equal(got[k], x[k]) for k in x)
    if not finite:
        assert norm64(got.values()) == 0


@given(
    norm=st.integers(-300, 150).map(lambda e: 10.0**e),
    bound=st.integers(-300, 150).map(lambda e: 10.0**e),
)
def test_the_norm_of_a_point_neither_underflows_nor_overflows(norm, bound):
    x = Params(a=torch.tensor([3.0, 0.0], dtype=torch.float64), b=torch.tensor([4.0]).double())
    assert (norm / 5 * x).norm() == pytest.approx(norm, rel=1e-9, abs=0)
    assert (norm / 5 * x).clipped(bound).norm() <= bound


def test_a_point_that_is_not_finite_counts_for_nothing_whatever_the_bound():
    assert Params(w=torch.tensor([math.inf, 1.0])).clipped(math.inf)["w"].tolist() == [0.0, 0.0]


@given(
    rows=st.lists(st.lists(odd, min_size=3, max_size=3), min_size=1, max_size=6),
    bound=clips,
    wide=st.booleans(),
)
@example(rows=[[1e-30, 0.0, 0.0]], bound=1e-10, wide=False)
@example(rows=[[3e38, 3e38, 3e38]], bound=1.0, wide=False)
@MANY
def test_rows_stay_within_the_bound(rows, bound, wide):
    x = torch.tensor(rows, dtype=torch.float64 if wide else torch.float32)
    got = clip_rows(x, bound)
    assert got.dtype == x.dtype
    for row, out in zip(x, got, strict=True):
        assert norm64([out]) <= bound
        if bool(row.isfinite().all()):
            want = row.double() * min(1.0, bound / (norm64([row]) or 1.0))
            torch.testing.assert_close(out.double(), want, rtol=2e-6, atol=1e-44)
        else:
            assert not out.any()


@given(
    values=st.lists(st.lists(odd, min_size=2, max_size=2), min_size=3, max_size=3),
    c=st.lists(st.integers(-9, 9).map(lambda e: 10.0**e), min_size=3, max_size=3),
)
@MANY
def test_layers_have_norm_one_together_at_most(values, c):
    v = Params({k: torch.tensor(t) for k, t in zip("abc", values, strict=True)})
    bounds = LayerBounds.of(dict(zip("abc", c, strict=True)), v)
    u = bounds.clipped(v)
    assert norm64(u.values()) <= 1
    assert norm64(bounds.with_bits(v).values()) <= 1
    for k in v:
        if norm64([v[k]]) < bounds.c[k] * (1 - 1e-5) and v[k].isfinite().all():
            back = bounds.unscaled(u)[k].double()
            torch.testing.assert_close(back, v[k].double(), rtol=1e-6, atol=1e-30 * bounds.c[k])


# ---- releases


@given(values=st.lists(odd, min_size=1, max_size=8), clip=clips)
@MANY
def test_one_client_moves_a_sum_by_at_most_the_clip(values, clip):
    server = Server(["0"], 0)
    replies = Replies(
        "fed.train@0",
        server.sample(Everyone(), 0),
        {"0": Params(w=torch.tensor(values, dtype=torch.float64))},
        {},
    )
    like = Params(w=torch.zeros(len(values), dtype=torch.float64))
    got = gaussian_mean(
        server, replies, lambda r: r, like=like, clip=clip, z=0.0, out_of=1.0, secret=False
    )
    assert norm64(got.values()) <= clip


def captured(monkeypatch):
    """Let Gaussian releases through without noise, and note what they are of."""
    seen = []

    def exact(me, what, value, *, sensitivity, z, **rest):
        seen.append((value, sensitivity))
        return value

    monkeypatch.setattr(mechanisms, "gaussian", exact)
    return seen


@given(
    record=st.lists(odd, min_size=4, max_size=4),
    R=st.integers(-5, 5).map(lambda e: 10.0**e),
    shared=st.booleans(),
)
@MANY
def test_one_record_moves_moments_by_at_most_their_sensitivity(record, R, shared):
    with pytest.MonkeyPatch.context() as patch:
        seen = captured(patch)
        F, y = torch.tensor([record]), torch.tensor([1])
        release(a_client(), F, y, 2, Terms(mu=1.0, R=R), shared=shared)
        for value, sensitivity in seen:
            assert norm64(value.values()) <= sensitivity


@given(
    record=st.lists(odd, min_size=4, max_size=4), radius=st.integers(-9, 9).map(lambda e: 10.0**e)
)
@often(30)
def test_one_record_moves_prototypes_by_at_most_their_sensitivity(record, radius):
    with pytest.MonkeyPatch.context() as patch:
        seen = captured(patch)
        x = torch.tensor([record])
        data = LocalData(Examples(x, torch.tensor([1])), np.arange(1), (0.5,), (0.5,))
        me = a_client(data=data, model=build("mlp", (4,), 3, 0))
        private_prototypes(me, on_sphere(radius), Private(1.0, 1.0, 1.0, radius))
        ((value, sensitivity),) = seen
        assert norm64(value.values()) <= sensitivity


# ---- which clipping norms there are


@pytest.mark.parametrize("value", [1e-30, 9e-11, 1.1e10, 1e38])
def test_a_clipping_norm_beyond_what_arithmetic_can_keep_is_refused(value):
    with pytest.raises(BadInput, match=r"^clip = .*: must be at least 1e-10 and at most 1e\+10$"):
        check.clip("clip", value)
    with pytest.raises(BadInput, match="clip = "):
        PrivateSteps(a_client(), 1.0, value, 1.0, 1)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_clipping_norm_that_is_none_is_refused(value):
    with pytest.raises(BadInput, match=r"^clip = .*: must be (finite and )?above 0$"):
        check.clip("clip", value)


def test_a_clip_that_follows_the_norms_stays_in_range():
    server, follow = Server(["0"], 0), AdaptiveClip(0.0, out_of=1.0)
    clip = 2e-10
    for t in range(20):
        clip = follow.next(server, clip, [True], t)
    assert clip == 1e-10
    clip = 9e9
    for t in range(20):
        clip = follow.next(server, clip, [False], t)
    assert clip == 1e10


def test_bounds_that_follow_the_norms_stay_in_range():
    like = Params(a=torch.zeros(3), b=torch.zeros(2))
    c = {"a": 1e-10, "b": 1e10}
    below = LayerBounds.of(c, like).with_bits(like)
    _, after = LayerBounds.of(c, like).followed(below)
    assert after["a"] == 1e-10
    above = LayerBounds.of(c, like).with_bits(Params(a=torch.ones(3), b=torch.full((2,), 1e20)))
    _, after = LayerBounds.of(c, like).followed(above)
    assert after["b"] == 1e10


CLIPS = [
    *("fedavg:sgd.clip", "ldp_fl:clip", "dp_fedavg:clip", "cl_fl:clip", "nbafl:clip", "udp:clip"),
    *("prifedsync:clip", "cuag:clip", "cuag:radius", "cuag:fixed_clip", "kd_dpfl:clip"),
    *("pfldyn:local.max_norm", "moments:R", "moments:s", "dafl:gan.clip", "dafl:moments.R"),
    *("dafl:moments.bound", "dafl:moments.s", "gfl:sgd.clip"),
]


@pytest.mark.parametrize("setting", CLIPS)
@pytest.mark.parametrize("value", ["1e-30", "1e30"])
def test_every_setting_that_bounds_something_has_a_range(setting, value):
    field = setting.partition(":")[2].rpartition(".")[2]
    with pytest.raises(BadInput, match=f"{field} = 1e.30: must be at least 1e-10 and at most 1e"):
        method_from_spec(f"{setting}={value}")
