"""Replies that are all that their task promises, and still not what a method's code can use."""

from dataclasses import replace
from pathlib import Path

import pytest
from liars import LIAR, PLAIN, changed, run, venue

from tacit import codec
from tacit.core import TooFewReplies, own_code
from tacit.engines.blame import MethodFailed, Step
from tacit.engines.messages import Head
from tacit.experiment.loop import conduct
from tacit.experiment.rundir import RunDir
from tacit.experiment.watch import Nobody

Grouped = own_code.load(f"{Path(__file__).parent / 'odd_method.py'}:Grouped", "method")
ODD = Grouped(rounds=2, sgd=PLAIN.sgd)


def odd(of):
    """Return a lie about the group, to one of the two questions."""

    def change(answer):
        if type(answer.sent).__name__ != of:
            return answer
        return replace(answer, sent=replace(answer.sent, group=7))

    return changed(change)


@pytest.mark.parametrize("of", ["Update", "Rate"])
def test_a_reply_that_breaks_the_method_costs_its_site_the_round(of, tmp_path):
    directory, _ = run(tmp_path, ODD, odd(of), metrics=0.0)
    told = [line.get("failed") for line in directory.metrics()]
    assert told == [{LIAR: "cleo: message: the method cannot use it (IndexError)"}] * 2
    asked = [line for line in directory.ledger() if line.owner == "0"]
    assert all(line.attempt == 0 for line in asked), "a site was asked twice"


def test_what_the_others_sent_is_used_as_if_the_liar_had_not_answered(tmp_path):
    a, _ = run(tmp_path / "a", ODD, odd("Update"), metrics=0.0)
    b, _ = run(tmp_path / "b", ODD, without=(LIAR,), metrics=0.0)
    assert codec.same(a.checkpoint()[0].x, b.checkpoint()[0].x)


def test_a_site_that_does_so_again_and_again_is_left_out(tmp_path):
    directory, _ = run(tmp_path, replace(ODD, rounds=4), odd("Update"), metrics=0.0)
    *three, last = [line["failed"][LIAR] for line in directory.metrics()]
    assert all("cannot use it" in why for why in three)
    assert "left out until round" in last


def test_code_that_fails_whatever_is_sent_is_told_in_one_line(tmp_path):
    place, _ = venue(tmp_path, replace(ODD, stubborn=True), metrics=0.0)
    directory = RunDir.create(tmp_path / "run", place.experiment)
    with pytest.raises(MethodFailed) as e:
        conduct(place, directory, Nobody())
    assert str(e.value).startswith("the method's code at the server failed (ZeroDivisionError: ")
    assert "odd_method.py, line" in str(e.value)
    assert str(e.value).isprintable()
    assert directory.checkpoint()[0].round == 1


HEADS = [Head(i, "t@0", 0, None, None) for i in "0123"]


def tried(step, broken, need=1):
    """Do a step again until it works; return who was left out."""
    while True:
        known = step.again(b"call", HEADS)
        got, _ = known or step.note(b"call", HEADS, ({i: b"" for i in "0123"}, {}))
        try:
            if len(got) < need:
                raise TooFewReplies("too few")
            if broken & got.keys():
                raise KeyError("odd")
            return step.blamed()
        except (KeyError, TooFewReplies) as e:
            step.fail(e)


def test_two_of_them_are_found_and_more_are_not():
    names = dict(zip("0123", "abcd", strict=True))
    assert tried(Step(names), set()) == set()
    assert tried(Step(names), {"2"}) == {"2"}
    assert tried(Step(names), {"1", "3"}) == {"1", "3"}
    with pytest.raises(MethodFailed, match="KeyError: 'odd'"):
        tried(Step(names), {"0", "1", "3"})
    with pytest.raises(MethodFailed, match="KeyError: 'odd'"):
        tried(Step(names), {"2"}, need=4)
    with pytest.raises(TooFewReplies):
        tried(Step(names), set(), need=5)


def test_a_step_that_asks_something_else_is_not_done_again():
    step = Step(dict(zip("0123", "abcd", strict=True)))
    step.note(b"call", HEADS, ({i: b"" for i in "0123"}, {}))
    step.fail(KeyError("odd"))
    with pytest.raises(MethodFailed, match="cannot be done again"):
        step.again(b"other", HEADS)
