"""Rules that make one update of many: by hand, by what liars can do to them, and who takes them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sandbox import Sandbox, small

from tacit.core import Aggregate, BadInput, Params, PublicInt, TooFewReplies, mean
from tacit.experiment.config import Experiment, Setting, experiment_from, setting_from
from tacit.experiment.drive import drive
from tacit.experiment.plan import Plan, check_aggregate
from tacit.local.sgd import SGD
from tacit.methods import METHODS
from tacit.methods.fedavg import FedAvg

ROBUST = ("trimmed:0.2", "median", "clipped:1.0", "krum:1")


def points(*rows):
    """Return points of two tensors, of the two halves of each row."""
    return [Params(a=torch.tensor(row[:1]), b=torch.tensor(row[1:]).reshape(-1, 1)) for row in rows]


def row(x):
    return [v for t in x.values() for v in t.reshape(-1).tolist()]


FIVE = points([1.0, 10.0], [2.0, 20.0], [3.0, 30.0], [4.0, 40.0], [1e30, -1e30])


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("median", [3.0, 20.0]),  # 1 2 3 4 1e30, and -1e30 10 20 30 40
        ("trimmed:0.2", [3.0, 20.0]),  # 2 3 4, and 10 20 30
        ("trimmed:0.1", None),  # a tenth of five is nobody
        # squares of the two nearest: 101 + 404, 101 + 101, 101 + 101, ...: the first of the best
        ("krum:1", [2.0, 20.0]),
    ],
)
def test_by_hand(word, expected):
    found = row(Aggregate.of(word)(FIVE))
    if expected is None:
        assert found == row(mean(FIVE))
    else:
        assert found == expected


def test_centred_clipping_by_hand():
    """From the median 2 of 0, 2 and 100: clipped to 3 the pulls are -2, 0 and 3, so 1/3 up."""
    centre, found = 2.0, Aggregate.of("clipped:3.0")(points([0.0], [2.0], [100.0]))
    for _ in range(3):
        centre += np.mean([np.clip(v - centre, -3, 3) for v in (0.0, 2.0, 100.0)])
    assert row(found) == pytest.approx([centre])


def test_the_mean_is_the_mean_to_the_bit():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(7, 5)).tolist()
    parts = [(p, int(n)) for p, n in zip(points(*rows), rng.integers(1, 99, 7), strict=True)]
    one, other = Aggregate()(parts), mean(parts)
    assert all(torch.equal(one[k], other[k]) for k in other)


@pytest.mark.parametrize("word", ROBUST)
def test_where_all_agree_all_rules_do(word):
    same = points(*[[1.5, -2.0, 3.0]] * 7)
    assert row(Aggregate.of(word)(same)) == pytest.approx([1.5, -2.0, 3.0])


numbers = st.floats(-100, 100, width=32)
honest = st.lists(st.tuples(numbers, numbers), min_size=5, max_size=9)
lies = st.sampled_from([3e38, -3e38, 1e6, -1e6, 0.0])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(honest, st.tuples(lies, lies), st.sampled_from(ROBUST[:2] + ROBUST[3:]))
def test_one_liar_cannot_leave_the_range_of_the_honest(rows, lie, word):
    """Of six to ten, in every coordinate. The mean does: that is what these rules are for."""
    found = row(Aggregate.of(word)(points(*map(list, rows), list(lie))))
    low, high = np.min(rows, 0), np.max(rows, 0)
    if word.startswith("krum"):  # it takes one that was sent, and far away nobody is
        assert tuple(found) in {*rows, lie}
        if np.abs(lie).max() > 1e5:
            assert tuple(found) in rows
    else:
        assert np.all(low - 1e-3 <= found)
        assert np.all(found <= high + 1e-3)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(honest, st.tuples(lies, lies))
def test_one_liar_moves_centred_clipping_by_no_more_than_its_steps(rows, lie):
    """Each of three steps goes at most tau from a centre that is in the honest range."""
    found = row(Aggregate.of("clipped:1.0")(points(*map(list, rows), list(lie))))
    assert np.all(np.min(rows, 0) - 3.001 <= found)
    assert np.all(found <= np.max(rows, 0) + 3.001)


@pytest.mark.parametrize("word", ROBUST)
def test_weights_do_not_count(word):
    """Nobody gains by saying that it has a million examples."""
    x = points(*np.random.default_rng(1).normal(size=(7, 4)).tolist())
    weighted = [(p, 10**6 if i == 3 else 1) for i, p in enumerate(x)]
    assert row(Aggregate.of(word)(weighted)) == row(Aggregate.of(word)(x))


@pytest.mark.parametrize("word", ["mean", *ROBUST])
def test_what_is_made_of_released_points_is_released(word):
    x = points(*np.random.default_rng(1).normal(size=(7, 4)).tolist())
    assert not Aggregate.of(word)(x).released
    assert Aggregate.of(word)([(p.as_released(), PublicInt(1)) for p in x]).released


@pytest.mark.parametrize(
    "word",
    ["middle", "trimmed", "trimmed:0.5", "trimmed:0", "trimmed:x", "median:2", "mean:1", "krum",
     "krum:1.5", "krum:-1", "clipped:0", "clipped:inf", "clipped:nan", ""],
)  # fmt: skip
def test_a_word_that_says_nothing_is_refused(word):
    with pytest.raises(BadInput, match="aggregate"):
        Setting(aggregate=word)


def test_krum_needs_enough_replies():
    with pytest.raises(TooFewReplies, match="needs 5 replies, and 4 came"):
        Aggregate.of("krum:1")(FIVE[:4])
    with pytest.raises(BadInput, match="needs 7 clients in a round, has 5"):
        Plan.of(Experiment(FedAvg(per_round=5), Setting(aggregate="krum:2")))


def test_it_is_one_setting_of_files_and_python():
    raw = {"aggregate": "median", "method": {"name": "fedavg"}}
    assert experiment_from(raw).setting.aggregate == "median"
    assert setting_from({"aggregate": "krum:1"}, FedAvg()).aggregate == "krum:1"


def spied(monkeypatch):
    seen = []
    call = Aggregate.__call__
    monkeypatch.setattr(Aggregate, "__call__", lambda me, parts: seen.append(me) or call(me, parts))
    return seen


@pytest.mark.parametrize("name", METHODS)
def test_who_takes_it_uses_it_and_who_does_not_refuses_it_by_name(name, monkeypatch, tmp_path):
    method, seen = small(name), spied(monkeypatch)
    if not method.takes_aggregate:
        with pytest.raises(BadInput, match=r"aggregate = 'median': \w+ does not take it"):
            check_aggregate(Experiment(method, Setting(aggregate="median")), 6)
        assert name not in ("fedavg", "fedprox", "scaffold", "ldp_fl", "udp", "nbafl", "pfldyn")
        return
    assert name not in ("dp_fedavg", "cl_fl", "pate", "moments", "centralised", "local")
    sandbox = Sandbox(tmp_path)
    engine = sandbox.serial(method, aggregate=Aggregate.of("median"))
    drive(method, engine, method.init(sandbox.x0))
    assert seen
    assert {rule.rule for rule in seen} == {"median"}


def test_what_rests_on_the_mean_refuses_it_whatever_is_around_it():
    assert not METHODS["cuag"](unit="client", observer="clients").takes_aggregate
    assert METHODS["cuag"](unit="client").takes_aggregate
    assert METHODS["dafl"](method=METHODS["scaffold"]()).takes_aggregate
    assert not METHODS["dafl"](method=METHODS["dp_fedavg"]()).takes_aggregate


def test_a_run_with_a_liar_learns_where_the_mean_does_not(tmp_path, monkeypatch):
    """One of four sends its update backwards, a hundred times as long, within no bound at all."""
    losses = {}
    for word in ("mean", "median"):
        sandbox = Sandbox(tmp_path / word)
        engine = sandbox.serial(None, aggregate=Aggregate.of(word))
        ask = engine.ask

        def lying(call, of, *, need=0.5, ask=ask):
            replies = ask(call, of, need=need)
            replies._got[0] = replace(replies[0], dx=-100.0 * replies[0].dx)
            return replies

        engine.ask = lying
        method = FedAvg(rounds=5, sgd=SGD(lr=0.2, batch=4, epochs=2))
        s = drive(method, engine, method.init(sandbox.x0))
        losses[word] = s.x.norm()
    assert losses["mean"] > 10 * sandbox.x0.norm() > losses["median"]
