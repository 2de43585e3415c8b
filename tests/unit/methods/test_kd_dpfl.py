"""Groups, the two phases line by line, who pays what, and what is refused."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from sandbox import PUBLIC, Sandbox

import tacit
from tacit import privacy
from tacit.cli.main import call
from tacit.core import BadInput, NonPrivate, Params, mean
from tacit.data.examples import Examples
from tacit.engines.serial import Serial
from tacit.experiment.config import Experiment, Setting
from tacit.experiment.drive import drive
from tacit.experiment.forecast import predicted
from tacit.local.sgd import SGD
from tacit.methods.fedavg import train as plain_training
from tacit.methods.kd_dpfl import KDDPFL
from tacit.privacy.mechanisms import public_noise
from tacit.privacy.noise import FromSeed, noised

DELTA = 1e-5
GENERAL, LARGE = ["0", "1", "2"], ["3", "4", "5"]


pytestmark = pytest.mark.usefixtures("one_thread")


def run(method, tmp_path, **how):
    sandbox = Sandbox(tmp_path)
    engine = sandbox.serial(method)
    return drive(method, engine, method.init(sandbox.x0), **how), engine


def spent(engine, observer="server", unit="example"):
    return privacy.by_owner(engine.ledger, unit=unit, observer=observer, delta=DELTA)


# ---- who pays what
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", ["moments", "sub-teachers"])
def test_large_clients_pay_eps_1_and_general_ones_eps_2(labels, tmp_path):
    _, engine = run(
        KDDPFL(labels=labels, eps_1=1.0, eps_2=3.0, rounds=4, per_round=3, sub=2), tmp_path
    )
    each = spent(engine)
    assert [round(each[i], 2) for i in LARGE] == [1.0] * 3
    assert all(2.95 < each[i] <= 3.0 + 1e-9 for i in GENERAL)
    assert privacy.epsilon(engine.ledger, unit="example", observer="server", delta=DELTA) == max(
        each.values()
    )


def test_the_maximum_is_eps_1_where_that_is_larger(tmp_path):
    _, engine = run(KDDPFL(eps_1=5.0, eps_2=1.0, rounds=2, per_round=3), tmp_path)
    whole = privacy.epsilon(engine.ledger, unit="example", observer="server", delta=DELTA)
    assert whole == pytest.approx(5.0, rel=1e-3)


def test_large_clients_that_join_pay_for_both_phases(tmp_path):
    """Two Gaussian costs compose: more than either, less than their sum."""
    _, engine = run(
        KDDPFL(eps_1=1.0, eps_2=2.0, rounds=4, per_round=0, large_join=True, sgd=SGD(batch=1000)),
        tmp_path,
    )
    each = spent(engine)
    both = privacy.gdp_epsilon(
        math.hypot(privacy.gdp_mu(1.0, DELTA), privacy.gdp_mu(2.0, DELTA)), DELTA
    )
    assert [each[i] for i in LARGE] == pytest.approx([both] * 3, rel=1e-3)
    assert [each[i] for i in GENERAL] == pytest.approx([2.0] * 3, rel=1e-3)
    assert 2.0 < both < 3.0


def test_votes_hide_large_clients_from_all_but_the_server(tmp_path):
    method = KDDPFL(labels="vote", eps_1=2.0, eps_2=3.0, rounds=2, per_round=3)
    assert method.protects == ("example", "clients")
    _, engine = run(method, tmp_path)
    assert spent(engine, "clients")["4"] == pytest.approx(2.0, rel=1e-3)
    assert spent(engine, "server")["4"] == math.inf
    # a whole large client
    assert spent(engine, "clients", "client")["4"] == pytest.approx(2.0, rel=1e-3)
    assert spent(engine, "clients", "client")["0"] == math.inf  # but only examples of a general one


def test_nobody_takes_part_more_often_than_allowed_and_then_it_ends(tmp_path):
    s, engine = run(KDDPFL(rounds=10, per_round=3, K_max=2, eps_2=3.0), tmp_path)
    assert s.round == 3  # 3 clients, twice each, two a round
    lines = [line for line in engine.ledger if "dp-sgd" in line.what]
    assert Counter(
        line.owner for line in lines for a, b in line.rounds for _ in range(a, b + 1)
    ) == dict.fromkeys(GENERAL, 2)
    assert max(spent(engine)[i] for i in GENERAL) <= 3.0


def test_turns_differ_by_at_most_one_and_are_drawn_by_lot(tmp_path):
    method = KDDPFL(rounds=50, per_round=4)
    engine = Sandbox(tmp_path).serial(method)
    sizes = {f"{i:02}": 2500 if i < 4 else 1000 for i in range(30)}
    plan = method.phase_2.plan(engine, method.pool(sizes))
    assert all(len(set(chosen)) == 3 and min(chosen) >= "04" for chosen in plan)
    taken = Counter(i for chosen in plan for i in chosen)
    assert max(taken.values()) - min(taken.values()) <= 1
    assert len({tuple(chosen) for chosen in plan}) > 40
    assert plan == method.phase_2.plan(engine, method.pool(sizes))  # the same after a restart


def test_the_predicted_cost_is_what_is_spent():
    setting = Setting(split="sizes:2x300,6x100,public=200", workers=0)
    for word in (
        {"eps_1": 1.0, "eps_2": 2.0},
        {"labels": "sub-teachers", "epsilon": 3.0},
        {"large_join": True},
    ):
        method = KDDPFL(rounds=5, per_round=3, **word)
        ledger = predicted(Experiment(method, setting))
        got = privacy.epsilon(ledger, unit="example", observer="server", delta=DELTA)
        want = max(method.budgets)
        assert got >= 0.98 * want
        assert got <= want + 1e-9 or method.large_join


def test_large_clients_join_phase_2_only_where_they_are_asked_to():
    sizes = {"a": 2500, "b": 2500, "c": 1000, "d": 1000, "e": 1000}
    for mode in ("certified", "paper"):
        both = [KDDPFL(mode=mode, large_join=join) for join in (False, True)]
        alone, joined = (method.phase_2.turns(method.pool(sizes)) for method in both)
        assert list(alone.pool) == ["c", "d", "e"]
        assert sorted(joined.pool) == ["a", "b", "c", "d", "e"]


# ---- the paper, line by line
# -----------------------------------------------------------------------------------------

PAPER = KDDPFL(
    mode="paper", rounds=3, per_round=3, epsilon=6.0, eps_1=1e6, ratio=0.5, C=0.01,
    sgd=SGD(lr=0.5, epochs=2, batch=250),
)  # fmt: skip


def test_a_round_of_the_paper(tmp_path):
    """Algorithm 2, lines 4 to 13: noise on everybody's weights, then their mean by data volume."""
    first, _ = run(PAPER, tmp_path / "a", stop_after=1)
    assert first.round == 0
    s, _ = run(PAPER, tmp_path / "a2", stop_after=2)
    sandbox = Sandbox(tmp_path / "b")
    world = sandbox.world(PAPER, tmp_path / "b" / "w")
    other = sandbox.serial(PAPER, folder=tmp_path / "b" / "w")
    chosen = PAPER.phase_2.plan(other, PAPER.pool(first.sizes))[0]
    assert len(chosen) == 2
    eps_pub = 6.0 / 3 / (1 + 2 * 0.5)
    x = first.x
    pseudo = Examples(other.public.x, first.labels)
    w_pub = x + other.own(plain_training(x=x, sgd=PAPER.special), pseudo, 0).dx
    w_pub = public_noise(other, w_pub, sd=published(0.01, PUBLIC, eps_pub), t=0)
    parts = [(w_pub, PUBLIC)]
    for i in chosen:
        me = world.client("kd_dpfl.train", i, 0, {})
        y, _ = PAPER.sgd.fit(me, x)
        sd = published(0.01, len(me.data), 0.5 * eps_pub)
        noisy = noised(FromSeed(me.rng.spawn(1)[0]), list(y.values()), sd)
        parts.append((Params(zip(y, noisy, strict=True)), len(me.data)))
    assert (s.x - mean(parts)).norm() < 1e-4 * s.x.norm()


def published(C, n, epsilon):
    return 2 * C / n * math.sqrt(2 * math.log(1.25 / DELTA)) / epsilon


def test_the_papers_ledger_says_infinity_and_why(tmp_path):
    _, engine = run(PAPER, tmp_path)
    assert (
        privacy.epsilon(engine.ledger, unit="example", observer="clients", delta=DELTA) == math.inf
    )
    assert "no clipping" in privacy.reason(engine.ledger, observer="clients")
    whys = {type(line.event) for line in engine.ledger if line.what == "kd_dpfl weights"}
    assert whys == {NonPrivate}
    votes = [line for line in engine.ledger if "noisy max" in line.what]
    assert [line.owner for line in votes] == LARGE  # phase 1 is honest, and has its own lines


@pytest.mark.parametrize(("eps_2", "rounds"), [(6.0, 2), (7.0, 3), (2.9, 1), (100.0, 5)])
def test_the_paper_goes_on_while_it_has_not_spent_its_budget(eps_2, rounds, tmp_path):
    """Algorithm 2, lines 3 and 16.

    A round with N = 3 costs eps_pub + 2 eps_pri = 1.5 + 2 * 0.75 = 3.
    """
    s, _ = run(replace(PAPER, rounds=5, eps_2=eps_2, eps_pub=1.5), tmp_path)
    assert (s.round, s.spent) == (rounds, 3.0 * rounds)


def test_the_papers_budget_lasts_for_all_rounds_unless_said_otherwise(tmp_path):
    s, _ = run(PAPER, tmp_path)
    assert s.round == 3
    assert s.spent == pytest.approx(6.0)
    assert PAPER.claims({str(i): 10 + 10 * (i > 2) for i in range(6)}, DELTA)[0][:2] == (
        "published",
        1e6,
    )


def test_the_papers_special_client_is_noised_less(tmp_path):
    """A ratio eps_pri / eps_pub below one gives the special client more of the same total."""
    for ratio in (0.1, 0.9):
        eps_pub = 6.0 / 3 / (1 + 2 * ratio)
        assert eps_pub + 2 * ratio * eps_pub == pytest.approx(2.0)
        assert published(1.0, 100, eps_pub) < published(1.0, 100, ratio * eps_pub)


# ---- certified
# --------------------------------------------------------------------------------------------------


def test_a_certified_round_leaves_the_special_client_alone(tmp_path):
    """With N = 1 there is nobody else: the model is that of the special client, without noise."""
    method = KDDPFL(rounds=2, per_round=1)
    s, engine = run(method, tmp_path)
    sandbox = Sandbox(tmp_path / "b")
    other = sandbox.serial(method)
    x = sandbox.x0
    for t in range(2):
        x = (
            x
            + other.own(
                plain_training(x=x, sgd=method.special), Examples(other.public.x, s.labels), t
            ).dx
        )
    assert (s.x - x).norm() < 1e-6
    assert [round(spent(engine)[i], 6) for i in GENERAL] == [0.0] * 3


def test_true_labels_of_the_public_set_change_nothing_but_the_report(tmp_path):
    method = KDDPFL(rounds=2, per_round=3)
    first, _ = run(method, tmp_path / "a")
    sandbox = Sandbox(tmp_path / "b")
    public = sandbox.federation(method).public()
    engine = sandbox.serial(method, public=Examples(public.x, first.labels))
    second = drive(method, engine, method.init(sandbox.x0))
    assert torch.equal(first.labels, second.labels)
    assert all(torch.equal(a, b) for a, b in zip(first.x.values(), second.x.values(), strict=True))
    assert first.right < second.right == 1.0


def test_a_large_client_with_one_class(tmp_path):
    """Its teacher knows one class, its moments are those of one class.

    Labels come out, and the price is the same.
    """
    for labels in ("moments", "sub-teachers", "vote"):
        method = KDDPFL(labels=labels, rounds=1, per_round=2, sub=2)
        sandbox = Sandbox(tmp_path / labels)
        world = sandbox.world(method, tmp_path / labels / "w")
        world.federation.dataset.train.y[world.federation.split.train[5]] = 1
        engine = Serial(world)
        s = drive(method, engine, method.init(sandbox.x0))
        assert len(s.labels) == PUBLIC
        assert spent(engine, method.protects[1])["5"] == pytest.approx(8.0, rel=1e-3)


# ---- refused, and reported
# -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "split", "words"),
    [
        ("kd_dpfl", "iid", ["split = 'iid'", "kd_dpfl needs a public set"]),
        ("kd_dpfl", "sizes:2x300,3x100", ["needs a public set"]),
        ("kd_dpfl:m=9", "sizes:2x300,3x100,public=50", ["m = 9", "at most 5"]),
        ("kd_dpfl:m=5", "sizes:2x300,3x100,public=50", ["m = 5", "no general client"]),
        ("kd_dpfl", "sizes:5x100,public=50", ["m = 0", "no general client"]),
        ("kd_dpfl:eps_1=-1.0", "iid", ["eps_1 = -1", "at least 0"]),
        ("kd_dpfl:epsilon=0.0", "iid", ["epsilon = 0", "above 0"]),
        ("kd_dpfl:ratio=0.0", "iid", ["ratio = 0", "above 0"]),
        (
            "kd_dpfl:mode=paper,labels=moments",
            "iid",
            ["labels = 'moments'", "allowed with mode = paper: vote"],
        ),
        ("kd_dpfl:sgd.clip=1.0", "iid", ["sgd.clip", "must be 0"]),
    ],
)
def test_refused_in_one_line_and_no_folder_is_left(word, split, words, tmp_path):
    with pytest.raises(BadInput) as e:
        tacit.run(word, split=split, out=tmp_path / "run", workers=0)
    assert all(w in str(e.value) for w in words), str(e.value)
    assert "\n" not in str(e.value)
    assert not (tmp_path / "run").exists()


def test_a_run_says_what_each_group_pays(tmp_path, capsys):
    args = (
        "run kd_dpfl --split sizes:2x300,6x100,public=200 --rounds 2 --per-round 3 --eps-1 1 "
        "--eps-2 4 --workers 0"
    )
    assert call([*args.split(), "--noise", "seeded", "--out", str(tmp_path / "r")]) == 0
    said = capsys.readouterr().out
    assert "pseudo-labels: " in said
    assert "eps by group: large (2 clients) 1, general (6 clients) 4;" in said
    assert "the largest holds for all: clients hold disjoint data" in said
    assert np.isclose(
        tacit.resume(tmp_path / "r").final["groups"]["general"]["epsilon"], 4.0, rtol=0.01
    )


@pytest.mark.parametrize(
    "figure",
    [
        {"epsilon": 1.0},  # 2a, 3
        {"per_round": 0},  # 2b: everybody
        {"per_round": 0, "large_join": True},  # 3, the second comparison
        {"ratio": 0.1},  # 4
        {"eps_1": 1000.0},  # 5, 6
    ],
    ids=str,
)
def test_paper_mode_runs_in_the_settings_of_every_figure(figure, tmp_path):
    """All rounds are done, what the paper counts is eps_2, and the model is finite."""
    method = KDDPFL(mode="paper", rounds=2, per_round=3, C=0.01, teacher=SGD(epochs=1))
    method = replace(method, **figure)
    s, engine = run(method, tmp_path)
    assert s.round == 2
    assert s.spent == pytest.approx(method.budgets[1])
    assert all(torch.isfinite(v).all() for v in s.x.values())
    noised = {line.owner for line in engine.ledger if line.what == "kd_dpfl weights"}
    assert noised & set(LARGE) == (set(LARGE) if method.large_join else set())
