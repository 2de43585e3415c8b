"""Label selection.

PLS against equation (5), the histogram's exact law, and what the ledger says of both.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tacit.core import BadInput, Client, Ledger, Pure, Released
from tacit.data.examples import Examples
from tacit.data.federated import LocalData
from tacit.privacy.accounting import epsilon as certified
from tacit.synthesis.labels import (
    histogram,
    own_counts,
    pls,
    public_size,
    shares,
    spelled_out,
    utility,
    wanted,
)


def client(labels, seed=0):
    y = torch.tensor(labels, dtype=torch.int64)
    data = LocalData(Examples(torch.zeros(len(y), 4), y), np.arange(len(y)), (0.5,), (0.5,))
    return Client(
        "0", 0, data, None, torch.nn.Identity(), {}, np.random.default_rng(seed), "seeded", Ledger()
    )


def equation_5(n_k, n, n_hat, eps):
    """The paper's probabilities, by its formula and nothing else."""
    weights = [math.exp(eps * -abs(r / n_hat - n_k / n) / (2 * (1 / n))) for r in range(n_hat + 1)]
    return np.array(weights) / sum(weights)


def test_pls_draws_each_class_with_the_probabilities_of_equation_5():
    labels, eps, runs = [0] * 12 + [1] * 5 + [2] * 3, 3.0, 2000  # n = 20, n_hat = 8
    drawn = [
        pls(client(labels, seed), classes=3, gamma=0.4, epsilon=eps).value for seed in range(runs)
    ]
    for k, n_k in enumerate((12, 5, 3)):
        seen = np.bincount(np.array(drawn)[:, k], minlength=9)
        assert stats.chisquare(seen, runs * equation_5(n_k, 20, 8, eps / 3)).pvalue > 1e-6


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=15),
    st.data(),
    st.floats(0.1, 5),
    st.floats(0.1, 1),
)
@settings(max_examples=60, deadline=None)
def test_replacing_one_record_changes_no_probability_of_pls_by_more_than_a_factor_e_to_the_epsilon(
    labels, data, eps, gamma
):
    i, label = data.draw(st.integers(0, len(labels) - 1)), data.draw(st.integers(0, 2))
    other = [label if j == i else y for j, y in enumerate(labels)]
    n, worst = len(labels), 0.0
    n_hat = math.floor(gamma * n)
    for k in range(3):
        score = np.stack([eps / 3 * n * utility(t.count(k), n, n_hat) / 2 for t in (labels, other)])
        p = np.exp(score) / np.exp(score).sum(1, keepdims=True)
        worst += np.abs(np.log(p[0] / p[1])).max()  # the worst of each class can come together
    assert worst <= eps + 1e-9


def test_pls_is_seeded_and_writes_one_line_per_class_before_it_draws():
    me, twin = client([0, 0, 1, 2], seed=4), client([0, 0, 1, 2], seed=4)
    first, second = (pls(c, classes=4, gamma=1.0, epsilon=2.0) for c in (me, twin))
    assert isinstance(first, Released)
    np.testing.assert_array_equal(first.value, second.value)
    assert [(line.event, line.relation) for line in me.drawn] == [(Pure(0.5), "replace")] * 4
    kinds = {"unit": "example", "observer": "server", "delta": 1e-5}
    assert certified(me.spent, **kinds, relation="replace") == pytest.approx(2.0, rel=1e-2)
    # nothing is proved for adding or removing a record
    assert certified(me.spent, **kinds) == math.inf


@pytest.mark.parametrize(("labels", "gamma"), [([], 0.5), ([1, 1, 0], 0.1)])
def test_pls_gives_no_labels_where_n_hat_is_zero_and_costs_the_same(labels, gamma):
    me = client(labels)
    np.testing.assert_array_equal(pls(me, classes=3, gamma=gamma, epsilon=1.5).value, [0, 0, 0])
    assert len(me.drawn) == 3


def test_with_a_large_epsilon_both_ways_give_the_truth():
    labels = [0] * 70 + [2] * 30
    np.testing.assert_array_equal(
        pls(client(labels), classes=3, gamma=0.1, epsilon=1e5).value, [7, 0, 3]
    )
    np.testing.assert_array_equal(
        histogram(client(labels), classes=3, epsilon=500.0).value, [70, 0, 30]
    )


@pytest.mark.parametrize("gamma", [0.0, -0.1, 1.5, math.nan])
def test_gamma_out_of_range_is_refused(gamma):
    with pytest.raises(BadInput, match="gamma = "):
        pls(client([0]), classes=2, gamma=gamma, epsilon=1.0)


@pytest.mark.parametrize("eps", [0.05, 0.7, 2.0])
def test_the_histogram_has_the_law_of_discrete_laplace(eps):
    """By which a record, shifting one count by one, changes no probability by more than e^eps."""
    n = 4000
    noise = (
        histogram(client([0] * 9), classes=n, epsilon=eps).value - np.eye(1, n, dtype=int)[0] * 9
    )
    law = stats.dlaplace(eps)
    edge = int(law.ppf(1 - 20 / n))
    seen = np.bincount(np.clip(noise, -edge, edge) + edge, minlength=2 * edge + 1)
    want = law.pmf(np.arange(-edge, edge + 1))
    want[[0, -1]] = law.cdf(-edge)
    groups = np.array_split(np.arange(len(want)), min(len(want), 40))
    seen = [seen[g].sum() for g in groups]
    assert stats.chisquare(seen, [n * want[g].sum() / want.sum() for g in groups]).pvalue > 1e-6


def test_the_histogram_is_one_release_for_all_classes():
    me = client([0, 1, 1, 3])
    counts = histogram(me, classes=4, epsilon=0.1).value
    assert counts.shape == (4,)
    assert counts.dtype == np.int64
    assert [(line.event, line.relation) for line in me.drawn] == [(Pure(0.1), "zero-out")]
    kinds = {"unit": "example", "observer": "server", "delta": 1e-5}
    assert certified(me.spent, **kinds) == pytest.approx(0.1, rel=1e-2)
    assert certified(me.spent, **kinds, relation="replace") == pytest.approx(0.2, rel=1e-2)


def test_a_client_without_records_has_a_histogram_of_noise():
    assert own_counts(client([]), 3).tolist() == [0, 0, 0]
    assert histogram(client([]), classes=3, epsilon=1.0).value.shape == (3,)


def test_what_follows_from_released_counts():
    noisy = np.array([104, -3, 49, 0])
    np.testing.assert_array_equal(wanted(noisy, 0.05), [5, 0, 2, 0])
    assert public_size(noisy) == 150
    assert public_size(np.array([-5, 2])) == 1
    np.testing.assert_allclose(shares(noisy), [104 / 153, 0, 49 / 153, 0])
    np.testing.assert_allclose(shares(np.array([-1, 0])), [0.5, 0.5])
    assert spelled_out(wanted(noisy, 0.05)).tolist() == [0, 0, 0, 0, 0, 2, 2]
