"""Noise on real machines: what is released lies on a grid that no value moves, and has its law."""

import math
import multiprocessing

import mpmath
import numpy as np
import pytest
import torch
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given
from hypothesis import strategies as st
from sandbox import Server
from scipy import stats

from tacit.core import Client, Everyone, Ledger, Params, Replies
from tacit.privacy import noise
from tacit.privacy.mechanisms import (
    AdaptiveClip,
    PrivateSteps,
    claimed_gaussian,
    claimed_mean,
    gaussian,
    gaussian_mean,
    gaussian_update,
    noisy_counts,
    public_noise,
)
from tacit.privacy.noise import (
    FromOS,
    FromSeed,
    fractions,
    log_uniform,
    noised,
    normal,
    source,
    spacing,
)

N = 50_000
SOURCES = {"os": FromOS(), "seed": FromSeed(np.random.default_rng(0))}
both = pytest.mark.parametrize("draw", SOURCES.values(), ids=SOURCES)


def client(kind="os"):
    net = torch.nn.Identity()
    return Client("5", 3, None, None, net, {}, np.random.default_rng(0), kind, Ledger())


def server(kind="os"):
    return Server(["0", "1"], 0, noise=kind)


def replies(cohort, point):
    return Replies("t@1", cohort.sample(Everyone(), 1), {"0": point}, {})


# ----------------------------------------------------------------------------------------------
# the last bits


def floats(values):
    return Params(w=torch.as_tensor(values))


def a_mean(kind, x):
    cohort = server(kind)
    clip = math.sqrt(N)
    answers = replies(cohort, floats(x))
    made = gaussian_mean(
        cohort, answers, lambda p: p, like=floats(x), clip=clip, z=1 / clip, out_of=8.0
    )
    return 8 * made["w"]


def a_claimed_mean(kind, x):
    cohort = server(kind)
    answers = replies(cohort, floats(x))
    clip = 2 * math.sqrt(N)
    return claimed_mean(cohort, answers, lambda p: p, clip=clip, sd=1.0, why="no")["w"]


# each returns the values with noise of standard deviation or scale 1
WAYS = {
    "gaussian": lambda kind, x: gaussian(client(kind), "x", floats(x), sensitivity=0.5, z=2.0)["w"],
    "update": lambda kind, x: gaussian_update(
        client(kind), "x", floats(x), clip=2.0 * math.sqrt(N), z=0.5 / math.sqrt(N)
    )["w"],
    "claimed": lambda kind, x: claimed_gaussian(client(kind), "x", floats(x), sd=1.0, why="no")[
        "w"
    ],
    "steps": lambda kind, x: PrivateSteps(client(kind), 0.5, 2.0, 0.5, 1).noised([x])[0],
    "mean": a_mean,
    "claimed mean": a_claimed_mean,
    "public": lambda kind, x: public_noise(server(kind), floats(x), sd=1.0, t=0)["w"],
    "votes": lambda kind, x: torch.from_numpy(
        noisy_counts(client(kind), "x", x.numpy(), scale=1.0, kind="gaussian").value
    ),
    "laplace votes": lambda kind, x: torch.from_numpy(
        noisy_counts(client(kind), "x", x.numpy(), scale=1.0, kind="laplace").value
    ),
}
each_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def certain(y, dtype):
    """Return which outputs could never have come from 1, if noise was added as floats are.

    Mironov's attack: near -1 noise has steps of 2^-53 (float32: 2^-24), so 1 + noise is a multiple
    of that; 0 + noise has finer steps where it is small.
    """
    step = 2.0**-24 if dtype == torch.float32 else 2.0**-53
    return (y.double() / step).frac() != 0


@each_way
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["os", "seeded"])
def test_the_last_bits_do_not_tell_neighbours_apart(way, dtype, kind):
    """On sums of plain floats one number in four says for certain that the value was not 1."""
    from_zero, from_one = (way(kind, torch.full((N,), x, dtype=dtype)) for x in (0.0, 1.0))
    assert int(certain(from_one, dtype).sum()) == 0
    assert int(certain(from_zero, dtype).sum()) == 0


@each_way
@pytest.mark.parametrize("x", [0.0, 1.0, 1 / 3, -0.1, 1e-9])
def test_whatever_the_value_outputs_lie_on_one_grid(way, x):
    got = way("os", torch.full((N,), x, dtype=torch.float64))
    assert spacing(1.0) == 2.0**-8
    assert bool(((got * 256).frac() == 0).all())
    # and reach every point of it: seldom one more, never one less for some value
    near = torch.bincount((got[(got - x).abs() < 0.5] * 256).long() + 512)
    assert int((near[near.nonzero()[0] : near.nonzero()[-1] + 1] == 0).sum()) == 0


@pytest.mark.parametrize("out_of", [4.0, 37.0])
def test_the_clip_moves_on_a_grid_too(out_of):
    """Its logarithm is linear in the noisy sum of bits, whose noise is 3: a grid of 2^-7."""
    follow = AdaptiveClip(3.0, out_of=out_of)
    for below in ([], [True], [True, False, False]):
        logs = np.array(
            [math.log(follow.next(server(), 1.0, below, t)) for t in range(200)],
        )
        sums = (0.5 + logs / -0.2 - 0.5) * out_of
        assert np.abs(sums * 128 - np.rint(sums * 128)).max() < 1e-6


@given(sd=st.floats(1e-100, 1e100), value=st.floats(-1e30, 1e30))
def test_the_grid_depends_on_the_noise_alone(sd, value):
    step = spacing(sd)
    assert math.frexp(step)[0] == 0.5
    assert sd / 512 < step <= sd / 256
    (got,) = noised(SOURCES["seed"], [torch.full((20,), value, dtype=torch.float64)], sd)
    # a float64 that is too large for the grid is a multiple of its spacing anyway
    assert all(float(y) % step == 0 for y in got)


@both
@pytest.mark.parametrize("x", [0.0, 0.3, -1000.7])
@pytest.mark.parametrize("sd", [0.3, 1.0, 5.0])
def test_the_sum_has_its_law(draw, x, sd):
    """The grid's points have the normal probability of what is rounded to them."""
    (got,) = noised(draw, [torch.full((N,), x, dtype=torch.float64)], sd)
    edges = x + sd * np.linspace(-2.5, 2.5, 41)
    step = spacing(sd)
    edges = (np.floor(edges / step) + 0.5) * step
    seen = np.histogram(got.numpy(), np.array([-np.inf, *edges, np.inf]))[0]
    want = np.diff([0, *stats.norm.cdf(edges, x, sd), 1])
    assert stats.chisquare(seen, want * N).pvalue > 1e-6
    assert abs(float(got.mean()) - x) < 5 * sd / math.sqrt(N)


@both
def test_laplace_noise_has_its_law(draw):
    assert stats.kstest(noise.laplace(draw, N), "laplace").pvalue > 1e-6
    (got,) = noise.laplace_noised(draw, [torch.full((N,), 3.0, dtype=torch.float64)], 2.0)
    assert stats.kstest(got, stats.laplace(3.0, 2.0).cdf).pvalue > 1e-6


def test_discrete_noise_on_votes_would_cost_more_than_their_line_says():
    """Two counts that move by one, scale 1/2: with delta at epsilon 3.9 of 4, for one query.

    The line is continuous Laplace noise of half the scale, over the two counts' distance.
    """
    grid = {"value_discretization_interval": 1e-4}
    line = pld.from_laplace_mechanism(0.25, **grid)
    continuous = pld.from_laplace_mechanism(0.5, **grid).self_compose(2)
    discrete = pld.from_discrete_laplace_mechanism(2.0, 1, **grid).self_compose(2)
    stated = line.get_delta_for_epsilon(3.9)
    assert continuous.get_delta_for_epsilon(3.9) <= stated
    assert discrete.get_delta_for_epsilon(3.9) > 1.4 * stated


# ----------------------------------------------------------------------------------------------
# how near the numbers are to real arithmetic


class Given:
    """A source whose words are given, one call after another."""

    def __init__(self, *calls):
        self.calls = list(calls)

    def bits(self, n):
        got = np.array(self.calls.pop(0), np.uint64)
        assert len(got) == n
        return got


ENDS = [0, 1, 2, 1000, 2**52, 2**53 - 1, 2**53, 2**53 + 1, 2**60, 2**63 - 1]
WORDS = ENDS + [2**64 - 1 - w for w in ENDS]


def real_pair(word, more, angle):
    """Return Box and Muller's pair in 60 digits; what the words leave open is in the middle."""
    with mpmath.workdps(60):
        rare = min(word, 2**64 - 1 - word) < 2**53
        rest = mpmath.mpf(more) / 2**64 + mpmath.mpf(2) ** -65 if rare else mpmath.mpf(1) / 2
        if rare and word >= 2**63:
            rest = 1 - rest
        u = (word + rest) / mpmath.mpf(2) ** 64
        radius = mpmath.sqrt(-2 * mpmath.log(u))
        turn = mpmath.pi * (angle + mpmath.mpf(1) / 2) / mpmath.mpf(2) ** 63
        return radius * mpmath.cos(turn), radius * mpmath.sin(turn)


def check_pairs(words, angles, more):
    rare = [m for w, m in zip(words, more, strict=True) if min(w, 2**64 - 1 - w) < 2**53]
    calls = [words, rare, angles] if rare else [words, angles]
    got = normal(Given(*calls), 2 * len(words)).tolist()
    for i, (word, angle, extra) in enumerate(zip(words, angles, more, strict=True)):
        signed = angle - 2**64 if angle >= 2**63 else angle
        for mine, real in zip(
            (got[i], got[i + len(words)]), real_pair(word, extra, signed), strict=True
        ):
            assert abs(mpmath.mpf(mine) - real) < 2.0**-45


def test_a_fraction_is_the_whole_word_rounded_once():
    edges = [
        0,
        1,
        2**32 - 1,
        2**32,
        2**53 + 1,
        2**53 + 3,
        2**63 - 1,
        2**63,
        2**64 - 2**10,
        2**64 - 1,
    ]
    words = np.concatenate([np.array(edges, np.uint64), SOURCES["seed"].bits(10_000)])
    assert fractions(words).tolist() == [float(int(w)) / 2.0**64 for w in words]


def test_at_the_ends_of_the_uniform_numbers():
    """A word of zeros is a radius of 9.4 or more; with 64 more zeros, of 13.4."""
    for more in (0, 2**64 - 1, 2**63 + 12345):
        check_pairs(WORDS, [w ^ 2**62 for w in WORDS], [more] * len(WORDS))
    far = normal(Given([0], [0], [0]), 2)
    assert far.tolist() == pytest.approx([math.sqrt(2 * 129 * math.log(2)), 0.0])


word = st.integers(0, 2**64 - 1)


@given(word=word, angle=word, more=word, shift=st.integers(0, 63))
def test_numbers_are_within_two_to_the_minus_45_of_real_ones(word, angle, more, shift):
    check_pairs([word >> shift], [angle], [more])
    check_pairs([2**64 - 1 - (word >> shift)], [angle], [more])


@both
def test_logarithms_of_uniform_numbers(draw):
    logs = log_uniform(draw, N)
    assert stats.kstest(-logs, "expon").pvalue > 1e-6
    assert (logs < 0).all()


@both
def test_standard_normal_numbers(draw):
    z = normal(draw, 4 * N + 1)
    assert len(z) == 4 * N + 1
    assert stats.kstest(z, "norm").pvalue > 1e-6
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], len(z))
    assert low < (z**2).sum() < high
    assert abs(stats.skew(z)) < 0.03
    assert abs(stats.kurtosis(z)) < 0.06
    # the two halves of Box and Muller
    assert abs(np.corrcoef(z[: 2 * N], z[2 * N : 4 * N])[0, 1]) < 0.02
    assert abs(np.corrcoef(z[: 2 * N] ** 2, z[2 * N : 4 * N] ** 2)[0, 1]) < 0.02


def test_blocks_are_joined_without_a_seam(monkeypatch):
    """Blocks draw their bits one after another."""
    whole = normal(FromSeed(np.random.default_rng(3)), 12)
    monkeypatch.setattr(noise, "BLOCK", 2)
    draw = FromSeed(np.random.default_rng(3))
    pieces = normal(draw, 11)
    assert len(pieces) == 11
    assert np.array_equal(pieces[:4], normal(FromSeed(np.random.default_rng(3)), 4))
    assert len(set(pieces.tolist())) == 11
    assert not np.array_equal(pieces, whole[:11])


# ----------------------------------------------------------------------------------------------
# tensors


def test_shapes_types_layouts_and_inputs_are_kept():
    values = [
        torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.ones(4, dtype=torch.float64),
        torch.tensor(1.0),
        torch.ones(0, 3),
        torch.ones(3, 2).T,
        torch.ones(3, dtype=torch.float16, requires_grad=True),
    ]
    got = noised(SOURCES["seed"], values, 1.0)
    assert [(g.shape, g.dtype) for g in got] == [(v.shape, v.dtype) for v in values]
    assert got[0].is_contiguous(memory_format=torch.channels_last)
    assert not got[-1].requires_grad
    assert all(bool((v == 1).all()) for v in values)
    flat = torch.cat([g.double().flatten() for g in got]) - 1
    assert len(set(flat.tolist())) > 0.9 * len(flat)


def test_values_meet_the_noise_that_is_theirs():
    """Values far apart, noise small: each comes back in its own place."""
    values = [torch.arange(6.0).view(2, 3).T, 100 + torch.arange(4.0).view(2, 2)]
    got = noised(SOURCES["seed"], values, 1e-3)
    assert all(torch.allclose(g, v, atol=0.01) for g, v in zip(got, values, strict=True))


def test_no_values_no_noise():
    assert noised(SOURCES["seed"], [], 1.0) == []
    x = torch.tensor([1 / 3, -1e-12])
    for add in (noised, noise.laplace_noised):
        (got,) = add(SOURCES["seed"], [x], 0.0)
        assert torch.equal(got, x)
        assert got is not x


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_stays_so(bad):
    (got,) = noised(SOURCES["seed"], [torch.tensor([bad, 1.0])], 1.0)
    assert got[0].isnan() if math.isnan(bad) else float(got[0]) == bad
    assert math.isfinite(got[1])


@pytest.mark.parametrize("sd", [math.nan, math.inf])
def test_noise_that_is_not_finite_leaves_nothing(sd):
    (got,) = noised(SOURCES["seed"], [torch.ones(10)], sd)
    assert not bool(got.isfinite().any())


@pytest.mark.parametrize("sd", [5e-324, 1e-300, 1e-160])
def test_tiny_noise_has_a_coarser_grid(sd):
    """A value that is no larger disappears with it; others are rounded, never lost."""
    (got,) = noised(SOURCES["seed"], [torch.tensor([sd, 1e38, 0.5], dtype=torch.float64)], sd)
    assert got.tolist() == [0.0, 1e38, 0.5]


@pytest.mark.parametrize("x", [0.0, 1 / 3, 2.0**17 + 0.25, -(2.0**24), 1e30])
def test_a_float32_is_the_float64_on_the_grid_rounded_once_more(x):
    """Float32 holds the grid of noise 1 up to 2^16; beyond, rounding it is post-processing."""
    value = torch.full((1000,), x)
    wide, narrow = (
        noised(FromSeed(np.random.default_rng(7)), [value.to(dtype)], 1.0)[0]
        for dtype in (torch.float64, torch.float32)
    )
    assert torch.equal(wide.float(), narrow)
    assert abs(float(narrow.double().mean()) - float(value[0])) < 0.5


# ----------------------------------------------------------------------------------------------
# sources


def test_a_source_is_what_it_was_told_to_be():
    rng = np.random.default_rng(0)
    assert isinstance(source("os", rng), FromOS)
    one, two = source("seeded", rng), source("seeded", rng)
    assert not np.array_equal(one.bits(5), two.bits(5))
    again = source("seeded", np.random.default_rng(0))
    assert np.array_equal(again.bits(5), source("seeded", np.random.default_rng(0)).bits(5))


def test_noise_streams_leave_the_batches_alone():
    """A mechanism's draws come from a stream of their own: batches are the same without noise."""
    a, b = np.random.default_rng(0), np.random.default_rng(0)
    normal(source("seeded", a), 100)
    assert a.permutation(50).tolist() == b.permutation(50).tolist()


@both
def test_every_bit_is_a_fair_coin(draw):
    words = draw.bits(N)
    assert words.dtype == np.uint64
    ones = np.unpackbits(words.view(np.uint8)).reshape(N, 64).sum(0)
    assert all(stats.binomtest(int(k), N, 0.5).pvalue > 1e-7 for k in ones)
    assert draw.bits(0).shape == (0,)
    assert not np.array_equal(draw.bits(4), draw.bits(4))


def first_words(pipe):
    pipe.send(FromOS().bits(8).tolist())


def test_forked_processes_have_noise_of_their_own():
    """Workers are forked: a generator that they inherit must not repeat itself."""
    fork = multiprocessing.get_context("fork")
    FromOS().bits(8)
    seen = [FromOS().bits(8).tolist()]
    for _ in range(3):
        here, there = fork.Pipe()
        child = fork.Process(target=first_words, args=(there,))
        child.start()
        seen.append(here.recv())
        child.join()
    assert len({tuple(words) for words in seen}) == 4
