"""What is printed of an epsilon is never less than it; what is printed of a lower bound,
never more.
"""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tacit.core import BudgetReached, Gaussian, Ledger, Release
from tacit.privacy import approve, epsilon, gdp_mu, rounded_down, rounded_up, show_epsilon
from tacit.privacy.audit import Verdict

anything = st.floats(0, math.inf, allow_nan=False)
ordinary = st.floats(1e-300, 1e300)
digits = st.integers(1, 8)


@pytest.mark.parametrize(
    ("spent", "said"),
    [
        (2.4511, "2.46"),
        (2.45, "2.45"),  # although the nearest double is a little above
        (0.05, "0.05"),
        (1.1, "1.1"),
        (2.5, "2.5"),
        (1.0, "1"),
        (math.nextafter(1.0, 2.0), "1.01"),
        (0.99501, "0.996"),
        (9.991, "10"),
        (99.91, "100"),
        (3936.2, "3.94e+03"),
        (1234567.0, "1.24e+06"),
        (1e-7, "1e-07"),
        (1.2341e-9, "1.24e-09"),
        (0.0, "0"),
        (math.inf, "inf"),
    ],
)
def test_an_epsilon_is_rounded_up(spent, said):
    assert show_epsilon(spent) == said


def test_more_digits_for_a_table_of_accountants():
    assert show_epsilon(2.38149, digits=4) == "2.382"
    assert show_epsilon(55.7001, digits=4) == "55.71"


@given(spent=anything, digits=digits)
@example(spent=5e-324, digits=3)
@example(spent=1.7976931348623157e308, digits=3)
@example(spent=2.2250738585072014e-308, digits=2)
def test_no_epsilon_is_printed_smaller_than_it_is(spent, digits):
    assert float(show_epsilon(spent, digits)) >= spent


@given(spent=ordinary)
def test_an_epsilon_is_printed_within_one_percent(spent):
    assert float(show_epsilon(spent)) <= 1.01 * spent


@given(a=anything, b=anything)
def test_the_printed_order_is_the_order(a, b):
    low, high = sorted([a, b])
    assert float(show_epsilon(low)) <= float(show_epsilon(high))


@given(value=ordinary, digits=digits)
def test_what_was_rounded_once_stays_as_it_is(value, digits):
    for rounded in (rounded_up, rounded_down):
        said = rounded(value, digits)
        assert rounded_up(float(said), digits) == said == rounded_down(float(said), digits)


@given(bound=anything, digits=digits)
@example(bound=5e-324, digits=3)
@example(bound=1.7976931348623157e308, digits=3)
def test_no_lower_bound_is_printed_larger_than_it_is(bound, digits):
    assert float(rounded_down(bound, digits)) <= bound


@given(bound=ordinary)
def test_a_lower_bound_is_printed_within_one_percent(bound):
    assert float(rounded_down(bound, 3)) >= 0.99 * bound


def test_a_budget_that_is_just_passed_is_not_said_to_be_met():
    """Eps 10.001 of budget 10 was printed as "would bring epsilon to 10"."""
    where = {"unit": "example", "observer": "server", "delta": 1e-5}
    z = 1 / gdp_mu(10.001, 1e-5)
    ledger = Ledger([Release("a", "example", "0", "server", Gaussian(z), ((0, 0),))])
    assert epsilon(ledger, **where) == pytest.approx(10.001)
    with pytest.raises(BudgetReached, match=r"epsilon is 10\.01 "):
        approve(ledger, budget=10.0, **where)


def test_a_verdict_rounds_the_certificate_up_and_the_measured_bound_down():
    said = Verdict(2.00001, 1e-5, 0.999, 100, 1.99999, 0.0, 1.5, 1.8).line()
    assert "certified epsilon 2.001, measured at least 1.999" in said
    broken = Verdict(2.00001, 1e-5, 0.999, 100, 2.00002, 0.0, 2.1, 2.2).line()
    assert broken.startswith("broken: ")
