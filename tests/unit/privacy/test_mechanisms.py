"""Each mechanism.

Its clip, weights, denominator and noise as stated, and its ledger line before the first draw.
"""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sandbox import Server
from scipy import stats

from tacit.core import (
    FEDERATION,
    BadInput,
    BudgetReached,
    Client,
    Everyone,
    Fixed,
    Gaussian,
    Ledger,
    NonPrivate,
    Params,
    Poisson,
    Pure,
    Release,
    Replies,
    Sampling,
)
from tacit.privacy import mechanisms
from tacit.privacy.mechanisms import (
    AdaptiveClip,
    PrivateSteps,
    claimed_gaussian,
    claimed_mean,
    clip_rows,
    discrete_laplace,
    exponential,
    gaussian,
    gaussian_mean,
    gaussian_update,
    noisy_max,
    public_noise,
)
from tacit.privacy.noise import FromSeed

N = 20_000
ZERO = Params(w=torch.zeros(N, dtype=torch.float64))


def client(seed=0, round=3, noise="seeded", approve=lambda ledger: None):
    net = torch.nn.Identity()
    return Client(
        "5", round, None, None, net, {}, np.random.default_rng(seed), noise, Ledger(), approve
    )


def cohort(n=6, seed=0, noise="seeded", **how):
    return Server([str(i) for i in range(n)], seed, noise=noise, **how)


def replies(server, points, law=None, round=2):
    sample = server.sample(law or Everyone(), round)
    return Replies(
        f"fed.train@{round}", sample, {i: points[i] for i in sample.ids if i in points}, {}
    )


def sd_is(values, sd, mean=0.0):
    """The sum of squares is chi-square, the mean normal; both within one in a million."""
    values = np.asarray(values, dtype=np.float64).ravel() - mean
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], len(values))
    return low < (values**2).sum() / sd**2 < high and abs(values.mean()) < 5 * sd / math.sqrt(
        len(values)
    )


def refuse(ledger):
    raise BudgetReached("budget = 1: no")


def only(ledger):
    (line,) = ledger
    return line


# --------------------------------------------------------------------------------------------------
# the client's own


@pytest.mark.parametrize(("sensitivity", "z"), [(1.0, 1.0), (0.25, 3.0), (10.0, 0.1)])
def test_gaussian_noise_has_its_stated_size(sensitivity, z):
    me = client()
    got = gaussian(
        me, "a thing", ZERO + Params(w=torch.full((N,), 7.0)), sensitivity=sensitivity, z=z
    )
    assert got.released
    assert sd_is(got["w"], z * sensitivity, mean=7.0)
    line = Release("a thing", "example", "5", "server", Gaussian(z), ((3, 3),), noise="seeded")
    assert list(me.spent) == [line]


def test_gaussian_noise_is_new_for_every_tensor_call_round_and_client():
    point = Params(a=torch.zeros(50), b=torch.zeros(50))
    me = client()
    outputs = [gaussian(me, what, point, sensitivity=1.0, z=1.0) for what in "xy"]
    outputs += [gaussian(client(seed=1), "x", point, sensitivity=1.0, z=1.0)]
    drawn = [o[k] for o in outputs for k in "ab"]
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(drawn, 2))
    again = gaussian(client(), "x", point, sensitivity=1.0, z=1.0)
    assert torch.equal(again["a"], outputs[0]["a"])


def test_gaussian_keeps_dtype_shape_and_its_input():
    value = Params(a=torch.ones(2, 3), b=torch.ones(4, dtype=torch.float64))
    got = gaussian(client(), "x", value, sensitivity=1.0, z=1.0)
    assert {k: (v.shape, v.dtype) for k, v in got.items()} == {
        k: (v.shape, v.dtype) for k, v in value.items()
    }
    assert torch.equal(value["a"], torch.ones(2, 3))
    assert not value.released


@pytest.mark.parametrize("norm", [0.0, 0.5, 1.9999, 2.0, 2.0001, 1e6, 1e30])
def test_an_update_is_clipped_exactly(norm):
    direction = torch.tensor([3.0, -4.0]) / 5
    got = gaussian_update(client(), "u", Params(w=norm * direction), clip=2.0, z=0.0)
    assert got.norm() <= 2.0
    assert got.norm() == pytest.approx(min(norm, 2.0), rel=1e-5)
    assert torch.allclose(got["w"], min(norm, 2.0) * direction, rtol=1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_update_that_is_not_finite_counts_for_nothing(bad):
    got = gaussian_update(client(), "u", Params(w=torch.tensor([1.0, bad])), clip=2.0, z=0.0)
    assert torch.equal(got["w"], torch.zeros(2))


def test_the_noise_on_an_update_does_not_depend_on_it():
    for scale in (0.0, 1e-3, 1e3):
        me = client()
        dx = Params(w=torch.full((N,), scale, dtype=torch.float64))
        got = gaussian_update(me, "u", dx, clip=0.5, z=2.0)
        assert sd_is(got["w"] - dx.clipped(0.5)["w"], 1.0)
        # two updates are 1 apart, twice the clip: with or without the client, or with any other
        how = {"relation": "either", "noise": "seeded"}
        assert only(me.spent) == Release(
            "u", "client", "5", "server", Gaussian(1.0), ((3, 3),), **how
        )


@given(
    x=st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=20),
    bound=st.floats(1e-3, 1e3),
)
def test_clipping_never_passes_its_bound(x, bound):
    assert Params(w=torch.tensor(x)).clipped(bound).norm() <= bound * (1 + 1e-9)


@given(rows=st.lists(st.lists(st.floats(width=32), min_size=3, max_size=3), min_size=1, max_size=6))
@settings(max_examples=50, deadline=None)
def test_rows_are_clipped_one_by_one(rows):
    got = clip_rows(torch.tensor(rows), 1.5)
    assert bool((torch.linalg.vector_norm(got.double(), dim=1) <= 1.5 * (1 + 1e-6)).all())
    for row, out in zip(torch.tensor(rows), got, strict=True):
        norm = float(row.double().norm())
        expected = (
            torch.zeros(3)
            if not bool(row.isfinite().all())
            else row * min(1.0, 1.5 / norm if norm else 1.0)
        )
        # a float32 norm overflows beyond, and the row counts for nothing
        if norm < 1e19 or not math.isfinite(norm):
            torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-6)


def test_published_noise_is_drawn_but_certifies_nothing():
    me = client()
    got = claimed_gaussian(me, "w", ZERO, sd=0.3, why="because")
    assert sd_is(got["w"], 0.3)
    assert only(me.spent) == Release(
        "w", "example", "5", "server", NonPrivate("because"), ((3, 3),), noise="seeded"
    )


# --------------------------------------------------------------------------------------------------
# DP-SGD steps


def test_private_steps_write_all_their_releases_at_once_before_the_first():
    me = client()
    PrivateSteps(me, q=0.25, clip=2.0, z=1.5, steps=40)
    line = only(me.spent)
    assert line == Release(
        "dp-sgd",
        "example",
        "5",
        "server",
        Gaussian(1.5),
        ((3, 3),),
        40,
        Sampling("poisson", 0.25),
        noise="seeded",
    )
    assert line.total() == 40


def test_private_steps_noise_and_refusal_of_more_than_was_written():
    steps = PrivateSteps(client(), q=0.5, clip=2.0, z=1.5, steps=2)
    outputs = [steps.noised([ZERO["w"], torch.ones(3)]) for _ in range(2)]
    for a, b in outputs:
        assert sd_is(a, 3.0)
        assert b.shape == (3,)
    assert not torch.equal(outputs[0][0], outputs[1][0])
    with pytest.raises(RuntimeError, match="more releases than the ledger was told of"):
        steps.noised([torch.zeros(1)])


@pytest.mark.parametrize("q", [0.05, 0.5, 0.9])
def test_each_example_is_in_each_sample_independently(q):
    n, T = 200, 400
    samples = list(PrivateSteps(client(), q=q, clip=1.0, z=1.0, steps=T).samples(n))
    table = np.zeros((T, n))
    for t, rows in enumerate(samples):
        assert np.array_equal(rows, np.unique(rows))
        table[t, rows] = 1
    assert len(samples) == T
    for counts, of in ((table.sum(), n * T), *((c, T) for c in table.sum(0))):
        assert stats.binomtest(int(counts), of, q).pvalue > 1e-6
    sizes = table.sum(1)  # sizes vary as a binomial does: a fixed-size sample would not
    assert 0.7 < sizes.var() / (n * q * (1 - q)) < 1.35
    pairs = np.corrcoef(table[:, :20].T)
    assert np.abs(pairs - np.eye(20)).max() < 0.3


class Words:
    """A source whose words are given."""

    def __init__(self, *words):
        self.words = np.array(words, np.uint64)

    def bits(self, n):
        assert n == len(self.words)
        return self.words


@pytest.mark.parametrize("q", [0.5, 0.1, 1e-6, 2.0**-64, 1 - 2.0**-53])
def test_a_sample_takes_a_share_q_of_all_words(q):
    """The words below q 2^64 are in: at most a share q of all, short of it by less than 2^-64."""
    first_out = math.floor(Fraction(q) * 2**64)
    steps = PrivateSteps(client(), q=q, clip=1.0, z=1.0, steps=1)
    steps.draw = Words(0, first_out - 1, first_out, 2**64 - 1)
    assert [rows.tolist() for rows in steps.samples(4)] == [[0, 1]]


def test_rate_one_is_everybody_every_time():
    me = client()
    steps = PrivateSteps(me, q=1.0, clip=1.0, z=1.0, steps=3)
    assert [rows.tolist() for rows in steps.samples(4)] == [[0, 1, 2, 3]] * 3
    assert only(me.spent).sampling == Sampling()


def test_samples_may_be_empty_and_cost_the_same():
    me = client()
    steps = PrivateSteps(me, q=0.01, clip=1.0, z=1.0, steps=50)
    assert any(len(rows) == 0 for rows in steps.samples(5))
    assert only(me.spent).total() == 50


@pytest.mark.parametrize(
    "changes",
    [
        {"q": 0.0},
        {"q": 1.1},
        {"q": math.nan},
        {"clip": 0.0},
        {"clip": math.inf},
        {"z": -1.0},
        {"z": math.nan},
    ],
)
def test_private_steps_refuse_bad_numbers_before_they_write(changes):
    me = client()
    with pytest.raises(BadInput):
        PrivateSteps(me, **{"q": 0.5, "clip": 1.0, "z": 1.0, "steps": 3} | changes)
    assert len(me.spent) == 0


# --------------------------------------------------------------------------------------------------
# the server's


def mean_of(server, points, like=None, law=None, **more):
    settings_ = {"clip": 1.0, "z": 0.0, "out_of": 6.0} | more
    like = Params(w=torch.zeros(2)) if like is None else like
    return gaussian_mean(server, replies(server, points, law), lambda p: p, like=like, **settings_)


def unit(angle, norm=1.0):
    return Params(w=norm * torch.tensor([math.cos(angle), math.sin(angle)]))


@given(
    norms=st.lists(st.floats(0, 1e6), min_size=6, max_size=6),
    angles=st.lists(st.floats(0, 7), min_size=6, max_size=6),
)
@settings(max_examples=40, deadline=None)
def test_one_client_moves_the_mean_by_at_most_its_share(norms, angles):
    points = {str(i): unit(a, n) for i, (a, n) in enumerate(zip(angles, norms, strict=True))}
    whole = mean_of(cohort(), points)
    for gone in points:
        without = mean_of(cohort(), {i: p for i, p in points.items() if i != gone})
        assert (whole - without).norm() <= 1 / 6 + 1e-6


def test_the_mean_is_uniform_and_its_denominator_fixed():
    points = {str(i): unit(i, 0.1 * (i + 1)) for i in range(6)}
    want = sum(points[i]["w"] for i in points) / 6
    assert torch.allclose(mean_of(cohort(), points)["w"], want)
    points.pop("2")
    want = sum(points[i]["w"] for i in points) / 6
    assert torch.allclose(mean_of(cohort(), points)["w"], want)  # not / 5
    assert torch.equal(mean_of(cohort(), {})["w"], torch.zeros(2))
    assert torch.allclose(
        mean_of(cohort(), {"0": unit(0, 50.0)}, out_of=2.5)["w"], torch.tensor([0.4, 0.0])
    )


def test_roundings_of_the_sum_do_not_add_to_what_a_client_moves(monkeypatch):
    """In float32, 2000 points of 1/3 are 3 x 10^-3 off, and who is left out moves that, too."""
    sums = []
    monkeypatch.setattr(
        mechanisms, "noised", lambda draw, values, sd: sums.append(*values) or values
    )
    server = cohort(2000)
    points = {str(i): Params(w=torch.tensor([1 / 3])) for i in range(2000)}
    for gone in (None, "0", "1000", "1999"):
        mean_of(server, {i: p for i, p in points.items() if i != gone}, Params(w=torch.zeros(1)))
    whole, *others = map(float, sums)
    assert all(abs(whole - other - float(torch.tensor(1 / 3))) < 1e-11 for other in others)


@pytest.mark.parametrize("count", [0, 1, 6])
def test_the_noise_of_the_mean_is_on_the_sum(count):
    points = {str(i): ZERO for i in range(count)}
    got = mean_of(cohort(), points, like=ZERO, clip=0.5, z=3.0)
    assert got.released
    assert sd_is(got["w"], 3.0 * 0.5 / 6)
    higher = mean_of(cohort(), points, like=ZERO, clip=0.5, z=3.0, noise_z=4.0)
    assert sd_is(higher["w"], 4.0 * 0.5 / 6)


@pytest.mark.parametrize(
    ("law", "sampling"),
    [
        (Everyone(), Sampling()),
        (Poisson(0.5), Sampling("poisson", 0.5)),
        (Poisson(1.0), Sampling()),
        (Fixed(4), Sampling("fixed", 4 / 6)),
        (Fixed(6), Sampling()),
    ],
)
@pytest.mark.parametrize("noise", ["seeded", "os"])
def test_the_means_ledger_line_names_the_law_that_ran(law, sampling, noise):
    server = cohort(noise=noise)
    mean_of(server, {str(i): unit(i) for i in range(6)}, law=law, z=2.0)
    assert only(server.ledger) == Release(
        "fed.train (mean)", "client", FEDERATION, "clients", Gaussian(2.0), ((2, 2),), 1, sampling,
        covers="fed.train", noise=noise,
    )  # fmt: skip


def test_a_mean_done_again_repeats_seeded_noise_and_counts_fresh_noise():
    points = {str(i): unit(i) for i in range(6)}
    server = cohort()
    a, b = (mean_of(server, points, z=1.0) for _ in range(2))
    assert torch.equal(a["w"], b["w"])
    assert sum(line.total() for line in server.ledger) == 1
    server = cohort(noise="os")
    a, b = (mean_of(server, points, z=1.0) for _ in range(2))
    assert not torch.equal(a["w"], b["w"])
    assert sum(line.total() for line in server.ledger) == 2


def test_the_mean_of_another_round_has_other_noise():
    server = cohort()
    outputs = [
        gaussian_mean(
            server,
            replies(server, {}, round=t),
            lambda p: p,
            like=unit(0),
            clip=1.0,
            z=1.0,
            out_of=6,
        )
        for t in range(3)
    ]
    assert all(not torch.equal(a["w"], b["w"]) for a, b in itertools.combinations(outputs, 2))


def test_a_published_mean_certifies_nothing():
    server = cohort()
    points = {str(i): ZERO + Params(w=torch.full((N,), 1.0)) for i in range(4)}
    got = claimed_mean(
        server, replies(server, points), lambda p: p, clip=math.sqrt(N), sd=2.0, why="raw median"
    )
    assert sd_is(got["w"], 2.0 / 4, mean=1.0)
    line = only(server.ledger)
    assert line.event == NonPrivate("raw median")
    assert line.covers is None
    assert sd_is(public_noise(server, ZERO, sd=0.7, t=1)["w"], 0.7)


# ----------------------------------------------------------------------------------------------
# written before drawing


def no_draw(*args):
    raise AssertionError("noise was drawn")


TRIALS = {
    "gaussian": lambda me: gaussian(me, "x", unit(0), sensitivity=1.0, z=1.0),
    "claimed": lambda me: claimed_gaussian(me, "x", unit(0), sd=1.0, why="no"),
    "update": lambda me: gaussian_update(me, "x", unit(0), clip=1.0, z=1.0),
    "steps": lambda me: PrivateSteps(me, 0.5, 1.0, 1.0, 3),
    "discrete": lambda me: discrete_laplace(me, "x", np.zeros(3, np.int64), epsilon=1.0),
    "exponential": lambda me: exponential(
        me, "x", np.zeros(3), sensitivity=1.0, epsilon=1.0, relation="replace"
    ),
}


@pytest.mark.parametrize("trial", TRIALS.values(), ids=TRIALS)
def test_a_refused_budget_draws_nothing_and_writes_nothing(monkeypatch, trial):
    monkeypatch.setattr(mechanisms, "source", no_draw)
    me = client(approve=refuse)
    with pytest.raises(BudgetReached):
        trial(me)
    assert len(me.spent) == 0
    assert me.rng.bit_generator.seed_seq.n_children_spawned == 0


@pytest.mark.parametrize("trial", TRIALS.values(), ids=TRIALS)
def test_the_line_is_there_when_the_first_number_is_drawn(monkeypatch, trial):
    me = client(noise="os")
    seen = []
    monkeypatch.setattr(
        mechanisms,
        "source",
        lambda noise, rng: seen.append((noise, len(me.spent))) or FromSeed(rng),
    )
    trial(me)
    assert seen == [("os", 1)]
    assert only(me.spent).noise == "os"


def test_the_server_too_writes_first(monkeypatch):
    monkeypatch.setattr(mechanisms, "source", no_draw)
    server = cohort(approve=refuse)
    with pytest.raises(BudgetReached):
        mean_of(server, {}, z=1.0)
    assert len(server.ledger) == 0
    server = cohort()
    with pytest.raises(AssertionError, match="noise was drawn"):
        mean_of(server, {}, z=1.0)
    assert len(server.ledger) == 1


def test_the_budget_sees_the_release_that_is_about_to_happen():
    seen = []
    me = client(approve=lambda ledger: seen.append(list(ledger)))
    gaussian(me, "x", unit(0), sensitivity=1.0, z=1.0)
    assert seen == [list(me.spent)]


# -------------------------------------------------------------------------------------------------
# numbers and choices


@pytest.mark.parametrize(("epsilon", "sensitivity"), [(1.0, 1), (0.3, 1), (1.0, 2), (4.0, 1)])
def test_discrete_laplace_noise(epsilon, sensitivity):
    me = client()
    got = (
        discrete_laplace(me, "h", np.full((N,), 10), epsilon=epsilon, sensitivity=sensitivity).value
        - 10
    )
    assert got.dtype == np.int64
    law = stats.dlaplace(epsilon / sensitivity)
    edge = int(law.ppf(1 - 20 / N))
    bins = np.arange(-edge, edge + 1)
    seen = np.array([(got < -edge).sum(), *((got == k).sum() for k in bins), (got > edge).sum()])
    want = N * np.array([law.cdf(-edge - 1), *law.pmf(bins), law.sf(edge)])
    assert stats.chisquare(seen, want * seen.sum() / want.sum()).pvalue > 1e-6
    assert only(me.spent) == Release(
        "h", "example", "5", "server", Pure(epsilon), ((3, 3),), noise="seeded"
    )


@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_the_exponential_mechanism_chooses_by_its_formula(epsilon):
    utility, sensitivity = np.array([0.0, -1.0, 2.0, 1.5, -30.0]), 0.5
    counts = np.zeros(5)
    for run in range(5000):
        me = client(seed=run)
        got = exponential(
            me, "x", utility, sensitivity=sensitivity, epsilon=epsilon, relation="replace"
        )
        counts[got.value] += 1
    weights = np.exp(epsilon * utility / (2 * sensitivity))
    want = 5000 * weights / weights.sum()
    keep = want > 5
    assert (
        stats.chisquare(counts[keep], want[keep] * counts[keep].sum() / want[keep].sum()).pvalue
        > 1e-6
    )
    assert counts[~keep].sum() < 30
    line = only(me.spent)
    assert (line.event, line.relation, line.unit) == (Pure(epsilon), "replace", "example")


def test_noise_that_64_bits_do_not_hold_counts_as_the_most_that_they_do():
    got = discrete_laplace(client(), "h", np.zeros(40, np.int64), epsilon=1e-25).value
    assert set(got) == {-(2**63), 2**63 - 1}
    whole = discrete_laplace(client(), "h", np.zeros((2, 3), np.int64), epsilon=1.0).value
    assert whole.shape == (2, 3)


def test_discrete_laplace_takes_whole_numbers_only():
    with pytest.raises(TypeError):
        discrete_laplace(client(), "h", np.array([0.5]), epsilon=1.0)


def test_the_exponential_mechanism_stands_large_utilities():
    got = exponential(
        client(), "x", np.array([-1e9, 1e9, 0.0]), sensitivity=1.0, epsilon=1.0, relation="replace"
    )
    assert got.value == 1


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf])
def test_an_epsilon_must_be_positive(epsilon):
    me = client()
    for trial in (
        lambda: discrete_laplace(me, "x", np.zeros(1), epsilon=epsilon),
        lambda: exponential(
            me, "x", np.zeros(2), sensitivity=1.0, epsilon=epsilon, relation="replace"
        ),
    ):
        with pytest.raises(BadInput, match="epsilon"):
            trial()
    assert len(me.spent) == 0


@pytest.mark.parametrize(
    "bad", [{"z": -1.0}, {"z": math.nan}, {"sensitivity": 0.0}, {"sensitivity": math.nan}]
)
def test_gaussian_refuses_bad_numbers_before_it_writes(bad):
    me = client()
    with pytest.raises(BadInput):
        gaussian(me, "x", unit(0), **{"sensitivity": 1.0, "z": 1.0} | bad)
    assert len(me.spent) == 0


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_noisy_max_wins_as_often_as_it_should(kind):
    counts = np.tile([5.0, 3.0], (N, 1))
    draw = FromSeed(np.random.default_rng(0))
    assert set(noisy_max(draw, counts, scale=1e-9, kind=kind)) == {0}
    wins = int((noisy_max(draw, counts, scale=2.0, kind=kind) == 0).sum())
    # the difference of two Laplace of scale b: P(L1 - L2 > -d) = 1 - e^(-d/b) (2 + d/b) / 4
    chance = (
        stats.norm.cdf(2 / (2 * math.sqrt(2))) if kind == "gaussian" else 1 - math.exp(-1) * 3 / 4
    )
    assert stats.binomtest(wins, N, chance).pvalue > 1e-6


# --------------------------------------------------------------------------------------------------
# adaptive clip


@given(z=st.floats(0.05, 50), out_of=st.floats(1, 1e4))
def test_bits_and_update_together_cost_what_z_does(z, out_of):
    follow = AdaptiveClip(z, out_of)
    assert follow.bit_noise >= z
    assert follow.update_z > z
    assert follow.update_z**-2 + (2 * follow.bit_noise) ** -2 == pytest.approx(z**-2, rel=1e-9)


def test_the_clip_finds_the_median_of_the_norms():
    norms = np.array([0.2, 0.5, 1.0, 3.0, 8.0, 20.0, 21.0])
    follow, server = AdaptiveClip(0.0, out_of=7.0), cohort(7)
    clips = [1e-3]
    for t in range(300):
        clips.append(follow.next(server, clips[-1], list(norms <= clips[-1]), t))
    tail = np.array(clips[100:])
    assert np.exp(np.log(tail).mean()) == pytest.approx(3.0, rel=0.25)
    clips = [1e3]
    for t in range(300):
        clips.append(follow.next(server, clips[-1], list(norms <= clips[-1]), t))
    assert np.exp(np.log(clips[100:]).mean()) == pytest.approx(3.0, rel=0.25)


def test_one_step_of_the_clip_without_noise(monkeypatch):
    monkeypatch.setattr(mechanisms, "noised", lambda draw, values, sd: list(values))
    follow = AdaptiveClip(1.0, out_of=4.0)
    for below in range(5):
        bits = [True] * below + [False] * (4 - below)
        assert follow.next(cohort(), 2.0, bits, 0) == pytest.approx(
            2.0 * math.exp(-0.2 * (below / 4 - 0.5))
        )
    other = AdaptiveClip(1.0, out_of=4.0, quantile=0.9, lr=0.5)
    assert other.next(cohort(), 2.0, [True] * 4, 0) == pytest.approx(2.0 * math.exp(-0.5 * 0.1))


def test_the_noise_on_the_bits_has_its_stated_size():
    follow = AdaptiveClip(3.0, out_of=10.0)
    steps = [
        math.log(follow.next(cohort(seed=s), 1.0, [True] * 5 + [False] * 5, 0)) for s in range(3000)
    ]
    assert sd_is(steps, 0.2 * 3.0 / 10.0)
