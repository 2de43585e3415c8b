"""A site that answers whatever it likes: it loses the round, by name, and nobody else does.

Coordinator and sites are in this process; what is checked is what a reply over a network meets.
"""

import json
import math
from dataclasses import replace

import pytest
import torch
from asking import X
from liars import (
    LIAR,
    LIMIT,
    PLAIN,
    PRIVATE,
    ROUNDS,
    SILENT,
    Scene,
    changed,
    kind_of,
    rewritten,
    run,
    venue,
)
from sandbox import small

from tacit import codec, privacy
from tacit.core import (
    BadInput,
    Everyone,
    Gaussian,
    Laplace,
    Ledger,
    NonPrivate,
    Nothing,
    Params,
    Pure,
    Release,
    Sampling,
    TooFewReplies,
)
from tacit.engines import flower
from tacit.engines.attendance import MISSES, PAUSE, Attendance
from tacit.engines.facts import facts_from
from tacit.engines.flower import letter, opened, packed
from tacit.engines.replies import too_long
from tacit.engines.store import from_json, to_text
from tacit.experiment import expected
from tacit.experiment.loop import conduct
from tacit.experiment.rundir import RunDir
from tacit.experiment.scoring import Tally
from tacit.experiment.sites import tally, within
from tacit.experiment.watch import Nobody
from tacit.methods import METHODS
from tacit.methods.fedavg import train

FREE = Release("t", "example", LIAR, "server", Gaussian(5.0), ((0, 0),))


def sent(**change):
    """Return a lie about what the task sends."""
    return changed(lambda a: replace(a, sent=replace(a.sent, **change)))


def dx(f):
    """Return a lie about the update itself."""
    return changed(lambda a: replace(a, sent=replace(a.sent, dx=Params(f(dict(a.sent.dx))))))


def lines(*more):
    """Return a lie about the ledger."""
    return changed(lambda a: replace(a, ledger=[*a.ledger, *more]))


def skeleton(change):
    """Return a lie in the JSON of the answer, of which ``change`` gets the items."""

    def f(o):
        change(o["items"])
        return o

    return rewritten(f)


def set_n(value):
    return skeleton(lambda items: items["sent"]["items"].update(n=value))


def in_line(**change):
    """Return a lie in the JSON of the first ledger line."""
    return skeleton(lambda items: items["ledger"]["items"][0]["items"].update(change))


def same_tensor(items):
    """Use one tensor ten thousand times."""
    first = items["sent"]["items"]["dx"]["items"]
    (tensor, *_) = first.values()
    first.update({f"w{k}": tensor for k in range(10_000)})


def about(**change):
    """Return a lie in the head of the letter."""

    def lie(content, said):
        word, told, blob = opened(said, LIMIT)
        return letter(word, told | change, packed(blob)) if kind_of(content) == "ask" else said

    return lie


def bytes_of(change):
    def lie(content, said):
        word, told, blob = opened(said, LIMIT)
        return letter(word, told, packed(change(blob))) if kind_of(content) == "ask" else said

    return lie


def raw_about(text):
    """Return a lie whose head is not what JSON should be."""

    def lie(content, said):
        if kind_of(content) == "ask":
            said.config_records["head"]["about"] = text
        return said

    return lie


def one_huge(tensors):
    name = next(iter(tensors))
    value = tensors[name].clone()
    value.view(-1)[0] = 3e38
    return tensors | {name: value}


LIES = {
    "5,000 digits": (
        rewritten(lambda o: json.dumps(o).replace('"n": 12', f'"n": {"9" * 5000}')), "digits",
    ),
    "digits in the head": (raw_about('{"ask": %s}' % ("9" * 5000)), "digits"),
    "depth": (rewritten(lambda o: "[" * 100_000 + "]" * 100_000), "nested"),
    "depth of our own": (
        rewritten(lambda o: '{"$": "list", "items": [' * 400 + "1" + "]}" * 400), "nested",
    ),
    "depth in the head": (raw_about("[" * 100_000), "nested"),
    "a head of 2 MB": (raw_about('{"ask": "%s"}' % ("x" * (2 << 20))), "characters"),
    "JSON of 5 MB": (
        rewritten(lambda o: '{"$": "list", "items": [%s]}' % ("1," * (5 << 19) + "1")),
        "characters",
    ),
    "n = Infinity": (set_n(math.inf), "n"),
    "n = NaN": (set_n(math.nan), "n"),
    "n = 1e400": (rewritten(lambda o: json.dumps(o).replace('"n": 12', '"n": 1e400')), "n"),
    "n = 10^12": (sent(n=10**12), "registered with 12"),
    "n = 13": (sent(n=13), "registered with 12"),
    "n = 0": (sent(n=0), "registered with 12"),
    "weights that cancel": (sent(n=-36), "registered with 12"),
    "n = true": (sent(n=True), "n"),
    "n = a word": (sent(n="12"), "n"),
    "n = a tensor": (sent(n=torch.ones(1)), "n"),
    "n = a list": (set_n({"$": "list", "items": [1]}), "n"),
    "a bare list": (set_n([1, 2]), "bare list"),
    "one number of 3e38": (dx(one_huge), "norm"),
    "not a number": (dx(lambda d: {k: v * math.nan for k, v in d.items()}), "finite"),
    "infinity": (dx(lambda d: {k: v * math.inf for k, v in d.items()}), "finite"),
    "a thousand times too long": (dx(lambda d: {k: 1e4 * v + 1e4 for k, v in d.items()}), "norm"),
    "double precision": (dx(lambda d: {k: v.double() for k, v in d.items()}), "shape"),
    "whole numbers": (dx(lambda d: {k: v.long() for k, v in d.items()}), "shape"),
    "complex numbers": (dx(lambda d: {k: v.to(torch.complex64) for k, v in d.items()}), ""),
    "empty": (dx(lambda d: {}), "shapes"),
    "another name": (dx(lambda d: {f"{k}.": v for k, v in d.items()}), "shapes"),
    "one name missing": (dx(lambda d: dict(list(d.items())[1:])), "parameters"),
    "no dimensions": (dx(lambda d: {k: v.sum() for k, v in d.items()}), "shape"),
    "dx = a number": (sent(dx=1.0), "dx"),
    "dx = nothing": (sent(dx=None), "dx"),
    "dx of words": (skeleton(lambda i: i["sent"]["items"]["dx"]["items"].update(w="a")), "tensors"),
    "one tensor many times": (skeleton(same_tensor), "not one of ours"),
    "a tensor left over": (
        skeleton(lambda i: i["sent"]["items"]["dx"]["items"].popitem()), "nothing points to",
    ),
    "a field too many": (skeleton(lambda i: i["sent"]["items"].update(z=1)), "not one of ours"),
    "a field too few": (skeleton(lambda i: i["sent"]["items"].pop("n")), "not one of ours"),
    "another task's reply": (changed(lambda a: replace(a, sent=FREE)), "Release"),
    "another dataclass": (changed(lambda a: replace(a, sent=PLAIN)), "does not belong here"),
    "no dataclass": (changed(lambda a: replace(a, sent={"dx": X, "n": 12})), "dict"),
    "not an answer": (changed(lambda a: 3), "not an answer"),
    "a list of answers": (changed(lambda a: [a]), "not an answer"),
    "a module of Python's": (rewritten(lambda o: o | {"$": "os:system"}), "refusing to build"),
    "no kind": (rewritten(lambda o: {"items": {}}), "not one of ours"),
    "null": (rewritten(lambda o: None), "nothing points to"),
    "keeps = a word": (changed(lambda a: replace(a, keeps="yes")), "keeps"),
    "cut short": (bytes_of(lambda b: b[:-40]), "damaged"),
    "nothing at all": (bytes_of(lambda b: b""), "damaged"),
    "zeros": (bytes_of(lambda b: bytes(len(b))), ""),
    "a header of 2^63 bytes": (bytes_of(lambda b: b"\xff" * 7 + b"\x7f" + b[8:]), "damaged"),
    "too large": (bytes_of(lambda b: bytes(LIMIT + 1)), "bytes"),
    "another round": (about(ask="fedavg.train@99"), "was asked"),
    "no round": (about(ask=None), "was asked"),
    "a round that is a list": (about(ask=[1] * 1000), "was asked"),
    "no ledger": (changed(lambda a: replace(a, ledger=None)), "not an answer"),
    "a ledger of words": (lines("free"), "not this site's"),
    "another's line": (lines(replace(FREE, owner="0")), "not this site's"),
    "the federation's line": (lines(replace(FREE, owner="federation")), "not this site's"),
    "a line that covers others'": (lines(replace(FREE, covers="fedavg.train")), "server's"),
    "a line for others' eyes": (lines(replace(FREE, observer="public")), "server's"),
    "an unknown observer": (lines(replace(FREE, observer="nobody")), "observer"),
    "an unknown unit": (lines(replace(FREE, unit="hair")), "unit"),
    "an unknown relation": (lines(replace(FREE, relation="free")), "relation"),
    "an unknown noise": (lines(replace(FREE, noise="none at all")), "noise"),
    "rounds to 10^15": (lines(replace(FREE, rounds=((0, 10**15),))), "rounds"),
    "rounds of tomorrow": (lines(replace(FREE, rounds=((0, ROUNDS),))), "rounds"),
    "rounds backwards": (lines(replace(FREE, rounds=((0, -5),))), "rounds"),
    "no rounds": (lines(replace(FREE, rounds=())), "no round"),
    "rounds of words": (in_line(rounds="0-4"), "rounds"),
    "rounds of one": (lines(replace(FREE, rounds=((0,),))), ""),
    "steps = -1": (lines(replace(FREE, steps=-1)), "steps"),
    "steps = 10^15": (lines(replace(FREE, steps=10**15)), "steps"),
    "steps = 0": (lines(replace(FREE, steps=0)), "steps"),
    "steps = 0.5": (in_line(steps=0.5), "steps"),
    "z = -1": (lines(replace(FREE, event=Gaussian(-1.0))), "z"),
    "z = NaN": (lines(replace(FREE, event=Gaussian(math.nan))), "z"),
    "z = Infinity": (lines(replace(FREE, event=Gaussian(math.inf))), "z"),
    "z = 1e308": (lines(replace(FREE, event=Gaussian(1e308))), "z"),
    "z = 1e-300": (lines(replace(FREE, event=Gaussian(1e-300))), "z"),
    "z = a word": (lines(replace(FREE, event=Gaussian("big"))), "z"),
    "epsilon = -10": (lines(replace(FREE, event=Pure(-10.0))), "epsilon"),
    "b = -1": (lines(replace(FREE, event=Laplace(-1.0))), "b"),
    "q = 2": (lines(replace(FREE, sampling=Sampling("poisson", 2.0))), "q"),
    "q = 0": (lines(replace(FREE, sampling=Sampling("poisson", 0.0))), "q"),
    "an unknown law": (lines(replace(FREE, sampling=Sampling("luck", 0.5))), "law"),
    "a sample without an accountant": (
        lines(replace(FREE, event=Pure(1.0), sampling=Sampling("poisson", 0.5))),
        "accountant",
    ),
    "no event": (lines(replace(FREE, event=None)), "event"),
    "an attempt of -1": (lines(replace(FREE, attempt=-1)), "attempt"),
    "an attempt of 0.0": (lines(replace(FREE, attempt=0.0)), "cannot be read"),
    "an attempt that is true": (lines(replace(FREE, attempt=True)), "cannot be read"),
    "an attempt of 10^30": (lines(replace(FREE, attempt=10**30)), "attempt"),
    "a line of 10,000 letters": (lines(replace(FREE, what="x" * 10_000)), "characters"),
    "2,100 lines": (
        changed(lambda a: replace(a, ledger=[replace(FREE, what=f"{k}") for k in range(2100)])),
        "ledger",
    ),
    "another's name in an error": (about(why="\x1b[2J" * 100, ask="\x1b[31m"), "was asked"),
}  # fmt: skip


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    return Scene(tmp_path_factory.mktemp("scene"))


def asked(scene, lie, round=0, **how):
    """Ask all sites once; return the replies, and the engine."""
    engine = scene.engine(lie, **how)
    call = train(x=scene.x, sgd=PLAIN.sgd)
    return engine.ask(call, engine.sample(Everyone(), round)), engine


@pytest.mark.parametrize("name", LIES)
def test_a_lie_costs_the_liar_the_round_and_nobody_else_anything(name, scene):
    lie, why = LIES[name]
    replies, _ = asked(scene, lie)
    assert replies.clients == ("0", "1", "3")
    assert replies.failed.keys() == {LIAR}
    told = replies.failed[LIAR]
    assert told.startswith("cleo: ")
    assert why in told
    assert told.isprintable()
    assert len(told) < 400
    # what was written can be read again, and nothing of it is of tomorrow
    read = [from_json(json.loads(line)) for line in to_text(scene.written).splitlines()]
    assert read == scene.written
    assert {line.owner for line in read} - {LIAR} == set("013")
    assert all(line.rounds == ((0, 0),) for line in read)


def test_an_honest_site_loses_nothing(scene):
    """The test above can fail: without a lie all four are there."""
    replies, engine = asked(scene, None)
    assert replies.clients == tuple("0123")
    assert replies.failed == {}
    assert {line.owner for line in engine.ledger} == set("0123")


@pytest.mark.parametrize("name", ["5,000 digits", "one number of 3e38", "rounds to 10^15"])
def test_a_whole_run_ends_as_if_the_liar_had_not_been_there(name, tmp_path):
    lie, _ = LIES[name]
    a, _ = run(tmp_path / "a", lie=lie, metrics=0.0)
    b, _ = run(tmp_path / "b", without=(LIAR,), metrics=0.0)
    assert codec.same(a.checkpoint()[0], b.checkpoint()[0])
    assert [LIAR in line["failed"] for line in a.metrics()] == [True] * ROUNDS
    go_on, _ = venue(tmp_path / "a", lie=lie, metrics=0.0)
    conduct(go_on, RunDir.open(tmp_path / "a" / "run"), Nobody())  # nothing blocks a resume


def counts(**change):
    return changed(lambda a: replace(a, sent=replace(a.sent, **change)), kinds=("look",))


TALLIES = {
    "10^12 right": (counts(right=[10**12, 0, 0]), "test examples"),
    "one too many": (
        changed(lambda a: replace(a, sent=_one_more(a.sent)), kinds=("look",)), "13 in all",
    ),
    "below zero": (counts(right=[-5, 17, 0], wrong=[0, 0, 0]), "counts"),
    "other classes": (counts(right=[12], wrong=[0]), "3 classes"),
    "no lists": (counts(right=3, wrong=9), "right"),
    "words": (counts(right=["a", "b", "c"]), "right"),
    "halves": (counts(right=[0.5, 0.5, 0.5]), "right"),
    "a loss of Infinity": (counts(loss=math.inf), "loss"),
    "a loss of NaN": (counts(loss=math.nan), "loss"),
    "a loss of 1e300": (counts(loss=1e300), "loss"),
    "a loss below zero": (counts(loss=-1.0), "loss"),
}  # fmt: skip


def _one_more(tally):
    return replace(tally, right=[tally.right[0] + 1, *tally.right[1:]])


@pytest.mark.parametrize("name", TALLIES)
def test_counts_are_held_against_the_registered_test_examples(name, scene):
    lie, why = TALLIES[name]
    engine = scene.engine(lie)
    got = engine.look(tally(x=scene.x), engine.everyone, 0)
    assert got.keys() == set("013")
    assert why in engine.failed[LIAR]


def test_noisy_counts_are_worth_no_more_than_the_test_examples(tmp_path):
    """Noise has no bound, so no count can be refused; none weighs more than the site's test set."""
    lie = counts(right=[10**12, 10**12, 10**12], wrong=[-(10**12), 0, 0])
    loud, _ = run(tmp_path / "a", lie=lie, metrics=20.0)
    calm, _ = run(tmp_path / "b", metrics=20.0)
    a, b = (directory.metrics()[-1]["accuracy"] for directory in (loud, calm))
    assert within(Tally([10**12, -3, 5], [0, 0, 0], None), 12) == Tally(
        [12, -3, 5], [0, 0, 0], None
    )
    assert a <= (b * 48 + 36) / (48 + 24)


FACTS = {
    "name": "cleo", "version": "1", "shape": [4], "classes": ["a", "b"],
    "mean": [0.0], "std": [1.0], "examples": 12, "tests": 3,
}  # fmt: skip


TWICE = {"format": "%Y%Y"}


def table_of(*columns):
    label = {"name": "y", "kind": "category", "categories": ["well", "ill"]}
    return json.dumps({"label": "y", "column": [*columns, label]})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"examples": math.inf}, "examples"),
        ({"examples": 0}, "examples = 0: must be at least 1"),
        ({"examples": 10**12}, "examples"),
        ({"examples": "12"}, "examples"),
        ({"tests": -1}, "tests"),
        ({"tests": True}, "tests"),
        ({"shape": [-4]}, "shape"),
        ({"shape": []}, "shape"),
        ({"shape": [10**9]}, "shape"),
        ({"shape": [10**6, 10**6]}, "shape"),
        ({"shape": [1] * 100}, "shape"),
        ({"shape": 4}, "shape"),
        ({"classes": []}, "classes"),
        ({"classes": ["a", "a"]}, "classes"),
        ({"classes": [1, 2]}, "classes"),
        ({"classes": "ab"}, "classes"),
        ({"mean": [math.nan]}, "mean"),
        ({"std": [0.0]}, "std"),
        ({"std": [math.inf]}, "std"),
        ({"name": ["cleo"]}, "name"),
        ({"more": 1}, "facts"),
        ({"schema": "{}"}, "schema"),
        ({"schema": ["{}"]}, "schema"),
        ({"schema": ["[" * 1000] * 100}, "schema"),
        ({"schema": [table_of({"name": "a", "kind": "text", "width": 10**9})]}, "width"),
        ({"schema": [table_of({"name": "a", "kind": "number", "low": 0, "high": 1})]}, "schema"),
        (
            {
                "schema": [
                    table_of({"name": "a", "kind": "date", "first": "1", "last": "2"} | TWICE)
                ]
            },
            "first = '1'",
        ),
    ],
)
def test_facts_that_cannot_be_so_are_refused(change, why):
    assert facts_from(FACTS).examples == 12
    with pytest.raises(BadInput, match=why):
        facts_from(FACTS | change)
    with pytest.raises(BadInput, match="facts"):
        facts_from({})


def test_an_update_is_held_against_a_bound(scene):
    """A stated one is exact; by default the median of the round decides, and never less than x."""
    long = dx(lambda d: {k: 3.0 * v for k, v in d.items()})
    honest, _ = asked(scene, None)
    norms = sorted(r.dx.norm() for r in honest)
    replies, _ = asked(scene, long)
    assert LIAR in replies.clients  # nothing unusual yet
    scene.max_norm = norms[-1]
    try:
        replies, _ = asked(scene, long)
    finally:
        scene.max_norm = None
    assert "must be at most" in replies.failed[LIAR]
    assert replies.clients == ("0", "1", "3")


def test_of_two_the_model_itself_says_what_is_too_long():
    call = train(x=X, sgd=PLAIN.sgd)
    start = X.norm()
    assert too_long({"a": {"dx": 1e30}, "b": {"dx": 1.0}}, call, None).keys() == {"a"}
    # one that sends next to nothing cannot have the other left out
    assert too_long({"a": {"dx": 0.0}, "b": {"dx": start}}, call, None) == {}
    # ten times the median is allowed, where updates are long, as with much noise
    noisy = {str(i): {"dx": 100.0 * start} for i in range(3)}
    assert too_long(noisy | {"3": {"dx": 1000.0 * start}}, call, None) == {}
    assert too_long(noisy | {"3": {"dx": 1001.0 * start}}, call, None).keys() == {"3"}
    assert too_long({"a": {"dx": math.nan}}, call, 1.0).keys() == {"a"}


def test_who_never_answers_is_left_out_after_a_while_by_name(tmp_path):
    calls = []

    def silent(content, said):
        if kind_of(content) == "ask":
            calls.append(1)
            return SILENT
        return said

    method = replace(PLAIN, rounds=MISSES + 2)
    directory, _ = run(tmp_path, method, silent)
    told = [line["failed"][LIAR] for line in directory.metrics()]
    assert len(calls) == MISSES
    assert all("no answer within 60 s" in words for words in told[:MISSES])
    why = f"left out until round {MISSES + PAUSE + 1}: {MISSES} answers in a row could not be used"
    assert told[MISSES:] == [f"cleo: {why}"] * 2
    # and what it does not answer is not waited for when models are measured, either
    assert all(set(line["per_client"]) == set("013") for line in directory.metrics()[MISSES:])


def test_who_is_left_out_comes_back_and_then_for_longer():
    there = Attendance()
    for t in range(MISSES):
        assert there.left_out("1", t) == ""
        there.missed("1", "ask", t)
    first = MISSES + PAUSE
    assert [bool(there.left_out("1", t)) for t in (MISSES, first - 1, first)] == [True, True, False]
    for t in range(first, first + MISSES):
        there.missed("1", "ask", t)
    second = first + MISSES + 2 * PAUSE
    assert [bool(there.left_out("1", t)) for t in (second - 1, second)] == [True, False]
    assert there.left_out("2", first) == ""


def test_an_answer_in_between_counts():
    there = Attendance()
    for t in range(5 * MISSES):
        there.answered("1", "ask") if t % MISSES == 0 else there.missed("1", "ask", t)
        there.answered("1", "look")
    assert there.left_out("1", 5 * MISSES) == ""


def test_a_refusal_in_words_is_not_a_failure(scene):
    """A site whose budget is spent says so in every round, and costs nobody time."""

    def refuses(content, said):
        return letter("refused", {"why": "refused: \x1b[2Jno budget left"}, packed(b""))

    engine = scene.engine(refuses)
    for _ in range(MISSES + 1):
        replies = engine.ask(train(x=scene.x, sgd=PLAIN.sgd), engine.sample(Everyone(), 0))
        assert replies.failed[LIAR] == "cleo: refused: [2Jno budget left"


def test_fewer_honest_sites_than_a_method_needs_stop_it_in_one_line(scene):
    engine = scene.engine(None)
    engine.nodes = lambda: {"cleo": 2}
    with pytest.raises(TooFewReplies, match="1 of 4 clients replied"):
        engine.ask(train(x=scene.x, sgd=PLAIN.sgd), engine.sample(Everyone(), 0))


# The figure follows from what was asked


def claims(change, kinds=("ask",)):
    """Return a lie about the lines of one's own ledger."""
    return changed(lambda a: replace(a, ledger=[change(line) for line in a.ledger]), kinds)


CLAIMS = {
    "z = 50": claims(lambda line: replace(line, event=Gaussian(50.0))),
    "half the steps": claims(lambda line: replace(line, steps=1)),
    "a smaller sample": claims(lambda line: replace(line, sampling=Sampling("poisson", 0.001))),
    "pure, and next to nothing": claims(
        lambda line: replace(line, event=Pure(1e-9), sampling=Sampling(), steps=1)
    ),
    "the last round only": claims(lambda line: replace(line, rounds=(line.rounds[-1],))),
    "nothing": claims(lambda line: replace(line, event=Nothing(), sampling=Sampling())),
    "for replacement only": claims(lambda line: replace(line, relation="either")),
    "for a whole client": claims(lambda line: replace(line, unit="client")),
    "no lines": changed(lambda a: replace(a, ledger=[])),
    "lines of the test data": claims(lambda line: replace(line, owner=f"test:{LIAR}")),
}


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """An honest private run, and what it costs the site that will lie."""
    directory, _ = run(tmp_path_factory.mktemp("honest"), PRIVATE, metrics=0.0)
    return directory.ledger()


def cost(ledger, owner=LIAR):
    own = Ledger(line for line in ledger if line.owner == owner)
    return privacy.epsilon(own, unit="example", observer="server", delta=1e-5)


FEW = {"z = 50", "a smaller sample", "the last round only", "no lines"}
EACH = [pytest.param(name, marks=() if name in FEW else pytest.mark.slow) for name in CLAIMS]


@pytest.mark.parametrize("name", EACH)
def test_a_site_cannot_make_the_figure_smaller(name, tmp_path, honest):
    directory, _ = run(tmp_path, PRIVATE, CLAIMS[name], metrics=0.0)
    assert cost(honest) <= cost(directory.ledger()) < 2 * cost(honest)
    assert directory.metrics()[-1]["spent"] >= cost(honest)
    # the others' lines are what they were
    others = [
        [line for line in ledger if line.owner in "013"] for ledger in (honest, directory.ledger())
    ]
    assert others[0] == others[1]


def test_a_reply_without_lines_is_refused(tmp_path):
    directory, _ = run(tmp_path, PRIVATE, CLAIMS["no lines"], metrics=0.0)
    assert all("no line" in line["failed"][LIAR] for line in directory.metrics())


def test_a_site_can_make_the_figure_larger(tmp_path, honest):
    """What it says beyond that stands: it knows best what has left it."""
    directory, _ = run(tmp_path, PRIVATE, lines(replace(FREE, event=Pure(3.0))), metrics=0.0)
    assert cost(directory.ledger()) > cost(honest) + 1


def test_where_no_rule_is_known_a_reply_without_lines_is_infinite(tmp_path, monkeypatch):
    monkeypatch.setattr(expected, "states_rule", lambda method: False)
    calm, _ = run(tmp_path / "a", PRIVATE, metrics=0.0)
    assert cost(calm.ledger()) < math.inf
    directory, _ = run(tmp_path / "b", PRIVATE, CLAIMS["no lines"], metrics=0.0)
    assert cost(directory.ledger()) == math.inf
    why = privacy.reason(directory.ledger(), unit="example", observer="server", delta=1e-5)
    assert "without a ledger line" in why


def test_counts_without_a_line_are_infinite(tmp_path):
    lie = changed(lambda a: replace(a, ledger=[]), kinds=("look",))
    directory, _ = run(tmp_path, PRIVATE, lie, metrics=0.5)
    assert cost(directory.ledger(), f"test:{LIAR}") == math.inf
    assert cost(directory.ledger(), "test:0") < math.inf
    assert "no line" in directory.metrics()[0]["failed"][LIAR]


def test_a_site_that_says_it_has_passed_the_budget_stops_no_other(tmp_path):
    lie = lines(replace(FREE, event=NonPrivate("everything")))
    place, _ = venue(tmp_path, PRIVATE, lie, metrics=0.0)
    setting = replace(place.experiment.setting, budget=100.0)
    place = replace(place, experiment=replace(place.experiment, setting=setting))
    directory = RunDir.create(tmp_path / "run", place.experiment)
    conduct(place, directory, Nobody())
    assert [line["round"] for line in directory.metrics()] == [1, 2]
    assert all("passed the budget" in line["failed"][LIAR] for line in directory.metrics())


@pytest.mark.parametrize("name", [name for name in METHODS if not METHODS[name].pooled])
def test_an_honest_ledger_says_what_was_asked(name, tmp_path):
    """No method's own lines differ from its rule: nothing is made up for, nobody is refused."""
    method = small(name)
    if method.needs_public:
        pytest.skip("needs public examples")
    directory, _ = run(tmp_path, method, metrics=0.0)
    assert [line for line in directory.ledger() if "as it was asked" in line.what] == []
    told = [why for line in directory.metrics() for why in line.get("failed", {}).values()]
    assert {why for why in told if "does not report" not in why} == set()


def test_metrics_of_a_personal_model_are_no_answer_of_the_next_round(tmp_path):
    """Their line is of the round that comes next, in which nobody has trained yet."""
    directory, _ = run(tmp_path, small("cuag", rounds=2), metrics=math.inf)
    own = [line for line in directory.ledger() if line.owner == LIAR]
    assert {"metrics"} < {line.what for line in own}
    assert [line for line in own if "as it was asked" in line.what] == []


@pytest.mark.parametrize("error", [RuntimeError, MemoryError, ZeroDivisionError, RecursionError])
def test_whatever_is_raised_costs_that_site_the_round(error, scene, monkeypatch):
    """Also what nobody has thought of yet."""
    check = flower.check_sent

    def failing(answer, head, *rest):
        if head.client == LIAR:
            raise error("of an unforeseen kind")
        check(answer, head, *rest)

    monkeypatch.setattr(flower, "check_sent", failing)
    try:
        replies, _ = asked(scene, None)
    except error as e:
        raise AssertionError("it ended the coordinator") from e
    assert replies.clients == ("0", "1", "3")
    assert replies.failed[LIAR] == f"cleo: message: cannot be used ({error.__name__})"
