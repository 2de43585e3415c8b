"""PriFedSync: what it is without noise, what its noise is, and what its paper says it costs."""

import math

import pytest
import torch

from tacit import privacy
from tacit.codec import same
from tacit.core import BadInput, Gaussian, Ledger, NonPrivate, Params
from tacit.experiment.drive import drive
from tacit.local.prototypes import Episodes
from tacit.methods import PFLDyn, PriFedSync, prifedsync
from tacit.privacy import mechanisms

QUICK = Episodes(steps=3, batch=4)


def run(sandbox, method):
    engine = sandbox.serial(method)
    return drive(method, engine, method.init(sandbox.x0)), engine


@pytest.mark.parametrize("mode", ["certified", "paper"])
def test_without_noise_it_is_pfldyn_to_the_bit_and_nothing_is_claimed(sandbox, mode):
    want, _ = run(sandbox, PFLDyn(rounds=3, per_round=4, local=QUICK))
    got, engine = run(sandbox, PriFedSync(rounds=3, per_round=4, mode=mode, sigma=0.0, local=QUICK))
    assert same(want.x, got.x)
    assert same(want.g, got.g)
    assert privacy.epsilon(engine.ledger, unit="client", observer="server", delta=1e-5) == math.inf


def test_the_certified_cost_is_that_of_fixed_noise_in_every_round(sandbox):
    method = PriFedSync(rounds=4, sigma=2.0, local=QUICK)
    _, engine = run(sandbox, method)
    got = privacy.epsilon(engine.ledger, unit="client", observer="server", delta=1e-5)
    assert got == pytest.approx(privacy.gdp_epsilon(2 * math.sqrt(4) / 2.0, 1e-5))
    predicted = Ledger(
        method.releases({i: 10 for i in engine.everyone}, {i: 4 for i in engine.everyone}, 1e-5)
    )
    assert privacy.epsilon(
        predicted, unit="client", observer="server", delta=1e-5
    ) == pytest.approx(got)


@pytest.fixture
def sent(sandbox, monkeypatch):
    """Return what a client with an update of norm 10 sends, and keeps, if all the noise is 1."""
    dx = Params({k: torch.ones_like(v) for k, v in sandbox.x0.items()})
    dx = dx * (10 / dx.norm())
    monkeypatch.setattr(prifedsync, "debiased", lambda *a: dx)
    monkeypatch.setattr(mechanisms, "noised", lambda draw, values, sd: [v + sd for v in values])

    def go(**settings):
        method = PriFedSync(local=QUICK, **settings)
        me = sandbox.serial(method).world.client("prifedsync.train", "0", 0, {})
        return prifedsync.train.fn(me, x=sandbox.x0, method=method), dx, me

    return go


def test_the_papers_noise_is_2_C_sigma_over_B_and_g_sees_none_of_it(sent):
    reply, dx, me = sent(mode="paper", sigma=0.5, clip=2.0)
    want = dx.clipped(2.0)
    for k, v in reply.sent.dx.items():
        torch.testing.assert_close(v, want[k] + 2 * 2.0 * 0.5 / 4)
    assert same(reply.keep["g"], dx.zeros() - 0.1 * dx)
    assert [type(line.event) for line in me.spent] == [NonPrivate]


def test_certified_noise_is_sigma_C_and_g_is_made_of_what_was_released(sent):
    reply, dx, me = sent(sigma=0.5, clip=2.0)
    want = dx.clipped(2.0)
    for k, v in reply.sent.dx.items():
        torch.testing.assert_close(v, want[k] + 0.5 * 2.0)
    assert same(reply.keep["g"], dx.zeros() - 0.1 * reply.sent.dx)
    # two clients' updates are 2C apart
    assert [(line.event, line.relation) for line in me.spent] == [(Gaussian(0.25), "either")]


def test_a_batch_larger_than_the_papers_data_is_all_of_them():
    """500 examples each, one client in ten: the rate is 0.1 at most."""
    whole = [epsilon for _, epsilon, _ in PriFedSync(local=Episodes(batch=500)).claims({}, 1e-5)]
    assert [
        epsilon for _, epsilon, _ in PriFedSync(local=Episodes(batch=6000)).claims({}, 1e-5)
    ] == whole


def test_claims_are_those_of_the_paper():
    """Table 2 of CUAG-PFL's paper: eps from 0.41 to 10.24."""
    figures = {word: epsilon for word, epsilon, _ in PriFedSync().claims({}, 1e-5)}
    assert figures["published, round 1"] == pytest.approx(0.41, abs=0.005)
    assert figures["published, round 300"] == pytest.approx(10.24, abs=0.015)
    assert figures["exact, round 300"] > figures["published, round 300"]
    assert figures["certified"] == math.inf


@pytest.mark.parametrize(("field", "value"), [("sigma", -1.0), ("clip", 0.0), ("alpha", 0.0)])
def test_wrong_settings_are_refused(field, value):
    with pytest.raises(BadInput, match=f"{field} = "):
        PriFedSync(**{field: value})
