"""The ledger forgets nothing, stays small, and survives the disk.

A point remembers whether it may leave its client.
"""

import dataclasses
import itertools
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.codec import pack, same, unpack
from tacit.core import (
    BadInput,
    Client,
    Damaged,
    Gaussian,
    Laplace,
    Ledger,
    NonPrivate,
    Nothing,
    Params,
    PublicInt,
    Pure,
    Release,
    Released,
    Sampling,
    mean,
    public,
    union,
    weighted_sum,
)
from tacit.engines.sealed import MOST, add_sealed, read_sealed
from tacit.engines.store import ClientStore, from_json, read_ledger, to_json, to_text

LINE = Release("fedavg.train", "example", "3", "server", Gaussian(1.0), ((0, 0),), noise="seeded")


def at(line, first, last=None, **changes):
    return dataclasses.replace(line, rounds=((first, first if last is None else last),), **changes)


def rounds_of(spans):
    return {t for first, last in spans for t in range(first, last + 1)}


# ----------------------------------------------------------------------------------------------
# rounds and run lengths


spans = st.tuples(st.integers(0, 60), st.integers(0, 6)).map(lambda s: (s[0], s[0] + s[1]))
disjoint = st.lists(spans, max_size=8).map(lambda parts: union(tuple(parts), ()))


@given(a=disjoint, b=disjoint)
def test_the_union_has_the_rounds_of_both_and_one_form(a, b):
    both = union(a, b)
    assert rounds_of(both) == rounds_of(a) | rounds_of(b)
    assert both == union(b, a) == union(both, a) == union(both, both)
    assert all(x[1] + 1 < y[0] for x, y in itertools.pairwise(both))


@given(parts=st.lists(spans, min_size=1, max_size=10), data=st.data())
def test_the_order_of_writing_does_not_matter(parts, data):
    lines = [at(LINE, *part) for part in parts]
    shuffled = data.draw(st.permutations(lines))
    one, other = Ledger(lines), Ledger(shuffled)
    assert one == other
    assert [rounds_of(line.rounds) for line in one] == [rounds_of(tuple(parts))]
    assert sum(line.total() for line in one) == len(rounds_of(tuple(parts)))


def test_a_million_rounds_are_one_line_of_text():
    ledger = Ledger()
    # the first one by one, the rest as a ledger that arrives late
    for t in range(1_000_000 // 100):
        ledger.add([at(LINE, t)])
    ledger.add([at(LINE, 10_000, 999_999)])
    assert len(ledger) == 1
    assert next(iter(ledger)).total() == 1_000_000
    assert len(to_text(ledger)) < 1_000


def test_a_million_steps_in_irregular_rounds_stay_under_a_megabyte():
    """Every other round is the worst case for run lengths: 20,000 rounds of 50 steps."""
    ledger = Ledger(
        [dataclasses.replace(LINE, rounds=tuple((t, t) for t in range(0, 40_000, 2)), steps=50)]
    )
    assert next(iter(ledger)).total() == 1_000_000
    assert len(to_text(ledger)) < 1_000_000


def test_steps_count_in_every_round():
    assert dataclasses.replace(LINE, rounds=((0, 4), (7, 7)), steps=3).total() == 18


@pytest.mark.parametrize(
    "change",
    [
        {"what": "b"}, {"unit": "client"}, {"owner": "4"}, {"observer": "clients"},
        {"event": Gaussian(2.0)}, {"steps": 2}, {"sampling": Sampling("poisson", 0.5)},
        {"relation": "replace"}, {"covers": "a"},
        {"noise": "os"}, {"attempt": 1},
    ],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_lines_that_differ_in_anything_but_rounds_are_two(change):
    ledger = Ledger([at(LINE, 0), at(LINE, 1, **change)])
    assert len(ledger) == 2
    assert sum(line.rounds == ((0, 1),) for line in ledger) == 0


# ------------------------------------------------------------------------------------------------
# again, or once more


def test_seeded_noise_of_a_known_round_is_the_same_release():
    ledger = Ledger()
    for t in (0, 1, 1, 0):
        ledger.release(at(LINE, t))
    assert [line.rounds for line in ledger] == [((0, 1),)]


def test_fresh_noise_in_a_known_round_is_a_further_release():
    ledger = Ledger()
    for t in (0, 1, 1, 1, 0):
        ledger.release(at(LINE, t, noise="os"))
    got = {line.attempt: line.rounds for line in ledger}
    assert got == {0: ((0, 1),), 1: ((0, 1),), 2: ((1, 1),)}
    assert sum(line.total() for line in ledger) == 5


@given(st.lists(st.integers(0, 5), max_size=30))
def test_fresh_noise_is_never_counted_less_often_than_it_was_drawn(rounds):
    ledger = Ledger()
    for t in rounds:
        ledger.release(at(LINE, t, noise="os"))
    assert sum(line.total() for line in ledger) == len(rounds)


def test_fresh_noise_in_rounds_that_overlap_is_counted_twice():
    ledger = Ledger()
    ledger.release(at(LINE, 0, 5, noise="os"))
    ledger.release(at(LINE, 3, 8, noise="os"))
    assert sum(line.total() for line in ledger) == 12


def test_two_seeded_releases_in_one_task_are_two():
    me = Client("3", 0, None, None, torch.nn.Identity(), {}, np.random.default_rng(0))
    me.release(at(LINE, 0))
    me.release(at(LINE, 0))
    assert sum(line.total() for line in me.spent) == 2


def test_adding_a_whole_ledger_again_changes_nothing_and_says_so():
    """A client sends all it has ever released with every reply, attempts and all."""
    mine = Ledger()
    for t in (0, 1, 1):
        mine.release(at(LINE, t, noise="os"))
    server = Ledger()
    assert {line.rounds for line in server.add(mine)} == {((0, 1),), ((1, 1),)}
    assert server.add(mine) == []
    assert server == mine
    mine.release(at(LINE, 2, noise="os"))
    assert [line.rounds for line in server.add(mine)] == [((0, 2),)]


def test_plus_leaves_the_original_alone():
    ledger = Ledger([at(LINE, 0)])
    more = ledger.plus(at(LINE, 1), at(LINE, 0, owner="4"))
    assert ledger == Ledger([at(LINE, 0)])
    assert more == Ledger([at(LINE, 0, 1), at(LINE, 0, owner="4")])
    more.release(at(LINE, 7))
    assert ledger == Ledger([at(LINE, 0)])


def test_plus_counts_fresh_noise_as_a_further_release():
    ledger = Ledger([at(LINE, 0, noise="os")])
    assert sum(line.total() for line in ledger.plus(at(LINE, 0, noise="os"))) == 2


def test_order_is_no_difference_between_ledgers():
    a, b = at(LINE, 0), at(LINE, 0, owner="4")
    assert Ledger([a, b]) == Ledger([b, a])
    assert Ledger([a]) != Ledger([b])
    assert Ledger([a]) != [a]


# --------------------------------------------------------------------------------------------------
# on disk


positive = st.floats(1e-300, 1e300)
events = st.one_of(
    st.floats(0, allow_infinity=True).map(Gaussian), positive.map(Laplace), positive.map(Pure),
    st.text().map(NonPrivate), st.just(Nothing()),
)  # fmt: skip
lines = st.builds(
    Release,
    what=st.text(max_size=20),
    unit=st.sampled_from(["example", "client"]),
    owner=st.text(max_size=5),
    observer=st.sampled_from(["server", "clients", "public"]),
    event=events,
    rounds=disjoint.filter(len),
    steps=st.integers(1, 10**9),
    sampling=st.builds(
        Sampling, st.sampled_from(["everyone", "poisson", "fixed"]), st.floats(0, 1)
    ),
    relation=st.sampled_from(["zero-out", "replace"]),
    covers=st.none() | st.text(max_size=10),
    noise=st.sampled_from(["os", "seeded", "none"]),
    attempt=st.integers(0, 3),
)


@given(line=lines)
def test_a_line_survives_json(line):
    assert from_json(json.loads(json.dumps(to_json(line)))) == line


@pytest.mark.parametrize(
    "wrong",
    [{"what": []}, {"owner": None}, {"owner": 3}, {"covers": []}, {"steps": "3"}, {"steps": -1},
     {"steps": True}, {"attempt": 1.5}, {"event": {"kind": "Gaussian", "z": "1"}},
     {"event": {"kind": "Gaussian", "z": 10**400}}, {"event": {"kind": "NonPrivate", "why": []}},
     {"sampling": {"law": "poisson", "q": None}}],
)  # fmt: skip
def test_a_line_with_values_of_another_kind_is_none(wrong):
    good = to_json(at(LINE, 0))
    assert from_json(good) == at(LINE, 0)
    with pytest.raises(TypeError):
        from_json(good | wrong)


@given(some=st.lists(lines, max_size=6))
@settings(max_examples=50)
def test_a_ledger_survives_the_disk(tmp_path_factory, some):
    file = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    file.write_text(to_text(Ledger(some)), encoding="utf-8")
    assert read_ledger(file) == Ledger(some)


def test_no_file_is_an_empty_ledger_and_a_store_replaces_its_own(tmp_path):
    store = ClientStore(tmp_path / "3")
    assert store.ledger() == Ledger()
    store.write_ledger(Ledger([at(LINE, 0)]))
    store.write_ledger(Ledger([at(LINE, 0, 1)]))
    assert store.ledger() == Ledger([at(LINE, 0, 1)])
    assert {file.name for file in (tmp_path / "3").iterdir()} == {"ledger.jsonl", "ledger.mark"}


def test_a_mark_that_a_kill_cut_short_is_as_if_it_had_not_been_written(tmp_path):
    store, mark = ClientStore(tmp_path / "3"), tmp_path / "3" / "ledger.mark"
    store.write_ledger(Ledger([at(LINE, 0)]))
    before = mark.read_bytes()
    store.write_ledger(Ledger([at(LINE, 0, 1)]))
    both = mark.read_bytes()
    assert both.startswith(before)
    for cut in range(len(before), len(both), 7):
        mark.write_bytes(both[:cut])
        again = ClientStore(tmp_path / "3")
        assert again.ledger() == Ledger([at(LINE, 0, 1)])
        assert again.log.known().writes == 1
    again.write_ledger(Ledger([at(LINE, 0, 2)]))
    assert ClientStore(tmp_path / "3").ledger() == Ledger([at(LINE, 0, 2)])
    assert [m.writes for m in ClientStore(tmp_path / "3").log.marks_kept()] == [2]


def test_of_several_documents_the_last_counts_and_a_damaged_one_is_refused(tmp_path):
    file = tmp_path / "document"
    sizes = []
    for n in range(300):
        add_sealed(file, "here", {"n": n})
        assert read_sealed(file, "here") == {"n": n}
        sizes.append(file.stat().st_size)
    assert max(sizes) < 2 * MOST
    assert min(sizes[100:]) < 200  # written anew
    whole = file.read_bytes()
    file.write_bytes(whole[:-4] + b"x" + whole[-3:])
    with pytest.raises(Damaged):
        read_sealed(file, "here")
    file.write_bytes(whole.rstrip())  # as documents were written once, without an end of line
    add_sealed(file, "here", {"n": 300})
    assert read_sealed(file, "here") == {"n": 300}


def test_a_last_line_cut_short_is_dropped_wherever_it_was_cut(tmp_path):
    """Also from the file, so that the next line is not glued to it."""
    file, text = (
        tmp_path / "ledger.jsonl",
        to_text([at(LINE, 0), at(LINE, 0, what="längerer Name")]),
    )
    first = text[: text.index("\n") + 1]
    for cut in range(len(first), len(text)):
        file.write_text(text[:cut], encoding="utf-8")
        assert read_ledger(file) == Ledger([at(LINE, 0)])
        assert file.read_text(encoding="utf-8") == first
    file.write_text(first[:-1], encoding="utf-8")
    assert read_ledger(file) == Ledger()


GOOD = to_json(LINE)
DAMAGED = {
    "not JSON": b"hello\n",
    "cut in the middle": b'{"what": "a"\n' + to_text([LINE]).encode(),
    "not text": b"\xff\xfe\x00\n",
    "a list": b"[]\n",
    "a number": b"1\n",
    "empty line": b"\n",
    "missing field": json.dumps({k: v for k, v in GOOD.items() if k != "event"}).encode() + b"\n",
    "unknown field": json.dumps({**GOOD, "extra": 1}).encode() + b"\n",
    "unknown event": json.dumps({**GOOD, "event": {"kind": "Cauchy", "z": 1.0}}).encode() + b"\n",
    "wrong parameter": json.dumps({**GOOD, "event": {"kind": "Gaussian", "sigma": 1.0}}).encode()
    + b"\n",
    "no rounds": json.dumps({**GOOD, "rounds": ""}).encode() + b"\n",
    "wrong sampling": json.dumps({**GOOD, "sampling": None}).encode() + b"\n",
}


@pytest.mark.parametrize("blob", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_refused_in_one_line(tmp_path, blob):
    file = tmp_path / "ledger.jsonl"
    file.write_bytes(blob)
    with pytest.raises(BadInput, match="not a ledger") as e:
        read_ledger(file)
    assert "\n" not in str(e.value)
    assert str(file) in str(e.value)
    assert file.read_bytes() == blob  # evidence is not touched


def test_rounds_that_are_not_text_are_refused_in_one_line(tmp_path):
    (tmp_path / "ledger.jsonl").write_text(json.dumps({**GOOD, "rounds": 5}) + "\n")
    with pytest.raises(BadInput, match="not a ledger"):
        read_ledger(tmp_path / "ledger.jsonl")


# ------------------------------------------------------------------------------------------ what
# may leave its client


def point(*values, released=False):
    return Params(w=torch.tensor(values)).as_released(released)


RAW, FREE = point(1.0, 2.0), point(3.0, 5.0, released=True)


def test_a_point_is_raw_until_a_mechanism_or_the_server_says_otherwise():
    assert not Params(w=torch.zeros(1)).released
    assert not point(1.0).released
    assert point(1.0, released=True).released


@pytest.mark.parametrize("a", [RAW, FREE], ids=["raw", "free"])
@pytest.mark.parametrize("b", [RAW, FREE], ids=["raw", "free"])
def test_what_is_made_of_two_points_is_released_only_if_both_are(a, b):
    both = a.released and b.released
    made = [
        a + b,
        a - b,
        mean([a, b]),
        mean([(a, public(1.0)), (b, PublicInt(3))]),
        weighted_sum([(a, public(0.0)), (b, public(1.0))]),
    ]
    assert [m.released for m in made] == [both] * len(made)


@pytest.mark.parametrize("x", [RAW, FREE], ids=["raw", "free"])
def test_scaling_and_clipping_by_public_numbers_change_nothing_about_it(x):
    two = public(2.0)
    made = [two * x, x * PublicInt(2), x / two, x.clipped(two), mean([x]), mean([x, x, x])]
    assert [m.released for m in made] == [x.released] * len(made)


def test_a_weight_that_may_be_private_takes_the_mark_away():
    assert not mean([(FREE, 1.0), (FREE, 3.0)]).released
    assert not weighted_sum([(FREE, public(0.5)), (FREE, 0.5)]).released


def test_one_raw_point_among_many_taints_the_mean_and_leaves_the_others_alone():
    free = [public(1.0) * FREE for _ in range(5)]
    for at_ in range(6):
        parts = [*free[:at_], RAW, *free[at_:]]
        assert not mean(parts).released
        assert not mean([(p, public(2.0)) for p in parts]).released
    assert mean(free).released
    assert all(p.released for p in free)
    assert not RAW.released


def test_the_origin_says_nothing():
    assert RAW.zeros().released
    assert not RAW.released


def test_clipping_a_raw_point_that_is_not_finite_does_not_release_it():
    assert not point(float("nan")).clipped(1.0).released


def test_the_codec_keeps_the_mark_and_what_the_server_sends_is_known():
    sent = {"raw": RAW, "free": FREE, "deep": [RAW, (FREE, RAW)]}
    back = unpack(pack(sent))
    assert same(back, sent)
    assert (back["raw"].released, back["free"].released) == (False, True)
    assert [back["deep"][0].released, back["deep"][1][0].released, back["deep"][1][1].released] == [
        False,
        True,
        False,
    ]
    known = unpack(pack(sent), known=True)
    assert known["raw"].released
    assert known["deep"][0].released
    assert known["deep"][1][1].released
    assert not RAW.released


def test_a_released_value_stays_so_when_post_processed():
    assert Released(3).map(lambda v: 2 * v) == Released(6)
