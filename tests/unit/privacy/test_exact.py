"""Exact draws: every way that the random numbers can go is followed, and probabilities added up."""

import heapq
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tacit.privacy import exact
from tacit.privacy.noise import FromOS, FromSeed


def seeded(seed=0):
    return exact.words(FromSeed(np.random.default_rng(seed)))


class Fork(Exception):
    """The draw asks for one more result, whose probabilities are known."""

    def __init__(self, chances):
        self.chances = chances


def law(draw, left=1e-4):
    """Return the probability of each result, and how much is not accounted for: at most ``left``.

    ``draw`` gets a function that decides, given the probabilities of 0, 1, 2, .... The likeliest
    beginnings are followed first.
    """
    ways, found, rest = [(-1.0, ())], {}, 1.0
    while rest > left:
        chance, decided = heapq.heappop(ways)
        known = iter(decided)
        try:
            result = draw(lambda chances, known=known: follow(known, chances))
            found[result] = found.get(result, 0.0) - chance
            rest += chance
        except Fork as fork:
            for i, share in enumerate(fork.chances):
                heapq.heappush(ways, (chance * share, (*decided, i)))
    return found, rest


def follow(known, chances):
    for value in known:
        return value
    raise Fork(chances)


@pytest.fixture
def equally(monkeypatch):
    """Numbers below n are equally likely, which is tested by itself."""
    monkeypatch.setattr(exact, "below", lambda decide, n: decide([1 / n] * n))


@pytest.fixture
def events(equally, monkeypatch):
    """Events happen with their probability, which is tested by itself."""

    def happens(decide, over, under):
        p = math.exp(-over / under)
        return decide([1 - p, p]) == 1

    monkeypatch.setattr(exact, "happens", happens)


def agrees(found, rest, want):
    """What was found is part of what is wanted, and what is missing is what was not followed."""
    assert found
    for result, chance in found.items():
        assert chance <= want(result) + 1e-5
        assert want(result) <= chance + rest + 1e-5


@pytest.mark.parametrize(
    ("over", "under"), [(0, 1), (1, 1), (1, 2), (2, 3), (3, 2), (7, 3), (1, 50)]
)
@pytest.mark.usefixtures("equally")
def test_an_event_happens_with_probability_exp_of_minus_a_fraction(over, under):
    found, rest = law(lambda decide: exact.happens(decide, over, under))
    p = math.exp(-over / under)
    agrees(found, rest, lambda result: p if result else 1 - p)


@pytest.mark.parametrize("scale", [1, 2, 3])
@pytest.mark.usefixtures("events")
def test_the_size_of_the_noise_has_its_law(scale):
    found, rest = law(lambda decide: exact._geometric(decide, scale), left=0.01)
    agrees(found, rest, lambda k: -math.expm1(-1 / scale) * math.exp(-k / scale))
    assert set(range(3)) <= set(found)


@pytest.mark.parametrize("rate", ["1", "1/2", "3/2", "2", "5/7", "1/9", "12"])
@pytest.mark.usefixtures("equally")
def test_discrete_laplace_has_its_law(monkeypatch, rate):
    rate = Fraction(rate)
    sizes = np.exp(-np.arange(12 * rate.denominator) / rate.denominator)
    sizes /= sizes.sum()  # the rest is less than 1e-5
    monkeypatch.setattr(exact, "_geometric", lambda decide, scale: decide(sizes.tolist()))
    found, rest = law(lambda decide: exact.discrete_laplace(decide, rate), left=0.01)
    agrees(found, rest, lambda k: float(stats.dlaplace(float(rate)).pmf(k)))
    assert rate == 12 or min(found) < 0 < max(found)


@pytest.mark.parametrize(
    "scores", [(0, 0, 0), (0, -1), (Fraction(1, 2), 0, Fraction(-1, 2)), (5, 4, 4, 0), (-3,)]
)
@pytest.mark.usefixtures("events")
def test_a_choice_has_its_law(scores):
    scores = [Fraction(s) for s in scores]
    found, rest = law(lambda decide: exact.choice(decide, scores), left=0.05)
    total = sum(math.exp(s) for s in scores)
    agrees(found, rest, lambda i: math.exp(scores[i]) / total)


@given(n=st.integers(1, 2**200), words=st.lists(st.integers(0, 2**64 - 1), min_size=4, max_size=4))
def test_numbers_below_are_the_first_bits_of_the_words(n, words):
    """Of as many bits as n - 1 has, the first that are below n: no number is likelier."""
    size = (n - 1).bit_length()
    need = math.ceil(size / 64)
    first = sum(w << 64 * i for i, w in enumerate(reversed(words[:need]))) >> (64 * need - size)
    got = exact.below(itertools.chain(words[:need], itertools.repeat(0)), n)
    assert got == (first if first < n else 0)
    assert 0 <= got < n


@pytest.mark.parametrize("n", [1, 2, 3, 10, 64, 100])
def test_numbers_below_are_equally_likely(n):
    random = seeded()
    seen = np.bincount([exact.below(random, n) for _ in range(200 * n)], minlength=n)
    assert len(seen) == n
    assert n == 1 or stats.chisquare(seen).pvalue > 1e-6


@pytest.mark.parametrize("draw", [FromOS(), FromSeed(np.random.default_rng(1))], ids=["os", "seed"])
@pytest.mark.parametrize("epsilon", [0.1, 0.3, 1.0, 4.0])
def test_rates_that_are_floats(draw, epsilon):
    """0.1 is 3602879701896397 / 2^55."""
    random, rate, n = exact.words(draw), Fraction(epsilon), 10_000
    got = np.array([exact.discrete_laplace(random, rate) for _ in range(n)])
    scipy = stats.dlaplace(epsilon)
    edge = int(scipy.ppf(1 - 20 / n))
    seen = np.bincount(np.clip(got, -edge, edge) + edge, minlength=2 * edge + 1)
    want = scipy.pmf(np.arange(-edge, edge + 1))
    want[[0, -1]] = scipy.cdf(-edge)
    assert stats.chisquare(seen, n * want / want.sum()).pvalue > 1e-6


def script(*values):
    """Return words that make ``below`` return the values given, each for its n."""
    for value, n in values:
        yield value << (64 - (n - 1).bit_length())


def test_the_rarest_noise_can_still_come():
    """At epsilon 40 one noise in e^40 is 1: uniform numbers of 52 bits never made it.

    And so two counts that differ by one could be told apart for certain.
    """
    # the geometric part: 0 of the fraction, then 40 events of probability 1/e, each of which fails
    # to happen again at the first odd trial: below(1) takes no bits, below(2) gives 1, and so k = 2
    # is even; it must be odd, so below(2) gives 0 and below(3) gives 1 or more
    once = [(0, 2), (1, 3)]
    never = [(1, 2)]
    words = script(*(once * 40 + never), (0, 2))
    assert exact.discrete_laplace(words, Fraction(40)) == 1


def test_the_rarest_choice_can_still_come():
    once = [(0, 2), (1, 3)]
    # index 1 of 2, then 59 events of probability 1/e and a last one for the rest
    words = script((1, 2), *once * 60)
    assert exact.choice(words, [Fraction(60), Fraction(0)]) == 1


@settings(max_examples=50, deadline=None)
@given(rate=st.floats(1e-6, 1e3), seed=st.integers(0, 1000))
def test_seeded_draws_repeat(rate, seed):
    a, b = (exact.discrete_laplace(seeded(seed), Fraction(rate)) for _ in range(2))
    assert a == b
    assert isinstance(a, int)


def test_a_tiny_rate_makes_noise_of_its_size():
    """Beyond what 64 bits hold: whole numbers have no end here."""
    random, rate = seeded(), Fraction(1e-30)
    got = [abs(exact.discrete_laplace(random, rate)) * 1e-30 for _ in range(2000)]
    assert stats.kstest(got, "expon").pvalue > 1e-6
