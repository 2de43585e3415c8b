"""Private moments.

What one record can move, what the ledger says, and what comes back when there is no noise.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from often import often

from tacit import privacy
from tacit.core import BadInput, Client, Gaussian, Ledger, Params
from tacit.data.examples import Examples
from tacit.data.federated import LocalData
from tacit.privacy import mechanisms
from tacit.privacy.audit import judge
from tacit.privacy.gdp import gdp_mu
from tacit.synthesis import moments as room
from tacit.synthesis.features import hog
from tacit.synthesis.moments import (
    COVARIANCES,
    MEANS,
    Gaussians,
    Moments,
    Terms,
    counts_and_means,
    denoised,
    encoded,
    holders,
    pack,
    plain,
    pooled,
    release,
    unpack,
)

K, CLASSES, DELTA = 3, 2, 1e-5
TERMS = Terms(gdp_mu(1.0, DELTA))
SHARP = Terms(1e7, R=10.0)  # next to no noise, and nothing is clipped


pytestmark = pytest.mark.usefixtures("one_thread")


def client(x=None, y=None, seed=0, spent=None):
    data = None
    if x is not None:
        data = LocalData(
            Examples(x, torch.as_tensor(y)),
            np.arange(len(x)),
            (0.5,) * x.shape[1],
            (0.25,) * x.shape[1],
        )
    ledger = Ledger() if spent is None else spent
    return Client(
        "0", 0, data, data, torch.nn.Identity(), {}, np.random.default_rng(seed), "seeded", ledger
    )


def drawn(n, k=K, classes=CLASSES, seed=0):
    """Return points well inside of the unit ball and their labels."""
    rng = np.random.default_rng(seed)
    y = torch.from_numpy(rng.integers(0, classes, n))
    return torch.from_numpy(0.05 * rng.normal(size=(n, k))) + 0.3 * torch.eye(
        classes, k, dtype=torch.float64
    )[y], y


# ------------------------------------------------------------------------------------------------
# what a record moves


def bare(F, y, terms, q=None, shared=False, odd=None):
    """Return what would be released without noise, and the sensitivities that were promised.

    Q may be given.
    """
    values, bounds = {}, {}

    def exact(me, what, value, *, sensitivity, z, **rest):
        (name,) = value
        values[name], bounds[name] = value[name], (sensitivity, z)
        return Params({name: q}) if name == "q" and q is not None else value

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mechanisms, "gaussian", exact)
        release(client(), F, y, CLASSES, terms, shared=shared, odd=odd)
    return values, bounds


anything = st.one_of(
    st.floats(-2, 2),
    st.sampled_from([0.0, 1e30, -3e38, 1e300, math.nan, math.inf, -math.inf]),
    st.floats(width=64),
)
records = st.lists(
    st.tuples(st.lists(anything, min_size=K, max_size=K), st.integers(0, CLASSES - 1)), max_size=5
)
constants = st.builds(
    Terms, st.floats(0.01, 10), st.floats(0.05, 0.95), s=st.floats(0.05, 3), R=st.floats(0.05, 3)
)


def tensors(rows):
    F = torch.tensor([f for f, _ in rows], dtype=torch.float64).reshape(len(rows), K)
    return F, torch.tensor([y for _, y in rows], dtype=torch.int64)


@given(
    records,
    records.filter(len),
    st.lists(st.floats(-9, 9), min_size=8, max_size=8),
    constants,
    st.booleans(),
    st.sampled_from([None, [False, True, False], [True, True, False], [False, False, False]]),
)
@often(60)
def test_no_record_moves_more_than_the_noise_is_made_for(others, one, q, terms, shared, mirrored):
    """Whatever its features are. Covariances are centred at means that are known.

    Any q, the same in both worlds.
    """
    odd = None if mirrored is None else torch.tensor(mirrored)
    even = K if odd is None else K - sum(mirrored)
    known = torch.tensor(q, dtype=torch.float64).view(CLASSES, K + 1)[:, K - even :]
    without, bounds = bare(*tensors(others), terms, known, shared, odd)
    with_, same = bare(*tensors([*others, one[0]]), terms, known, shared, odd)
    assert bounds == same  # public: not a function of the data
    for name, bound in (("q", math.sqrt(1 + terms.s**2)), ("M", terms.R**2)):
        sensitivity, _ = bounds[name]
        assert sensitivity == pytest.approx(bound)
        assert float((with_[name] - without[name]).norm()) <= bound * (1 + 1e-9)


def test_the_bounds_are_reached():
    far, near = torch.tensor([[-1.0, 0, 0]]).double(), torch.tensor([0])
    known = torch.tensor([[1000.0, 0, 0, 500], [0, 0, 0, 0]]).double()  # a mean of nearly (1, 0, 0)
    got, _ = bare(far, near, TERMS, known)
    assert float(got["q"].norm()) == pytest.approx(math.sqrt(1.25), rel=1e-6)
    assert float(got["M"].norm()) == pytest.approx(0.25, rel=1e-5)


def test_the_bound_of_two_halves_is_reached_by_either_and_by_both():
    odd, known = torch.tensor([False, True, True]), torch.tensor([[0.0, 500], [0, 0]]).double()
    for row in ([1.0, 0, 0], [0, 1, 0], [0.6, 0, -0.6], [0.5, 0.3, 0.4]):
        got, bounds = bare(torch.tensor([row]).double(), torch.tensor([0]), TERMS, known, odd=odd)
        assert got["q"].shape == (CLASSES, 2)  # means of the even one alone
        assert got["M"].shape == (CLASSES, 1 + 3)
        assert float(got["M"].norm()) == pytest.approx(0.25, rel=1e-5)
        assert bounds["M"] == bare(torch.zeros(0, K), torch.zeros(0).long(), TERMS)[1]["M"]
    row = torch.tensor([[0.1, 0.06, 0.08]]).double()  # halves of one size, within the bound
    got, _ = bare(row, torch.tensor([0]), TERMS, known, odd=odd)
    torch.testing.assert_close(got["M"][0, :1], math.sqrt(2) * row[0, :1] ** 2)


def test_noise_is_as_much_as_the_budget_asks_for():
    """mu1^2 + mu2^2 = mu^2, and the noise on each part is its bound over its mu."""
    assert math.hypot(TERMS.mu1, TERMS.mu2) == pytest.approx(TERMS.mu)
    assert TERMS.mu1**2 == pytest.approx(0.2 * TERMS.mu**2)
    none, no_labels = torch.zeros(0, K), torch.zeros(0, dtype=torch.int64)
    many = [release(client(seed=i), none, no_labels, CLASSES, TERMS) for i in range(300)]
    assert float(torch.stack([r["q"] for r in many]).std()) == pytest.approx(
        TERMS.sd_sums, rel=0.08
    )
    whole = torch.stack([unpack(v) for r in many for v in r["M"]])
    assert float(whole.diagonal(dim1=1, dim2=2).std()) == pytest.approx(TERMS.sd_scatter, rel=0.08)
    assert float(whole[:, 0, 1].std()) == pytest.approx(TERMS.sd_scatter / math.sqrt(2), rel=0.15)


def test_records_that_are_no_numbers_count_for_nothing():
    F, y = drawn(6)
    G = torch.cat([F, torch.tensor([[math.nan, 0, 0], [math.inf, 0, 0]]).double()])
    a, _ = bare(F, y, TERMS)
    b, _ = bare(G, torch.cat([y, torch.tensor([0, 1])]), TERMS)
    assert all(torch.equal(a[name], b[name]) for name in ("q", "M"))


@given(st.lists(st.floats(-5, 5), min_size=10, max_size=10))
@often(30)
def test_packing_keeps_norms_and_comes_back(entries):
    i, j = torch.triu_indices(4, 4)
    M = torch.zeros(4, 4, dtype=torch.float64)
    M[i, j] = M[j, i] = torch.tensor(entries, dtype=torch.float64)
    assert float(pack(M).norm()) == pytest.approx(float(M.norm()), rel=1e-7, abs=1e-12)
    assert float(pack(M).norm()) <= float(M.norm()) * (1 + 1e-12)  # rounding never makes it longer
    torch.testing.assert_close(unpack(pack(M)), M)


# --------------------------------------------------------------------------------------------------
# the ledger


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_the_ledger_has_two_lines_that_cost_what_was_asked_for(epsilon, shared):
    terms, me = Terms(gdp_mu(epsilon, DELTA)), client()
    sent = release(me, *drawn(20), CLASSES, terms, shared=shared)
    assert sent.released
    assert [(line.what, line.event) for line in me.spent] == [
        (MEANS, Gaussian(1 / terms.mu1)),
        (COVARIANCES, Gaussian(1 / terms.mu2)),
    ]
    for ledger in (me.spent, Ledger(terms.lines("0", 1, 1))):
        got = privacy.epsilon(ledger, unit="example", observer="server", delta=DELTA)
        assert got == pytest.approx(epsilon, rel=1e-6)
        assert got <= epsilon * (1 + 1e-9)


def parts_of(present, run, terms, planted=1.0):
    """Return a release with or without a canary that lies as far from its class as it can."""
    others, labels = (
        torch.tensor([[0.6, 0.0], [0.7, 0.1], [0.5, -0.1]] * 40).double(),
        torch.zeros(120, dtype=torch.int64),
    )
    F = torch.cat([others, torch.tensor([[-30.0, 1.0]]).double()]) if present else others
    y = torch.cat([labels, labels[:1]]) if present else labels
    me = client(seed=[run, present])
    return release(me, F, y, 1, Terms(terms.mu * planted, terms.share, terms.s, terms.R)), me.spent


def canary_trial(terms, planted=1.0):
    """Score both parts, each along what the canary adds to it, and their sum.

    The sufficient statistic of the two.
    """
    away = torch.tensor([-30.0, 1.0]) / math.hypot(30, 1)
    first = torch.cat([away, torch.tensor([terms.s])]) / math.sqrt(1 + terms.s**2)
    d = (away - torch.tensor([0.6, 0.0])) / float((away - torch.tensor([0.6, 0.0])).norm())
    second = pack(torch.outer(d, d))

    def trial(present, run):
        sent, _ = parts_of(present, run, terms, planted)
        means = float(sent["q"][0] @ first) * terms.mu1 / math.sqrt(1 + terms.s**2)
        scatter = float(sent["M"][0] @ second) * terms.mu2 / terms.R**2
        return [means, scatter, terms.mu1 * means + terms.mu2 * scatter]

    return trial


@pytest.mark.slow
def test_a_canary_in_both_parts():
    terms = Terms(gdp_mu(4.0, DELTA), share=0.5)
    certified = privacy.epsilon(
        parts_of(True, 0, terms)[1], unit="example", observer="server", delta=DELTA
    )
    assert certified == pytest.approx(4.0)
    verdict = judge(canary_trial(terms), certified=certified, delta=DELTA, runs=1000)
    assert not verdict.broken, verdict.line()
    assert not verdict.wasteful, verdict.line()
    assert verdict.bound > certified / 3, verdict.line()


@pytest.mark.slow
def test_the_canary_finds_noise_that_is_too_small():
    terms = Terms(gdp_mu(4.0, DELTA), share=0.5)
    verdict = judge(canary_trial(terms, planted=3.0), certified=4.0, delta=DELTA, runs=500)
    assert verdict.broken, verdict.line()


# ------------------------------------------------------------------------------------------------
# what the server does


def test_counts_and_means_without_noise():
    F, y = drawn(50)
    q = release(client(), F, y, CLASSES, SHARP)["q"].double()
    n, m = counts_and_means(q, SHARP)
    for c in range(CLASSES):
        assert float(n[c]) == pytest.approx(int((y == c).sum()), abs=1e-3)
        torch.testing.assert_close(m[c], F[y == c].mean(0), atol=1e-5, rtol=0)


def test_a_mean_that_is_noise_is_drawn_to_zero():
    # sums of class 0 are below their noise
    q = torch.tensor([[1.0, -1.0, 1.0, 2.0], [900.0, 0.0, 0.0, 500.0]])
    n, m = counts_and_means(q, TERMS)
    assert n.tolist() == [4.0, 1000.0]
    assert m[0].tolist() == [0.0, 0.0, 0.0]
    kept = 1 - 3 * TERMS.sd_sums**2 / 900**2  # James and Stein: 1 - k sd^2 / |sums|^2
    torch.testing.assert_close(m[1], torch.tensor([0.9 * kept, 0.0, 0.0]))


@pytest.mark.parametrize(
    ("counts", "use"),
    [
        ([100.0], [1]),
        ([-3.0], [1]),  # somebody has to be asked
        ([100.0, 100.0, 100.0], [1, 1, 1]),
        ([100.0, 41.0], [1, 0]),  # 141 / sqrt 2 = 99.7 is less than 100
        ([100.0, 42.0], [1, 1]),  # 142 / sqrt 2 = 100.4 is more
        ([100.0, 0.0, -5.0], [1, 0, 0]),
        ([0.0, 7.0, 600.0], [0, 0, 1]),
    ],
)
def test_who_holds_a_class(counts, use):
    assert holders(torch.tensor(counts)).tolist() == use


@pytest.mark.parametrize("n", [40, 400])
def test_without_noise_the_covariance_is_that_of_the_sample(n):
    F, _ = drawn(n)
    d = F - F.mean(0)
    found = denoised(d.T @ d, torch.tensor(float(n)), 1, SHARP, ridge=1.0)
    torch.testing.assert_close(
        found, torch.from_numpy(np.cov(F.numpy().T, bias=True)), atol=1e-6, rtol=0
    )


def test_a_spectrum_loses_its_noise():
    """Eigenvalues below the edge become their mean; one above it becomes sqrt(seen^2 - edge^2)."""
    n = torch.tensor(100.0).double()
    edge = TERMS.sd_scatter * math.sqrt(2 * K) / 100
    seen = torch.diag(torch.tensor([5 * edge, 0.5 * edge, -0.5 * edge]).double()) * n
    found = denoised(seen, n, 1, TERMS, ridge=1.0)
    kept = math.sqrt(24) * edge
    rest = (5 * edge - kept) / 3
    torch.testing.assert_close(found, torch.diag(torch.tensor([kept + rest, rest, rest]).double()))
    assert float(found.trace()) == pytest.approx(5 * edge)


@pytest.mark.parametrize("shared", [False, True])
def test_many_clients_amount_to_one(shared):
    """With next to no noise it does not matter how records of the same means are divided."""
    F, y = drawn(60)
    F, y = torch.cat([F] * 3), torch.cat([y] * 3)
    alone = pooled(
        [release(client(), F, y, CLASSES, SHARP, shared=shared)], SHARP, mix=0.5, ridge=1.0
    )
    replies = [
        release(client(seed=i), F[i : i + 60], y[i : i + 60], CLASSES, SHARP, shared=shared)
        for i in (0, 60, 120)
    ]
    many = pooled(replies, SHARP, mix=0.5, ridge=1.0)
    for a, b in ((alone.n, many.n), (alone.m, many.m), (alone.S, many.S)):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
    d = F - alone.m[y]
    both = d.T @ d / len(F)
    for c in range(CLASSES):
        own = both if shared else 0.5 * both + 0.5 * (d[y == c].T @ d[y == c]) / int((y == c).sum())
        torch.testing.assert_close(alone.S[c], own, atol=1e-6, rtol=0)


@pytest.mark.parametrize("shared", [False, True])
def test_halves_are_what_records_and_their_mirror_images_have_together(shared):
    """Records with the opposite in odd features beside them, and nothing known of mirrors."""
    odd = torch.tensor([False, True, False])
    F, y = drawn(60)
    both = torch.cat([F, torch.where(odd, -F, F)])
    how = {"mix": 0.5, "ridge": 1.0}
    alone = pooled([release(client(), F, y, CLASSES, SHARP, shared=shared, odd=odd)], SHARP, **how)
    other = pooled(
        [release(client(), both, torch.cat([y, y]), CLASSES, SHARP, shared=shared)], SHARP, **how
    )
    torch.testing.assert_close(2 * alone.n, other.n, atol=1e-4, rtol=0)
    torch.testing.assert_close(alone.m, other.m, atol=1e-5, rtol=0)
    torch.testing.assert_close(alone.S, other.S, atol=1e-6, rtol=0)
    assert not alone.m[:, 1].any()
    assert not alone.S[:, 1, [0, 2]].any()


def test_noise_of_each_half_is_taken_out_by_its_own_size():
    """Nothing but noise: each half has an edge and a rest of its own, with half of the noise."""
    odd = torch.arange(60) % 2 == 1
    none = torch.zeros(0, 60), torch.zeros(0, dtype=torch.int64)
    sent = release(client(), *none, CLASSES, TERMS, odd=odd)
    assert sent["M"].shape == (CLASSES, 2 * 30 * 31 // 2)
    edge = TERMS.sd_scatter / math.sqrt(2) * math.sqrt(2 * 30)
    packed = sent["M"][0].double()
    for part in packed.split(30 * 31 // 2):
        top = float(torch.linalg.eigvalsh(unpack(part) / math.sqrt(2)).abs().max())
        assert 0.8 * edge < top < 1.2 * edge
    weak = Terms(0.01)
    sent = release(client(), *none, CLASSES, weak, odd=odd)
    cut = pooled([sent], weak, mix=0.5, ridge=1.0, ordered=True)
    assert cut.S.shape == (CLASSES, 32, 32)
    assert not cut.S[:, ::2, 1::2].any()
    assert not cut.m[:, 1::2].any()


def test_clients_that_do_not_agree_on_mirrors_are_refused():
    F, y = drawn(10)
    odd = torch.tensor([False, True, False])
    sent = release(client(), F, y, CLASSES, TERMS, odd=odd)
    for other in (
        release(client(), F, y, CLASSES, TERMS, odd=odd.roll(1)),
        Params(q=sent["q"], M=sent["M"]),
    ):
        for replies in ([sent, other], [other, sent]):
            with pytest.raises(BadInput, match="do not agree on which features are odd"):
                pooled(replies, TERMS, mix=0.5, ridge=1.0)
    with pytest.raises(BadInput, match="2 means, and other features"):
        pooled([Params({**sent, "odd": torch.zeros(7)})], TERMS, mix=0.5, ridge=1.0)


def test_clients_that_lack_a_class_are_left_out_of_it():
    F, y = drawn(400)
    terms = Terms(2.0)
    replies = [
        release(client(seed=c), F[y == c], y[y == c], CLASSES, terms) for c in range(CLASSES)
    ]
    g = pooled(replies, terms, mix=0.5, ridge=1.0)
    want = (replies[0]["q"][0, -1] / terms.s, replies[1]["q"][1, -1] / terms.s)
    torch.testing.assert_close(g.n, torch.stack(want).double())


def test_too_little_signal_keeps_the_first_features_only():
    F, y = drawn(40, k=50)
    weak = Terms(0.01)
    sent = release(client(), F, y, CLASSES, weak)
    assert pooled([sent], weak, mix=0.5, ridge=1.0).m.shape == (CLASSES, 50)
    cut = pooled([sent], weak, mix=0.5, ridge=1.0, ordered=True)
    assert cut.m.shape == (CLASSES, 32)
    assert cut.S.shape == (CLASSES, 32, 32)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("size", [0, 1, 30])
def test_gaussians_are_proper_however_few_records_there_are(size, shared):
    """Class 1 is empty; class 0 has none, one, or many copies of one record."""
    F, y = torch.full((size, K), 0.4).double(), torch.zeros(size, dtype=torch.int64)
    for terms in (TERMS, Terms(1e4)):
        g = pooled(
            [release(client(), F, y, CLASSES, terms, shared=shared)], terms, mix=0.5, ridge=1.2
        )
        assert torch.isfinite(g.m).all()
        assert (g.n >= 1).all()
        assert (torch.linalg.eigvalsh(g.S) > 0).all()


def test_a_gaussian_is_drawn_as_it_is():
    A = torch.tensor([[0.3, 0.0], [0.2, 0.1]]).double()
    g = Gaussians(
        torch.ones(2),
        torch.tensor([[1.0, -1.0], [5.0, 5.0]]).double(),
        torch.stack([A @ A.T, 0 * A]),
    )
    labels = torch.tensor([0] * 20_000 + [1] * 3)
    x = g.draw(labels, np.random.default_rng(0))
    assert torch.equal(x[20_000:], g.m[1].expand(3, 2))  # without spread
    torch.testing.assert_close(x[:20_000].mean(0), g.m[0], atol=0.01, rtol=0)
    torch.testing.assert_close(torch.cov(x[:20_000].T), A @ A.T, atol=0.005, rtol=0)
    assert torch.equal(x, g.draw(labels, np.random.default_rng(0)))
    assert g.draw(labels[:0], np.random.default_rng(0)).shape == (0, 2)
    # nothing was written into the means
    assert torch.equal(g.m[1], torch.tensor([5.0, 5.0]).double())


# --------------------------------------------------------------------------------------------------
# whole images


def images(n=40, seed=0, shape=(1, 8, 8)):
    """Return images of two classes: bright above, or bright below."""
    rng = np.random.default_rng(seed)
    y = torch.from_numpy(rng.integers(0, 2, n))
    x = rng.integers(0, 60, (n, *shape))
    x[y.numpy() == 0, :, : shape[1] // 2] += 80
    x[y.numpy() == 1, :, shape[1] // 2 :] += 80
    return torch.from_numpy(x.astype(np.uint8)), y


def test_features_are_those_of_the_images_before_they_were_normalised(monkeypatch):
    monkeypatch.setattr(room, "CHUNK", 7)  # several chunks, the last one smaller
    x, y = images()
    me = client(x, y)
    torch.testing.assert_close(plain(me.data.batch(slice(0, 5))[0], me.data), x[:5] / 255.0)
    F, labels = encoded(me.data, hog)
    torch.testing.assert_close(F, hog(x / 255.0), atol=1e-4, rtol=0)
    assert torch.equal(labels, y)


def test_a_client_without_records_has_features_of_the_same_length():
    x, y = images(0)
    F, labels = encoded(client(x, y).data, hog)
    assert F.shape == (0, 128)
    assert labels.shape == (0,)


def test_pixels_that_are_no_numbers_and_constant_images():
    x = images()[0].float() / 255
    y = images()[1]
    x[0, 0, 0, 0], x[1:5] = math.nan, 0.3
    F, labels = encoded(client(x, y).data, hog)
    sent = release(client(), F, labels, CLASSES, TERMS)
    assert torch.isfinite(sent["q"]).all()
    assert torch.isfinite(sent["M"]).all()
    n, _ = counts_and_means(release(client(), F, labels, CLASSES, SHARP)["q"], SHARP)
    # constant ones count, the broken one does not
    assert float(n.sum()) == pytest.approx(39, abs=0.01)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 8, 8)])
def test_a_generator_gives_images_that_look_like_their_class(shape):
    x, y = images(400, shape=shape)
    fitted = Moments(frequencies=15).fit(client(x, y), classes=2, epsilon=1000.0, delta=DELTA)
    assert fitted.counts == pytest.approx([int((y == c).sum()) for c in (0, 1)], abs=3)
    labels = torch.tensor([0] * 50 + [1] * 50)
    drawn = fitted.draw(labels, np.random.default_rng(0))
    assert drawn.shape == (100, *shape)
    assert drawn.dtype == torch.uint8
    above, below = drawn[:, :, :4].float().mean((1, 2, 3)), drawn[:, :, 4:].float().mean((1, 2, 3))
    assert torch.equal((below > above).long(), labels)
    means = torch.stack([x[y == c].float().mean((0, 2, 3)) for c in (0, 1)])
    torch.testing.assert_close(
        torch.stack([drawn[labels == c].float().mean((0, 2, 3)) for c in (0, 1)]),
        means,
        atol=8,
        rtol=0,
    )


def test_a_generator_of_features_gives_floats():
    F, y = drawn(300)
    me = client(F.float(), y)
    fitted = Moments().fit(me, classes=CLASSES, epsilon=1000.0, delta=DELTA)
    x = fitted.draw(torch.tensor([0, 1] * 500), np.random.default_rng(0))
    assert (x.shape, x.dtype) == ((1000, K), torch.float32)
    torch.testing.assert_close(x[::2].mean(0), F[y == 0].mean(0).float(), atol=0.03, rtol=0)
    assert privacy.epsilon(
        me.spent, unit="example", observer="server", delta=DELTA
    ) == pytest.approx(1000.0)


def test_classes_that_are_only_noise_are_dropped():
    x, y = images(4000)
    me = client(x, torch.zeros_like(y))
    fitted = Moments().fit(me, classes=5, epsilon=1.0, delta=DELTA)
    assert fitted.counts[0] > 3 * fitted.sd
    assert fitted.counts[1:].tolist() == [0.0] * 4
    assert fitted.sd == pytest.approx(math.sqrt(1.25) / (gdp_mu(1.0, DELTA) * math.sqrt(0.1)) / 0.5)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("frequencies", 0),
        ("frequencies", 1.5),
        ("bound", 0.0),
        ("share", 1.0),
        ("s", 0.0),
        ("R", -1.0),
    ],
)
def test_bad_settings_of_the_generator_are_refused(setting, value):
    with pytest.raises(BadInput, match=f"{setting} = {value}"):
        Moments(**{setting: value})
