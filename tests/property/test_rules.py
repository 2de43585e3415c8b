"""A rule predicts what it does: the ledger after sending is the ledger that was predicted, exactly.

Whatever the clipping norm, the noise multiplier, the rounds a client takes part in, and its size.
"""

import ast
import importlib
import pkgutil
from dataclasses import is_dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from often import often
from sandbox import Server, a_client

import tacit
from tacit.core import (
    FEDERATION,
    Everyone,
    Fixed,
    Ledger,
    NonPrivate,
    Nothing,
    Params,
    Poisson,
    Replies,
    Unnoised,
)
from tacit.local.prototypes import Episodes
from tacit.local.sgd import SGD
from tacit.methods import cuag_claims, cuag_gaussian
from tacit.methods.cuag_rules import ExampleLevel, LayeredSum, LayeredUpdate, Turn
from tacit.methods.local import Local
from tacit.methods.pfldyn import Update as Sent
from tacit.methods.udp_settings import EqualShares
from tacit.privacy import mechanisms
from tacit.privacy.mechanisms import update_z
from tacit.privacy.rules import (
    AsPublished,
    Choices,
    ClaimedMean,
    Histogram,
    Noised,
    NoisyCounts,
    NoisyMean,
    NoisySteps,
    NoisyWinners,
    Open,
    Silent,
    Together,
    Update,
    in_turn,
    lines_of,
)
from tacit.privacy.schedule import mu_in_round
from tacit.privacy.updates import ByLayer, update_rule
from tacit.synthesis.gan import GAN, Training
from tacit.synthesis.labels import histogram_rule, pls, pls_rule
from tacit.synthesis.moments import Terms, release

POINT = Params(w=torch.tensor([3.0, -4.0]), b=torch.tensor([12.0]))
FEW = often(30)
positive = st.floats(1e-3, 1e3)
words = st.text("abc ", min_size=1, max_size=5)
# the rounds that a client takes part in: some of twelve
rounds = st.sets(st.integers(0, 11), min_size=1, max_size=6).map(sorted)
rules = st.one_of(
    st.builds(Open, words, words),
    st.builds(AsPublished, words, positive, words),
    st.builds(
        Noised,
        words,
        positive,
        positive,
        st.sampled_from(["example", "client"]),
        st.sampled_from(["zero-out", "replace", "either"]),
    ),
    st.builds(Update, words, positive, positive),
    st.builds(ByLayer, st.builds(Update, words, positive, positive)),
    st.builds(
        cuag_claims.AsPublished,
        mu=st.floats(0.01, 10),
        lam=st.floats(0.1, 1.0),
        local=st.builds(Episodes, batch=st.integers(1, 50)),
        fixed_clip=st.sampled_from([0.0, 0.5, 5.0]),
        squared=st.booleans(),
    ),
)
kinds = st.sampled_from(["gaussian", "laplace"])


def at(round, ledger, size=20):
    """Return a client of a task without a name, as rules do not know which task they serve."""
    return replace(a_client(round=round, seed=round, spent=ledger, size=size), task="")


def numbered(ledger, when):
    """Return the lines, rounds numbered as their owner takes part, wherever the noise came from."""
    turn = {t: k for k, t in enumerate(when)}
    each = ((line, t) for line in ledger for a, b in line.rounds for t in range(a, b + 1))
    return Ledger(replace(line, rounds=((turn[t], turn[t]),), noise="none") for line, t in each)


@given(rule=rules, when=rounds)
def test_what_a_client_sends_is_what_was_predicted(rule, when):
    ledger = Ledger()
    for t in when:
        assert rule.send(at(t, ledger), POINT).released
    assert numbered(ledger, when) == Ledger(rule.lines("0", 20, len(when)))


@given(rule=rules)
def test_who_takes_no_part_releases_nothing(rule):
    assert rule.lines("0", 20, 0) == []
    assert {line.owner for line in lines_of(rule, {"a": 5, "b": 7}, {"a": 0, "b": 2})} == {"b"}


@given(mu=positive, clip=positive, when=rounds, schedule=st.sampled_from(["constant", "harmonic"]))
def test_noise_that_differs_from_turn_to_turn_is_predicted_turn_by_turn(mu, clip, when, schedule):
    K = len(when)
    each = [
        Update("update", clip, update_z(mu_in_round(mu, k, K, schedule))) for k in range(1, K + 1)
    ]
    ledger = Ledger()
    for rule, t in zip(each, when, strict=True):
        rule.send(at(t, ledger), POINT)
    assert numbered(ledger, when) == Ledger(in_turn(each, "0", 20))


@given(
    clip=positive,
    z=positive,
    size=st.integers(1, 40),
    batch=st.integers(1, 50),
    epochs=st.integers(1, 3),
    when=rounds,
)
@often(25)
def test_dp_sgd_takes_the_steps_that_were_predicted(clip, z, size, batch, epochs, when):
    sgd = SGD(lr=1e-6, epochs=epochs, batch=batch, clip=clip, z=z)
    model = torch.nn.Linear(2, 2)
    ledger = Ledger()
    for t in when:
        sgd.fit(replace(at(t, ledger, size), model=model), params(model))
    assert numbered(ledger, when) == Ledger(sgd.lines("0", size, len(when)))


def params(model):
    return Params({name: p.detach().clone() for name, p in model.named_parameters()})


def replies(server, law, round):
    sample = server.sample(law, round)
    return Replies(f"x.train@{round}", sample, {i: POINT for i in sample.ids}, {})


@given(
    law=st.one_of(
        st.builds(Everyone),
        st.builds(Fixed, st.integers(1, 5)),
        st.builds(Poisson, st.floats(0.01, 1.0)),
    ),
    clip=positive,
    z=positive,
    T=st.integers(1, 5),
)
def test_a_noisy_mean_is_the_federations_as_predicted(law, clip, z, T):
    server, rule = a_server(), NoisyMean("x.train", law, z)
    for t in range(T):
        rule.send(server, replies(server, law, t), take, like=POINT, clip=clip, out_of=3.0)
    assert numbered(server.ledger, range(T)) == Ledger(rule.lines(FEDERATION, 5, T))


@given(k=st.integers(1, 5), z=positive, T=st.integers(1, 5))
def test_where_the_sample_is_known_everybody_in_it_pays(k, z, T):
    server, rule = a_server(), NoisyMean("x.train", Fixed(k), z, secret=False)
    for t in range(T):
        rule.send(server, replies(server, Fixed(k), t), take, like=POINT, clip=1.0, out_of=k)
    for client in server.everyone:
        when = [t for t in range(T) if client in server.sample(Fixed(k), t).ids]
        own = [line for line in server.ledger if line.owner == client]
        assert numbered(own, when) == Ledger(rule.lines(client, 5, len(when)))


@given(why=words, T=st.integers(1, 5))
def test_a_mean_that_proves_nothing_says_so_as_predicted(why, T):
    server, rule = a_server(), ClaimedMean("x.train", why)
    for t in range(T):
        rule.send(server, replies(server, Everyone(), t), take, clip=1.0, sd=0.5)
    assert numbered(server.ledger, range(T)) == Ledger(rule.lines(FEDERATION, 5, T))


def test_a_mean_is_afforded_by_the_lines_that_it_writes():
    asked = []
    for secret in (True, False):
        server, rule = a_server(), NoisyMean("x.train", Fixed(2), 1.0, secret=secret)
        server.afford = asked.append
        rule.afford(server, server.sample(Fixed(2), 0))
        rule.send(server, replies(server, Fixed(2), 0), take, like=POINT, clip=1.0, out_of=2.0)
        assert Ledger(asked) == server.ledger
        asked.clear()


def a_server():
    return Server("01234", 0)


def take(point):
    return point


@pytest.mark.parametrize("rule", [Open("x", "no"), AsPublished("x", 0.0, "no")])
def test_what_is_sent_openly_leaves_the_original_unmarked(rule):
    """The copy that was sent may leave; what it was made of may not, if it changes hands again."""
    x = 1.0 * POINT
    rule.send(at(0, Ledger()), x)
    assert not x.released


@given(clip=positive, mu=positive)
def test_every_layer_is_clipped_to_its_share_and_all_to_the_clipping_norm(clip, mu):
    """By hand: two layers of norms 5 and 12, so each may have clip / sqrt 2."""
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mechanisms, "gaussian", lambda me, what, value, **how: seen.append(value))
        update_rule("layers", "x", clip, mu).send(at(0, Ledger()), POINT)
    (cut,) = seen
    share = clip / 2**0.5
    for layer, whole in (("w", 5.0), ("b", 12.0)):
        assert float(cut[layer].norm()) == pytest.approx(min(share, whole), rel=1e-4)
    assert update_rule("layers", "x", clip, mu).lines("0", 9, 3) == update_rule(
        "flat", "x", clip, mu
    ).lines("0", 9, 3)


# ---- rules that a method has for itself


@FEW
@given(mu=positive, when=rounds, schedule=st.sampled_from(["constant", "harmonic"]))
def test_layers_are_one_release_a_round_as_predicted(mu, when, schedule):
    K, ledger, c = len(when), Ledger(), {"w": 0.5, "b": 20.0}
    for k, t in enumerate(when, start=1):
        rule = LayeredUpdate(mu, schedule, Turn(k, K, 1.0, c))
        assert rule.send(at(t, ledger), POINT).released
    assert numbered(ledger, when) == Ledger(rule.lines("0", 20, K))


@FEW
@given(mu=positive, T=st.integers(1, 5), adaptive=st.booleans(), k=st.integers(1, 5))
def test_a_sum_of_layers_is_paid_for_by_everybody_in_it_as_predicted(mu, T, adaptive, k):
    server, law = a_server(), Fixed(k)
    rule = LayeredSum.of(mu, T, law, adaptive, {"w": 0.5, "b": 20.0})
    point = rule.send(at(0, Ledger()), POINT)
    for t in range(T):
        sample = server.sample(law, t)
        sent = Replies(f"cuag.train@{t}", sample, {i: Sent(point) for i in sample.ids}, {})
        rule.mean(server, sent, POINT)
    for client in server.everyone:
        when = [t for t in range(T) if client in server.sample(law, t).ids]
        own = [line for line in server.ledger if line.owner == client]
        assert numbered(own, when) == Ledger(rule.lines(client, 5, len(when)))


@given(mu=st.floats(0.1, 10), steps=st.integers(1, 3), when=rounds)
@often(5)
def test_prototypes_and_the_steps_under_them_are_what_was_predicted(mu, steps, when):
    rule = ExampleLevel(mu, 1.0, 2.0, Episodes(steps=steps, batch=20), 1e-5)
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    ledger = Ledger()
    for t in when:
        me = replace(at(t, ledger, 20), model=model)
        private = rule.private(20, len(when))
        trained = rule.local.fit(me, params(model).as_released(), grad=keep, private=private)
        assert rule.send(me, trained).released
    assert numbered(ledger, when) == Ledger(rule.lines("0", 20, len(when)))


def keep(g, y):
    return g


@FEW
@given(clip=positive, mu2=positive, K=st.integers(1, 6))
def test_equal_shares_of_what_is_left_are_predicted_for_the_last_rounds(clip, mu2, K):
    whole, ledger = EqualShares(clip, mu2, K), Ledger()
    share = whole
    for t in range(K):
        assert share.now().send(at(t, ledger), POINT).released
        share = share.next()
    assert numbered(ledger, range(K)) == Ledger(whole.lines("0", 20, K))


@FEW
@given(mu=positive, R=st.floats(0.01, 10), when=rounds, shared=st.booleans())
def test_moments_are_two_releases_as_predicted(mu, R, when, shared):
    terms, ledger = Terms(mu, R=R), Ledger()
    F, y = torch.tensor([[0.6, 0.8], [0.0, 0.3]]), torch.tensor([0, 2])
    for t in when:
        assert release(at(t, ledger), F, y, 3, terms, shared=shared).released
    assert numbered(ledger, when) == Ledger(terms.lines("0", 2, len(when)))


@FEW
@given(mu=positive, R=st.floats(0.01, 10))
def test_moments_in_two_views_cost_mu_together_as_predicted(mu, R):
    rule, ledger = cuag_gaussian.Gaussian(mu, rate=0.3), Ledger()
    F, y = torch.tensor([[0.6, 0.8], [0.0, 0.3]]), torch.tensor([0, 2])
    release(at(0, ledger), F, torch.zeros_like(y), 1, rule.first)
    release(at(0, ledger), F, y, 3, replace(rule.second, R=R))  # R follows from the first one
    assert numbered(ledger, [0]) == Ledger(rule.lines("0", 2, 1))
    assert sum(line.total() / line.event.z**2 for line in ledger) == pytest.approx(mu**2)


@FEW
@given(queries=st.integers(1, 9), scale=positive, kind=kinds, when=rounds)
def test_counts_of_votes_are_one_line_for_all_queries_as_predicted(queries, scale, kind, when):
    rule, ledger = NoisyCounts("votes", queries, scale, kind), Ledger()
    for t in when:
        rule.send(at(t, ledger), np.ones((queries, 3)))
    assert numbered(ledger, when) == Ledger(rule.lines("0", 20, len(when)))


@FEW
@given(queries=st.integers(1, 9), scale=positive, kind=kinds, T=st.integers(1, 4))
def test_winners_are_paid_for_by_every_voter_as_predicted(queries, scale, kind, T):
    server, rule = a_server(), NoisyWinners("x.train", queries, scale, kind)
    for t in range(T):
        rule.send(server, replies(server, Everyone(), t), np.ones((queries, 3)))
    for client in server.everyone:
        own = [line for line in server.ledger if line.owner == client]
        assert numbered(own, range(T)) == Ledger(rule.lines(client, 20, T))


laws = st.sampled_from(["poisson", "fixed"])


@FEW
@given(
    rule=st.builds(NoisySteps, st.floats(0.01, 1), positive, positive, st.integers(1, 9), laws),
    when=rounds,
    task=st.sampled_from(["", "x.train"]),
)
def test_noisy_steps_are_one_line_a_round_and_no_step_more(rule, when, task):
    ledger = Ledger()
    for t in when:
        steps = rule.begin(replace(at(t, ledger), task=task))
        for _ in steps.samples(20):
            steps.noised([torch.zeros(2)])
        with pytest.raises(RuntimeError, match="more releases"):
            steps.noised([torch.zeros(2)])
    told = [replace(line, what=f"{task} dp-sgd".strip()) for line in rule.lines("0", 20, len(when))]
    assert numbered(ledger, when) == Ledger(told)


@FEW
@given(epsilon=positive, when=rounds)
def test_counts_of_examples_are_one_line_as_predicted(epsilon, when):
    rule, ledger = histogram_rule(epsilon), Ledger()
    for t in when:
        rule.send(at(t, ledger), np.array([3, 0, 17]))
    assert isinstance(rule, Histogram)
    assert numbered(ledger, when) == Ledger(rule.lines("0", 20, len(when)))


@FEW
@given(epsilon=st.floats(0.01, 10), classes=st.integers(1, 6), when=rounds)
def test_labels_by_pls_are_a_choice_for_each_class_as_predicted(epsilon, classes, when):
    rule, ledger = pls_rule(epsilon, classes), Ledger()
    for t in when:
        pls(at(t, ledger), classes=classes, gamma=0.5, epsilon=epsilon)
    assert isinstance(rule, Choices)
    assert numbered(ledger, when) == Ledger(rule.lines("0", 20, len(when)))
    # whoever does not know the classes counts one choice with all of epsilon
    whole, each = (sum_of(r.lines("0", 20, 1)) for r in (pls_rule(epsilon), rule))
    assert each == pytest.approx(whole)


def sum_of(lines):
    return sum(line.event.epsilon * line.total() for line in lines)


def test_a_rule_makes_as_many_choices_as_it_is_for():
    with pytest.raises(ValueError, match="the rule is for 2"):
        pls_rule(1.0, 2).send(at(0, Ledger()), [np.zeros(3)] * 3, sensitivity=1.0)


@FEW
@given(
    gan=st.builds(
        GAN,
        epochs=st.integers(1, 3),
        batch=st.integers(1, 30),
        z=st.floats(2.0, 9.0),
        conditional=st.booleans(),
        mode=st.sampled_from(["certified", "paper"]),
    ),
    n=st.integers(1, 40),
    when=rounds,
)
def test_the_steps_of_a_gan_and_its_labels_are_what_was_predicted(gan, n, when):
    rule, ledger = gan.rule(np.inf, 1e-5), Ledger()
    for t in when:
        rule.begin(at(t, ledger), n)
    assert isinstance(rule, Training)
    assert numbered(ledger, when) == Ledger(rule.lines("0", n, len(when)))


@FEW
@given(all_of=st.lists(rules, max_size=3, unique_by=lambda rule: rule.lines("0", 20, 1)[0].what))
def test_rules_together_say_what_each_says(all_of):
    ledger = Ledger()
    for rule in all_of:
        rule.send(at(0, ledger), POINT)
    assert numbered(ledger, [0]) == Ledger(Together(tuple(all_of)).lines("0", 20, 1))


@given(times=st.integers(0, 5))
def test_updates_as_they_are_need_one_line_however_many_rounds(times):
    lines = Unnoised("mine").lines("0", 20, times)
    assert [line.event for line in lines] == [NonPrivate(WITHOUT)] * (times > 0)


WITHOUT = "mine sends its updates without noise"


def test_what_stays_at_home_says_so_beside_the_steps():
    sgd = SGD(batch=20, clip=1.0, z=2.0)
    said, *steps = Local(sgd=sgd).rule("0", 20, 3, 1e-5).lines("0", 20, 3)
    assert isinstance(said.event, Nothing)
    assert steps == sgd.lines("0", 20, 3)


HERE = {Open, AsPublished, Noised, Update, NoisyMean, ClaimedMean, NoisyCounts, NoisyWinners}
HERE |= {cuag_claims.AsPublished, ExampleLevel, LayeredUpdate, LayeredSum}
HERE |= {SGD, EqualShares, Terms, Unnoised, Together, Silent}
HERE |= {NoisySteps, Histogram, Choices, Training, ByLayer, cuag_gaussian.Gaussian}


def test_every_rule_of_the_package_is_tried_here():
    """A class of settings that predicts ledger lines is a rule, wherever it stands."""
    found = set()
    for room in ("core", "privacy", "local", "synthesis", "methods"):
        package = importlib.import_module(f"tacit.{room}")
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            members = vars(importlib.import_module(module.name)).values()
            found |= {c for c in members if isinstance(c, type) and "lines" in vars(c)}
    rules_found = {c for c in found if is_dataclass(c)}
    assert rules_found == HERE


def test_only_rules_call_a_mechanism_that_writes_a_line():
    """So whatever is released has a rule; a method of the package cannot go past it."""
    writes = {"gaussian", "gaussian_update", "gaussian_mean", "claimed_gaussian", "claimed_mean"}
    writes |= {"without_guarantee", "PrivateSteps", "discrete_laplace", "exponential"}
    writes |= {"exponentials", "noisy_votes", "noisy_counts"}
    assert writes <= vars(mechanisms).keys()
    root = Path(tacit.__file__).parent
    callers = {
        file.relative_to(root).as_posix()
        for file in root.rglob("*.py")
        if "mechanisms" in (text := file.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", getattr(node.func, "attr", "")) in writes
    }
    assert callers - {"privacy/mechanisms.py"} == {"privacy/rules.py"}
