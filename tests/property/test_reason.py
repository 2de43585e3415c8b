"""Why epsilon is what it is: one short sentence, however many clients with noise of their own."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from often import often

from tacit.core import (
    FEDERATION,
    Gaussian,
    Laplace,
    Ledger,
    NonPrivate,
    Nothing,
    Pure,
    Release,
    Sampling,
)
from tacit.privacy import OBSERVERS, UNITS, by_owner, reason

DELTA = 1e-5
MOST = 300


def line(owner="0", event=None, what="train dp-sgd", unit="example", **more):
    return Release(what, unit, owner, "server", event or Gaussian(1.0), ((0, 9),), **more)


def fifty(law="everyone"):
    """Fifty clients, each with noise and rate of its own; the seventh has the least noise."""
    each = [(f"{i:02}", 2.3 - 0.01 * i if i != 7 else 0.61, 0.02 + 0.0076 * i) for i in range(50)]
    return Ledger(
        line(owner, Gaussian(z), sampling=Sampling.at(1.0 if law == "everyone" else q))
        for owner, z, q in each
    )


def test_many_clients_are_a_range_and_the_worst_one():
    """It used to be fifty clauses, 5,800 characters for the command of an ordinary run."""
    said = reason(fifty(), delta=DELTA)
    assert said == "train dp-sgd: Gaussian(z = 0.61 to 2.3); most spent by client 07"


def test_rates_are_a_range_too_and_the_worst_client_is_the_one_who_pays_most():
    few = Ledger(
        line(owner, Gaussian(z), sampling=Sampling("poisson", q))
        for owner, z, q in [("0", 1.0, 0.02), ("1", 2.0, 0.3), ("2", 0.9, 0.01)]
    )
    paid = by_owner(few, unit="example", observer="server", delta=DELTA)
    said = reason(few, delta=DELTA)
    kind = "train dp-sgd: Gaussian(z = 0.9 to 2) on a poisson sample, q = 0.01 to 0.3"
    assert said == f"{kind}; most spent by client {max(paid, key=paid.get)}"


def test_clients_that_all_pay_the_same_have_no_worst_one():
    lines = [line(str(i), Gaussian(z), what=w) for i in range(9) for z, w in [(1, "a"), (2, "b")]]
    assert reason(Ledger(lines)) == "a: Gaussian(z = 1); b: Gaussian(z = 2)"


def test_noise_is_rounded_down_and_rates_up():
    sampled = Sampling("poisson", 0.123411)
    said = reason(Ledger([line(event=Gaussian(2.71899), sampling=sampled)]))
    assert said == "train dp-sgd: Gaussian(z = 2.718) on a poisson sample, q = 0.1235"
    assert reason(Ledger([line(event=Pure(0.500001))])).endswith("Pure(epsilon = 0.5001)")


def test_claims_that_differ_in_a_number_are_one_clause():
    whys = [f"claimed mu {0.1 + 0.039 * i:g}, but 2C/B is not the sensitivity" for i in range(100)]
    lines = [line(str(i), NonPrivate(why)) for i, why in enumerate(whys)]
    said = reason(Ledger(lines))
    assert said == "claimed mu 0.1 to 3.961, but 2C/B is not the sensitivity"


def test_what_protects_an_example_is_why_a_client_is_not_protected():
    said = reason(Ledger([line(), line(unit="client", what="b")]), unit="client")
    assert said == "train dp-sgd protects an example, not a client"


def test_what_is_infinite_for_want_of_a_proof_or_of_noise_says_so():
    assert reason(Ledger([line(event=Gaussian(0.0))])) == "train dp-sgd has no noise"
    chosen = line(what="pls", event=Pure(0.1), relation="replace")
    assert reason(Ledger([chosen, line()])) == "pls is proved for replacing one only"
    whole = line(unit="client", relation="replace")  # covers each of its examples
    assert reason(Ledger([whole])) == "train dp-sgd: Gaussian(z = 1)"


def test_a_reason_says_so_when_there_is_more_than_it_has_room_for():
    lines = [line(what=f"a release with the long name {chr(97 + i) * 40}") for i in range(20)]
    said = reason(Ledger(lines))
    assert len(said) <= MOST
    shown, _, more = said.rpartition("; and ")
    assert int(more.split()[0]) == 20 - shown.count("Gaussian")


names = st.text("abc xyz_.é", min_size=1, max_size=400)
scale = st.floats(1e-6, 1e6)
events = st.one_of(
    st.builds(Gaussian, scale),
    st.builds(Laplace, scale),
    st.builds(Pure, scale),
    st.builds(NonPrivate, names),
    st.just(Nothing()),
)
owners = st.one_of(st.integers(0, 99).map(str), st.just(FEDERATION), st.just("test:3"), names)
some_lines = st.builds(
    Release,
    what=names,
    unit=st.sampled_from(UNITS),
    owner=owners,
    observer=st.sampled_from(OBSERVERS),
    event=events,
    rounds=st.just(((0, 4),)),
    relation=st.sampled_from(["zero-out", "replace", "either"]),
    noise=st.sampled_from(["os", "seeded", "none"]),
)


@given(st.lists(some_lines, max_size=30), st.sampled_from(UNITS), st.sampled_from(OBSERVERS))
@often(100)
def test_a_reason_is_one_line_of_at_most_300_characters(lines, unit, observer):
    # who pays most among others than Gaussians takes seconds to find, and is not asked here
    gaussians = [x for x in lines if not isinstance(x.event, Laplace | Pure)]
    for ledger in (Ledger(gaussians), Ledger(x for x in lines if x.owner == "0")):
        said = reason(ledger, unit=unit, observer=observer, delta=DELTA)
        assert 0 < len(said) <= MOST
        assert "\n" not in said


def test_a_line_that_gives_no_reason_is_named():
    line = Release("odd", "example", "0", "server", NonPrivate(" "), ((0, 0),))
    assert reason(Ledger([line]), unit="example", observer="server", delta=DELTA) == (
        "odd has no guarantee"
    )


@given(st.dictionaries(st.integers(0, 60).map(str), st.floats(0.3, 30), min_size=2))
@often(50)
def test_the_range_holds_everybodys_noise_and_names_who_has_least(zs):
    said = reason(Ledger(line(i, Gaussian(z)) for i, z in zs.items()), delta=DELTA)
    if len(set(zs.values())) == 1:
        assert "most spent" not in said
        return
    low, _, high = re.search(r"z = (\S+)( to (\S+))?\)", said).groups(default="")
    assert float(low) <= min(zs.values()) <= float(low) * 1.001
    assert float(high or low) <= max(zs.values()) <= float(high or low) * 1.001
    assert zs[said.rpartition("most spent by client ")[2]] == pytest.approx(min(zs.values()))
