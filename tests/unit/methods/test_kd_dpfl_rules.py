"""Gradients of a linear model: what KD-DPFL chooses itself, and a round of them by hand."""

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sandbox import PUBLIC, Sandbox

import tacit
from tacit.core import BadInput, Known, Params, mean
from tacit.data import load
from tacit.data.examples import Examples
from tacit.experiment.config import Experiment, Setting
from tacit.experiment.drive import drive
from tacit.experiment.plan import Plan
from tacit.local.sgd import SGD, clipped_gradient
from tacit.methods.fedavg import train as plain_training
from tacit.methods.kd_dpfl import KDDPFL
from tacit.methods.ldp_fl_choices import MOVED
from tacit.methods.spec import method_from_spec
from tacit.privacy.gdp import gdp_mu
from tacit.privacy.noise import FromSeed, noised

DELTA = 1e-5
SPLIT = "sizes:2x300,6x100,public=200"
GENERAL = {str(i): 100 for i in range(6)}
FEATURES = Known(GENERAL | {"6": 300, "7": 300}, DELTA, linear=50)
PIXELS = replace(FEATURES, linear=0)

pytestmark = pytest.mark.usefixtures("one_thread")


def noise_of_a_round(method, plan):
    """Return the norm of the noise in the mean by data volume, of rounds that are like the plan."""
    K = Counter(i for chosen in plan for i in chosen)
    rules = {i: method.phase_2.rule(GENERAL[i], K[i], DELTA, 1.0) for i in K}
    sds = [[rules[i].sensitivity * rules[i].z for i in chosen] for chosen in plan]
    square = [(math.hypot(*sd) / (100 * len(sd))) ** 2 for sd in sds]
    return math.sqrt(50 * sum(square) / len(square))


@pytest.mark.parametrize("per_round", [2, 3, 4, 0])
def test_a_step_is_as_long_as_the_noise_allows_however_many_take_part(per_round, tmp_path):
    """With fewer in a round each has fewer turns, so that it adds less noise in its own."""
    method = KDDPFL(epsilon=1.0, per_round=per_round, rounds=30).tuned(FEATURES)
    plan = method.phase_2.plan(Sandbox(tmp_path).serial(method), list(GENERAL))
    assert method.sgd.lr * noise_of_a_round(method, plan) == pytest.approx(MOVED, rel=1e-3)


def test_large_clients_that_join_leave_less_of_epsilon_for_gradients():
    alone, joined = (KDDPFL(epsilon=1.0, large_join=j).tuned(FEATURES) for j in (False, True))
    mean_size, clients = (600 + 600) / 8, 8
    noise = 0.4 * math.sqrt(50 * 50 * 2 / clients) / gdp_mu(1.0, DELTA) / mean_size
    assert joined.sgd.lr == pytest.approx(MOVED / noise, rel=1e-3)
    assert alone.sgd.lr != joined.sgd.lr


SAID = st.fixed_dictionaries(
    {},
    optional={
        "clip": st.sampled_from([0.1, 1.0]),
        "momentum": st.sampled_from([0.0, 0.5]),
        "sgd": st.builds(SGD, lr=st.sampled_from([0.05, 0.5, 3.0])),
        "special": st.builds(SGD, lr=st.sampled_from([0.05, 0.5])),
        "rounds": st.sampled_from([0, 10]),
        "epsilon": st.sampled_from([1.0, 8.0]),
    },
)


@given(SAID, st.sampled_from(["auto", "dp-sgd", "gradient"]), st.sampled_from([FEATURES, PIXELS]))
def test_what_a_user_has_said_stays(said, send, known):
    chosen = KDDPFL(send=send, **said).tuned(known)
    assert {name: getattr(chosen, name) for name in said} == said
    assert chosen.send == (send if send != "auto" else "gradient" if known.linear else "dp-sgd")
    assert chosen.tuned(known) == chosen  # as when a run goes on


@pytest.mark.parametrize("method", [KDDPFL(mode="paper"), KDDPFL(send="dp-sgd"), KDDPFL()])
def test_without_features_it_is_as_ever(method):
    chosen = method.tuned(PIXELS)
    two = chosen.phase_2
    assert (two.gradients, two.clip, chosen.server_momentum) == (False, 1.0, 0.0)
    assert two.sgd == SGD(lr=0.5, epochs=2, batch=250)
    assert method.phase_2 == two  # also where nobody has asked it to choose
    assert method.prefers_features == (method == KDDPFL())


@pytest.mark.parametrize("given", [{"send": "gradient"}, {"momentum": 0.9}])
def test_the_paper_sends_no_gradients(given):
    with pytest.raises(BadInput, match=f"^{next(iter(given))} = .* in mode = 'paper'"):
        KDDPFL(mode="paper", **given)


def test_a_site_that_knows_itself_alone_can_choose():
    assert KDDPFL(m=2).tuned(Known({"0": 100}, DELTA, 50)).send == "gradient"


@pytest.mark.parametrize(
    ("word", "setting", "features", "send"),
    [
        ("kd_dpfl", {}, "hog", "gradient"),
        ("kd_dpfl", {"features": "none"}, "none", "dp-sgd"),
        ("kd_dpfl", {"model": "mlp"}, "none", "dp-sgd"),
        ("kd_dpfl:send=dp-sgd", {}, "none", "dp-sgd"),
        ("kd_dpfl:mode=paper", {}, "none", "auto"),
    ],
)
def test_images_have_features_unless_something_else_is_said(word, setting, features, send):
    experiment = Experiment(method_from_spec(word), Setting(split=SPLIT, workers=0, **setting))
    got = Plan.of(experiment, load("digits")).experiment
    assert (got.setting.features, got.method.send) == (features, send)


# ---- a round
# --------------------------------------------------------------------------------------------------

GRADIENT = KDDPFL(
    send="gradient", rounds=2, per_round=3, epsilon=8.0, clip=0.5, momentum=0.5, sgd=SGD(lr=2.0)
)


def test_the_special_client_does_its_training_before_the_first_round(tmp_path):
    sandbox = Sandbox(tmp_path)
    engine = sandbox.serial(GRADIENT)
    s = drive(GRADIENT, engine, GRADIENT.init(sandbox.x0), stop_after=1)
    pseudo = Examples(engine.public.x, s.labels)
    both = replace(GRADIENT.special, epochs=2 * GRADIENT.special.epochs)
    x = sandbox.x0 + engine.own(plain_training(x=sandbox.x0, sgd=both), pseudo, 0).dx
    assert s.round == 0
    assert (s.x - x).norm() < 1e-6


def test_two_rounds_of_gradients(tmp_path):
    """Everybody's mean gradient by data volume, the special one by its share of all data."""
    sandbox = Sandbox(tmp_path)
    engine = sandbox.serial(GRADIENT)
    first = drive(GRADIENT, engine, GRADIENT.init(sandbox.x0), stop_after=1)
    other = Sandbox(tmp_path / "b")
    last = drive(GRADIENT, other.serial(GRADIENT), GRADIENT.init(other.x0))
    world = sandbox.world(GRADIENT, tmp_path / "w")
    plan = GRADIENT.phase_2.plan(engine, GRADIENT.pool(first.sizes))
    turns = Counter(i for chosen in plan for i in chosen)
    x, v = first.x, first.x.zeros()
    for t, chosen in enumerate(plan):
        parts = []
        for i in chosen:
            me = world.client("kd_dpfl.train", i, t, {})
            sd = 0.5 * math.sqrt(turns[i]) / gdp_mu(8.0, DELTA)
            g = list(clipped_gradient(me, x, 0.5).values())
            noisy = noised(FromSeed(me.rng.spawn(1)[0]), g, sd)
            parts.append((Params(zip(x, noisy, strict=True)) / len(me.data), len(me.data)))
        special = public_gradient(sandbox, x, Examples(engine.public.x, first.labels))
        share = PUBLIC / (PUBLIC + sum(first.sizes[i] for i in GRADIENT.pool(first.sizes)))
        v = 0.5 * v - 2.0 * ((1 - share) * mean(parts) + share * special)
        x = x + v
    assert (last.x - x).norm() < 1e-5 * x.norm()


def public_gradient(sandbox, x, examples):
    """Return the mean of gradients that are clipped one by one."""
    sums = x.zeros()
    names = list(x)
    for one, y in zip(examples.x, examples.y, strict=True):
        for name, p in sandbox.model.named_parameters():
            p.data.copy_(x[name])
        loss = torch.nn.functional.cross_entropy(sandbox.model(one[None]), y[None])
        g = torch.autograd.grad(loss, [dict(sandbox.model.named_parameters())[n] for n in names])
        sums = sums + Params(zip(names, g, strict=True)).clipped(0.5)
    return sums / len(examples)


def test_with_no_flags_it_learns_and_spends_what_it_says(tmp_path):
    done = tacit.run(
        "kd_dpfl:epsilon=8,rounds=10",
        split=SPLIT, workers=0, noise="seeded", eval_every=10, out=tmp_path / "run",
    )  # fmt: skip
    assert done.accuracy > 0.75
    assert done.spent == pytest.approx(8.0, rel=1e-3)
    assert done.experiment.setting.features == "hog"
