"""Whatever the ledger: no table shows an example that costs more than its whole client."""

import math
from itertools import product

from hypothesis import given
from hypothesis import strategies as st
from often import often

from tacit.cli.method_cost import cost_table
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
from tacit.experiment.compare import Row
from tacit.privacy import OBSERVERS, overview
from tacit.report.tables import comparison_table

DELTA = 1e-5
scale = st.sampled_from([0.7, 1.0, 2.5, 40.0])
gaussians = st.builds(Gaussian, scale)
others = st.one_of(
    st.builds(Laplace, scale),
    st.builds(Pure, st.sampled_from([0.01, 0.5])),
    st.just(Nothing()),
    st.just(NonPrivate("sent as it is")),
)
# what is sampled is Gaussian; rates as in a ledger
sampled = st.tuples(
    gaussians,
    st.builds(Sampling.at, st.sampled_from([0.05, 0.5]), st.sampled_from(["poisson", "fixed"])),
)
whole = st.tuples(st.one_of(gaussians, others), st.just(Sampling()))


@st.composite
def lines(draw):
    event, sampling = draw(st.one_of(whole, whole, sampled))
    first = draw(st.integers(0, 3))
    return Release(
        what=draw(st.sampled_from(["train", "look"])),
        unit=draw(st.sampled_from(["client", "client", "example"])),
        owner=draw(st.sampled_from(["0", "1", FEDERATION])),
        observer=draw(st.sampled_from(["server", "clients"])),
        event=event,
        rounds=((first, first + draw(st.integers(0, 4))),),
        sampling=sampling,
        relation=draw(st.sampled_from(["zero-out", "replace", "either"])),
        covers=draw(st.sampled_from([None, None, "train"])),
    )


ledgers = st.builds(Ledger, st.lists(lines(), max_size=4))
some = often(40)


@given(ledgers)
@some
def test_an_example_costs_no_more_than_its_client(ledger):
    got = overview(ledger, delta=DELTA, quick=True)
    for observer in OBSERVERS:
        example, client = got[f"example/{observer}"], got[f"client/{observer}"]
        assert example <= client * (1 + 1e-9)


def test_the_rule_is_needed():
    """A sum of clients: zeroing one out costs less than one of its examples,
    which can turn it round.
    """
    ledger = Ledger(
        [Release("mean", "client", FEDERATION, "clients", Gaussian(2.0), ((0, 0),), covers="train")]
    )
    got = overview(ledger, delta=DELTA)
    assert got["example/public"] == got["client/public"]
    assert math.isclose(got["client/public"], 4.377, rel_tol=1e-3)  # mu = 2/z = 1, not 1/2


@given(ledgers)
@some
def test_the_table_of_a_cost_keeps_the_order(ledger):
    head, _, *rows = cost_table(ledger, DELTA).splitlines()
    assert head.split() == ["epsilon", *(w for who in OBSERVERS for w in ("against", who))]
    of = {unit: [r for r in rows if r.startswith(f"{unit}, ")] for unit in ("example", "client")}
    figures = {unit: [[float(c) for c in r.split()[-3:]] for r in rs] for unit, rs in of.items()}
    assert figures["example"]
    assert figures["client"]
    for example, client in product(figures["example"], figures["client"]):
        assert all(a <= b for a, b in zip(example, client, strict=True))


@given(ledgers)
@some
def test_the_table_of_a_comparison_keeps_the_order(ledger):
    epsilon = overview(ledger, delta=DELTA, quick=True)
    row = Row("m", [0.5], [0.5], False, epsilon, 1.0, "client/server", {}, 1.0, 1.0, "")
    cells = comparison_table([row]).splitlines()[-1].split()
    assert float(cells[3]) <= float(cells[4])
