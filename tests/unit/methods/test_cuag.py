"""CUAG-PFL.

The published algorithm by hand, the certified modes by their ledgers, and all of them under faults.
"""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from often import often
from sandbox import Server, a_client

from tacit import privacy
from tacit.codec import same
from tacit.core import (
    BadInput,
    Everyone,
    Gaussian,
    Known,
    Ledger,
    NonPrivate,
    Nothing,
    Params,
    Replies,
    Sampling,
    mean,
)
from tacit.experiment.drive import drive
from tacit.local.prototypes import Episodes
from tacit.local.sgd import SGD
from tacit.methods import CUAG, Local, PFLDyn, cuag_gaussian
from tacit.methods.cuag_claims import sigma as cuag_sigma
from tacit.methods.cuag_rules import Turn
from tacit.methods.pfldyn import Update
from tacit.privacy import gdp_epsilon, mechanisms
from tacit.privacy.accounting import bill_epsilon
from tacit.privacy.layers import LayerBounds
from tacit.privacy.mechanisms import gaussian_mean
from tacit.privacy.schedule import mu_in_round, noise_beside

DELTA = 1e-5
QUICK = Episodes(steps=3, batch=4)
WHOLE = Episodes(steps=3, batch=32)  # of all data: no sampling, so accounting is quick


pytestmark = pytest.mark.usefixtures("one_thread")


def run(sandbox, method):
    engine = sandbox.serial(method)
    return drive(method, engine, method.init(sandbox.x0)), engine


def spent(method, ledger):
    unit, observer = method.protects
    return privacy.epsilon(ledger, unit=unit, observer=observer, delta=DELTA)


# --------------------------------------------------------------------------------------------------
# equivalences


@pytest.mark.parametrize(
    "settings", [{"matrix": "none"}, {"matrix": "binary:1"}, {"mode": "paper"}]
)
def test_without_noise_and_compression_it_is_pfldyn_to_the_bit(sandbox, settings):
    want, _ = run(sandbox, PFLDyn(rounds=3, per_round=4, local=QUICK))
    got, engine = run(
        sandbox, CUAG(rounds=3, per_round=4, mu=0.0, local=QUICK, **{"matrix": "none"} | settings)
    )
    assert same(want.x, got.x)
    assert same(want.g, got.g)
    assert spent(CUAG(mu=0.0), engine.ledger) == math.inf


def test_compression_alone_makes_a_difference_and_saves_bytes(sandbox):
    dense, a = run(sandbox, PFLDyn(rounds=2, per_round=4, local=QUICK))
    small, b = run(sandbox, CUAG(rounds=2, per_round=4, mu=0.0, matrix="binary:0.1", local=QUICK))
    assert not same(dense.x, small.x)
    assert b.bytes_up < 0.9 * a.bytes_up  # the network is tiny, so most of a message is its frame


def test_rates_follow_from_the_model_and_then_from_the_last_update(sandbox):
    method = CUAG(rounds=1, mu=0.0, local=QUICK)
    s = method.init(sandbox.x0)
    assert s.rates == method.compressor.rates(sandbox.x0)
    after, _ = run(sandbox, method)
    d = (s.g - after.g) / method.alpha  # everybody took part
    assert after.rates == method.compressor.rates(d)


# --------------------------------------------------------------------------------------------------
# the paper, by hand


def test_sigma_by_hand():
    """mu |D| = 125, 2 lambda B = 10.

    15625 / (100 * 25) = 6.25 in round 1, a tenth of that in round 10.
    """
    assert cuag_sigma(0.25, 500, 0.1, 50, 1, 25) == pytest.approx(math.log(7.25) ** -0.5)
    assert cuag_sigma(0.25, 500, 0.1, 50, 10, 25) == pytest.approx(math.log(1.625) ** -0.5)


LAYERS = Params(a=torch.tensor([3.0, 4.0]), b=torch.zeros(2), c=torch.full((4,), 10.0))


def as_published(me, method):
    """Return what a tenth of the clients send, each of them."""
    return method.rule(me.id, me.size, 1, DELTA, Turn(lam=0.1)).send(me, LAYERS)


def test_algorithm_4_by_hand(monkeypatch):
    """Norms 5, 0 and 20: noise of 2 * 5 sigma / 50, none at all, and 2 * 20 sigma / 50."""
    monkeypatch.setattr(mechanisms, "noised", lambda draw, values, sd: [v + sd for v in values])
    me, sigma = a_client(round=9), cuag_sigma(0.25, 500, 0.1, 50, 10, 25)
    got = as_published(me, CUAG(mode="paper"))
    torch.testing.assert_close(got["a"], LAYERS["a"] + 0.2 * sigma)
    torch.testing.assert_close(got["b"], torch.zeros(2))
    torch.testing.assert_close(got["c"], LAYERS["c"] + 0.8 * sigma)
    assert [type(line.event) for line in me.spent] == [NonPrivate]


def test_a_fixed_clip_as_in_table_5(monkeypatch):
    monkeypatch.setattr(mechanisms, "noised", lambda draw, values, sd: [v + sd for v in values])
    sigma = cuag_sigma(0.25, 500, 0.1, 50, 1, 25)
    got = as_published(a_client(), CUAG(mode="paper", fixed_clip=10.0))
    torch.testing.assert_close(got["a"], LAYERS["a"] + 0.4 * sigma)
    torch.testing.assert_close(got["b"], torch.full((2,), 0.4 * sigma))
    torch.testing.assert_close(got["c"], LAYERS["c"] / 2 + 0.4 * sigma)


def test_a_fixed_sigma_as_in_table_5(monkeypatch):
    """Norm 5, sigma 0.65, B 50: noise of 2 * 5 * 0.65 / 50 = 0.13, in any round."""
    monkeypatch.setattr(mechanisms, "noised", lambda draw, values, sd: [v + sd for v in values])
    for t in (0, 299):
        got = as_published(a_client(round=t), CUAG(mode="paper", sigma=0.65))
        torch.testing.assert_close(got["a"], LAYERS["a"] + 0.13)
        torch.testing.assert_close(got["b"], torch.zeros(2))


@pytest.mark.parametrize("also", [{"mu": 0.5}, {"mus": (0.1, 4.0)}, {"epsilon": 2.0}])
def test_a_fixed_sigma_stands_alone(also):
    with pytest.raises(BadInput, match=r"^sigma = 0.65: give it, or what may be spent$"):
        CUAG(mode="paper", sigma=0.65, **also)


def test_the_variance_taken_for_the_deviation(monkeypatch):
    monkeypatch.setattr(mechanisms, "noised", lambda draw, values, sd: [v + sd for v in values])
    sigma = cuag_sigma(0.25, 500, 0.1, 50, 1, 25)
    got = as_published(a_client(), CUAG(mode="paper", squared=True))
    torch.testing.assert_close(got["a"], LAYERS["a"] + (0.2 * sigma) ** 2)
    torch.testing.assert_close(got["b"], torch.zeros(2))


@pytest.mark.slow
def test_claims_are_those_of_the_reference():
    found = CUAG().claims({}, DELTA)
    figures = {word: epsilon for word, epsilon, _ in found}
    want = {1: 2.66, 10: 2.95, 100: 3.24, 300: 3.38}
    assert {t: round(figures[f"exact, round {t}"], 2) for t in want} == want
    assert figures["published"] == pytest.approx(0.926, abs=1e-3)
    assert figures["mu sqrt(H_T)"] == pytest.approx(gdp_epsilon(0.627, DELTA), rel=2e-3)
    assert any("0.627" in remark for _, _, remark in found)
    assert figures["public clip"] == pytest.approx(3900, rel=0.02)
    assert figures["certified"] == math.inf
    assert all(remark for _, _, remark in found)


@pytest.mark.slow
def test_claims_of_extreme_settings():
    assert [word for word, _, _ in CUAG(mu=0.0).claims({}, DELTA)] == ["certified"]
    # above everything
    assert all(epsilon > 0 for _, epsilon, _ in CUAG(local=Episodes(batch=3000)).claims({}, DELTA))


# -------------------------------------------------------------------------------------------------
# the certified modes


CERTIFIED = {
    "example": CUAG(rounds=3, per_round=4, local=WHOLE),
    "example, eps": CUAG(rounds=3, per_round=4, epsilon=4.0, local=QUICK),
    "gaussian": CUAG(rounds=3, per_round=4, head="gaussian"),
    "gaussian, eps": CUAG(rounds=1, epsilon=4.0, head="gaussian", matrix="none"),
    "client": CUAG(rounds=3, per_round=4, unit="client", local=QUICK),
    "client, harmonic": CUAG(
        rounds=3, per_round=4, unit="client", schedule="harmonic", local=QUICK
    ),
    "clients": CUAG(rounds=3, per_round=4, unit="client", observer="clients", mu=1.0, local=QUICK),
    "clients, adaptive": CUAG(
        rounds=3, per_round=4, unit="client", observer="clients", mu=1.0, adaptive=True, local=QUICK
    ),
}


DEAR = "example, eps"  # an accountant solves for samples
PRICED = [pytest.param(n, marks=pytest.mark.slow if n == DEAR else ()) for n in CERTIFIED]


@pytest.mark.parametrize("name", PRICED)
def test_a_run_costs_what_was_asked_for_and_predicted(sandbox, name):
    method = CERTIFIED[name]
    s, engine = run(sandbox, method)
    target = method.epsilon or gdp_epsilon(method.mu, DELTA)
    got = spent(method, engine.ledger)
    assert 0.97 * target <= got <= target * (1 + 1e-9)
    sizes = engine.world.federation.sizes()
    times = {i: sum(i in method.participants(engine, t).ids for t in range(3)) for i in sizes}
    assert spent(method, Ledger(method.releases(sizes, times, DELTA))) == pytest.approx(got)
    assert math.isfinite(s.x.norm())
    if method.observer == "clients":
        assert (
            privacy.epsilon(engine.ledger, unit="client", observer="server", delta=DELTA)
            == math.inf
        )


def test_every_client_spends_its_own_mu(sandbox):
    mus = (0.1, 1.0, 4.0)
    for method in (
        CUAG(rounds=2, mus=mus, local=WHOLE),
        CUAG(rounds=2, mus=mus, unit="client", local=QUICK),
    ):
        _, engine = run(sandbox, method)
        unit, observer = method.protects
        got = privacy.by_owner(engine.ledger, unit=unit, observer=observer, delta=DELTA)
        for i, epsilon in got.items():
            assert epsilon == pytest.approx(gdp_epsilon(mus[int(i) % 3], DELTA), rel=1e-3)


@given(st.integers(1, 60), st.floats(0.05, 5.0), st.sampled_from(["constant", "harmonic"]))
@often(50)
def test_a_schedule_adds_up_to_mu(K, mu, schedule):
    parts = [mu_in_round(mu, k, K, schedule) for k in range(1, K + 1)]
    assert math.sqrt(sum(m**2 for m in parts)) == pytest.approx(mu)
    assert parts == sorted(parts, reverse=True)


def test_noise_of_the_example_level_is_neither_too_little_nor_wasted():
    """500 examples, 5 rounds of 25 steps at eps 8: the ledger's own accountant on both releases."""
    mu = privacy.gdp_mu(8.0, DELTA)
    z, z_prototypes = noise_beside(mu, 0.1, 5, 25, 0.1, DELTA)
    bill = frozenset(
        {
            ((Gaussian(z_prototypes), Sampling(), "zero-out"), 5),
            ((Gaussian(z), Sampling.at(0.1), "zero-out"), 125),
        }
    )
    assert 0.97 * 8 < bill_epsilon(bill, "zero-out", DELTA) <= 8


layer = st.tuples(st.integers(1, 50), st.floats(1e-3, 100), st.floats(0, 1e4))


@given(st.lists(layer, min_size=1, max_size=6))
@often(100)
def test_clipped_layers_have_norm_one_together_and_come_back_within_their_bounds(found):
    v = Params(
        {str(i): torch.full((n,), x, dtype=torch.float64) for i, (n, _, x) in enumerate(found)}
    )
    c = {str(i): bound for i, (_, bound, _) in enumerate(found)}
    bounds = LayerBounds.of(c, v)
    u = bounds.clipped(v)
    assert u.norm() <= 1 + 1e-9
    for k, t in bounds.unscaled(u).items():
        assert t.norm() <= c[k] * (1 + 1e-9)
        if v[k].norm() <= c[k]:
            # at its bound, it is clipped by a hair
            torch.testing.assert_close(t, v[k], rtol=2e-6, atol=1e-12)
    noise = sum(v[k].numel() * (c[k] / bounds.a[k]) ** 2 for k in c)
    # of one clip with the same joint norm
    assert noise <= v.size() * sum(b**2 for b in c.values()) * (1 + 1e-9)


def test_the_servers_g_is_the_mean_of_what_clients_made_of_noised_updates(sandbox):
    method = CUAG(rounds=3, per_round=4, unit="client", mu=2.0, local=QUICK)
    s, engine = run(sandbox, method)
    kept = [
        engine.world.store(i).kept(engine.accepted.get(i)).get("g", sandbox.x0.zeros())
        for i in engine.everyone
    ]
    assert all(g.released for g in kept)
    assert (mean(kept) - s.g).norm() < 1e-5 * s.g.norm()


def test_at_the_example_level_what_clients_keep_could_be_told(sandbox):
    _, engine = run(sandbox, CUAG(rounds=2, local=WHOLE))
    assert all(
        engine.world.store(i).kept(engine.accepted[i])["g"].released for i in engine.everyone
    )


@pytest.mark.parametrize("matrix", ["gaussian:0.3", "bernoulli:dynamic", "binary:0.3"])
def test_any_matrix_goes_with_any_mode(sandbox, matrix):
    for method in (
        CUAG(rounds=1, matrix=matrix, local=WHOLE),
        CUAG(rounds=1, mode="paper", matrix=matrix),
    ):
        s, _ = run(sandbox, method)
        assert math.isfinite(s.x.norm())


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"mu": -1.0}, "mu = -1.0: must be at least 0"),
        ({"mus": (0.1, 0.0)}, "mus = 0.0: must be at least 1e-06"),
        ({"mus": (0.1,), "epsilon": 1.0}, "epsilon = 1"),
        ({"matrix": "binary:2"}, "must be above 0 and at most 1"),
        ({"matrix": "zip"}, "matrix = 'zip': must be none"),
        ({"r_min": 0.6}, "r_min = 0.6: must be at most r_max = 0.5"),
        ({"clip": 0.0}, "clip = 0.0: must be above 0"),
        ({"observer": "clients"}, "needs unit = 'client'"),
        ({"observer": "clients", "unit": "client", "mus": (1.0,)}, "one mu for all"),
        ({"adaptive": True}, "needs observer = 'clients'"),
        ({"schedule": "harmonic"}, "needs unit = 'client'"),
        ({"mu": 1e-170}, "mu = 1e-170: must be at least 1e-06"),
        ({"squared": True}, "squared = True: means nothing in mode = 'certified'"),
        ({"head": "gaussian", "unit": "client"}, "head = 'gaussian': needs mode = 'certified'"),
        ({"head": "gaussian", "mus": (1.0,)}, "one mu or epsilon"),
        ({"head": "gaussian", "mu": 0.0}, "one mu or epsilon"),
        ({"head": "gaussian", "mode": "paper"}, "needs mode = 'certified'"),
        ({"head": "gaussian", "matrix": "bernoulli:0.3"}, "matrix = 'binary:...' or 'none'"),
        ({"mode": "paper", "unit": "client"}, "unit = 'client': means nothing in mode = 'paper'"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(settings, says):
    with pytest.raises(BadInput) as e:
        CUAG(**settings)
    assert says in str(e.value)
    assert "\n" not in str(e.value)


# --------------------------------------------------------------------------------------------------
# Gaussians of public features


@pytest.mark.parametrize(
    ("settings", "linear", "head"),
    [
        ({}, 3160, "gaussian"),
        ({}, 0, "prototypes"),
        ({"head": "prototypes"}, 3160, "prototypes"),
        ({"head": "gaussian"}, 0, "gaussian"),
        ({"unit": "client"}, 3160, "prototypes"),
        ({"mode": "paper"}, 3160, "prototypes"),
        ({"mu": 0.0}, 3160, "prototypes"),
        ({"mus": (1.0, 2.0)}, 3160, "prototypes"),
        ({"matrix": "gaussian:0.3"}, 3160, "prototypes"),
    ],
)
def test_the_head_follows_from_features_and_from_what_is_certified(settings, linear, head):
    method = CUAG(**settings).tuned(Known({"0": 500}, DELTA, linear))
    assert method.head == head
    assert method.rounds == (1 if head == "gaussian" else 20)
    assert method.tuned(Known({"0": 500}, DELTA, linear)) == method
    wanted = CUAG(**settings).prefers_features
    assert wanted == (head == "gaussian" or not settings)


def test_means_of_another_shape_are_refused_whatever_a_client_holds():
    """Else only clients with a record of the missing class would fail."""
    view = {"centre": torch.zeros(2), "turn": torch.eye(2), "variance": torch.ones(2)}
    asked = {"method": CUAG(head="gaussian"), "delta": DELTA, "view": Params(view)}
    me = replace(a_client(size=5), classes=3)
    with pytest.raises(BadInput, match=r"^m: is \(2, 2\), must be \(3, 2\)$"):
        cuag_gaussian.covariances.fn(me, **asked, m=torch.zeros(2, 2))
    far = {**asked, "view": Params({**view, "variance": torch.full((2,), torch.inf)})}
    with pytest.raises(BadInput, match=r"^view = inf"):
        cuag_gaussian.covariances.fn(me, **far, m=torch.zeros(3, 2))
    with pytest.raises(BadInput, match=r"^head: must be gaussian"):
        cuag_gaussian.features.fn(me, method=CUAG(), delta=DELTA)
    assert not list(me.spent)


def test_local_gaussians_take_no_clip():
    with pytest.raises(BadInput, match=r"sgd.clip = 1"):
        Local(head="gaussian", sgd=SGD(clip=1.0, z=1.0))
    assert Local(head="gaussian").tuned(Known({"0": 9}, DELTA)).rounds == 1
    assert Local().tuned(Known({"0": 9}, DELTA)).rounds == Local().rounds


def test_moments_are_shared_once_and_smaller_messages_have_less_of_covariances(sandbox):
    method = CUAG(rounds=2, per_round=2, head="gaussian", epsilon=8.0)
    s, engine = run(sandbox, method)
    assert {line.owner for line in engine.ledger if line.event != Nothing()} == set(engine.everyone)
    assert s.round == 2
    whole, other = run(sandbox, replace(method, rounds=1, matrix="none"))
    assert same({k: v.shape for k, v in s.x.items()}, {k: v.shape for k, v in whole.x.items()})
    assert engine.bytes_up <= other.bytes_up


# --------------------------------------------------------------------------------------------------
# faults and resuming


SHORT = ["example", "client, harmonic", "clients, adaptive"]  # an event, a plan, bounds that move
MODES = [pytest.param(n, marks=() if n in SHORT else pytest.mark.slow) for n in CERTIFIED]
PAPER = pytest.param("paper", marks=pytest.mark.slow)


@pytest.mark.parametrize("name", [*MODES, PAPER])
def test_every_mode_resumes_to_the_bit(sandbox, name):
    method = CERTIFIED.get(name, CUAG(rounds=3, per_round=4, mode="paper", local=QUICK))
    want, whole = run(sandbox, method)
    folder = sandbox.fresh()
    first = sandbox.serial(method, folder=folder)
    s = drive(
        method, first, method.init(sandbox.x0), stop_after=2, on_step=lambda s: first.mark_saved()
    )
    snapshot = first.snapshot()
    next(method.run(first, s), None)  # the server dies before saving the last round
    second = sandbox.serial(method, folder=folder)
    second.restore(snapshot, Ledger(first.ledger))
    assert same(want, drive(method, second, s))
    assert second.ledger == whole.ledger


@pytest.mark.parametrize("name", [*MODES, PAPER])
def test_in_every_mode_a_lost_reply_is_as_if_the_client_had_never_worked(sandbox, name):
    method = CERTIFIED.get(name, CUAG(rounds=3, per_round=4, mode="paper", local=QUICK))
    lost = [
        sandbox.serial(method, lambda i, t, word=word: word if int(i) % 3 == t else None)
        for word in ("lost", "crash")
    ]
    a, b = (drive(method, engine, method.init(sandbox.x0)) for engine in lost)
    assert same(a, b)
    if name in CERTIFIED:
        assert spent(method, lost[0].ledger) <= (
            method.epsilon or gdp_epsilon(method.mu, DELTA)
        ) * (1 + 1e-9)


def test_a_sum_without_any_reply_is_noise_that_everybody_asked_pays_for(sandbox):
    method = CERTIFIED["clients, adaptive"]
    engine = sandbox.serial(method, lambda i, t: "lost")
    s = drive(method, engine, method.init(sandbox.x0))
    assert s.round == 3
    assert (s.x - sandbox.x0).norm() > 0
    assert spent(method, engine.ledger) == pytest.approx(gdp_epsilon(method.mu, DELTA))


X = Params(a=torch.ones(6), b=torch.ones(12))


def test_bounds_follow_the_medians_of_the_layers_by_hand(monkeypatch):
    """Bits 1, 1, -1 of three clients for layer a, all -1 for b.

    Means 1/3 and -1, so e^(-0.2/6) and e^(0.1).
    """
    monkeypatch.setattr(mechanisms, "noised", lambda draw, values, sd: list(values))
    method = CUAG(unit="client", observer="clients", adaptive=True, matrix="none")
    s = replace(method.init(X), c={"a": 3.0, "b": 1.0})
    server, bounds = Server(["0", "1", "2"], 0), LayerBounds.of(s.c, X)
    # norms 2.45 and 4.9; 3.46
    sent = [bounds.with_bits(Params(a=f * X["a"], b=X["b"])) for f in (1.0, 1.0, 2.0)]
    answers = {str(i): Update(u) for i, u in enumerate(sent)}
    replies = Replies("cuag.train@0", server.sample(Everyone(), 0), answers, {})
    d, c = method.rule("0", 0, 1, DELTA, Turn(c=s.c)).mean(server, replies, s.x)
    assert c == pytest.approx({"a": 3 * math.exp(-0.2 / 6), "b": math.exp(0.1)})
    torch.testing.assert_close(
        d["a"], (2 * X["a"] + 3 * X["a"] / X["a"].norm()) / 3, rtol=1e-4, atol=1e-5
    )
    torch.testing.assert_close(d["b"], X["b"] / X["b"].norm(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["clients", "clients, adaptive"])
def test_what_clients_send_for_a_sum_is_clipped_already(sandbox, monkeypatch, name):
    """So that adding up, which is all that secure aggregation can do, is enough."""
    method, sent = replace(CERTIFIED[name], clip=1e-3), []

    def spied(cohort, replies, *args, **settings):
        sent.extend(replies)
        return gaussian_mean(cohort, replies, *args, **settings)

    monkeypatch.setattr(mechanisms, "gaussian_mean", spied)
    run(sandbox, method)
    assert len(sent) == 12
    assert all(0.5 < r.dx.norm() <= 1 + 1e-5 for r in sent)
