"""The membership attack: cases by hand, scikit-learn as oracle, a generator that copies."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from tacit.attacks import from_scores, nearest, on_samples
from tacit.core import BadInput


def test_four_records_by_hand():
    """Scores 3, 1 against 2, 0: three of the four pairs are in the right order."""
    outcome = from_scores([3, 1], [2, 0])
    assert outcome.auc == 0.75
    assert outcome.advantage == 0.5  # only 3 is above 2, both are above 0 at one false alarm
    assert outcome.accuracy == 0.75
    assert outcome.found(0.01) == 0.5
    assert outcome.found(0.5) == 1.0


def test_the_nearest_sample_counts():
    samples = torch.tensor([[0.0, 0.0], [10.0, 0.0]])
    records = torch.tensor([[3.0, 4.0], [10.0, 1.0]])
    assert nearest(records, samples).tolist() == [5.0, 1.0]


def test_a_generator_that_copies_is_found_out_and_one_that_knows_nothing_is_not():
    rng = torch.Generator().manual_seed(0)
    members, others, fresh = torch.randn(3, 2000, 1, 4, 4, generator=rng)
    copied = on_samples(members[:1000], members, others)
    assert copied.found(0.01) >= 0.5  # the copied half is at distance 0
    assert copied.advantage >= 0.5
    ignorant = on_samples(fresh, members, others)
    # Kolmogorov-Smirnov: two samples of 2,000 of one law differ by more than 0.065 in one of 2,600
    assert ignorant.advantage < 0.065
    assert abs(ignorant.auc - 0.5) < 0.04


scores = st.lists(st.integers(-5, 5), min_size=1, max_size=30)


@given(members=scores, others=scores, shift=st.floats(-3, 3))
@settings(max_examples=50, deadline=None)
def test_it_agrees_with_scikit_learn_and_with_the_definitions(members, others, shift):
    outcome = from_scores(members, others)
    true = [1] * len(members) + [0] * len(others)
    assert outcome.auc == pytest.approx(roc_auc_score(true, members + others))
    a, b = np.array(members), np.array(others)
    cuts = [np.mean(a >= t) - np.mean(b >= t) for t in range(-6, 7)]
    assert outcome.advantage == pytest.approx(max(cuts))
    assert from_scores(a + shift, b + shift).advantage == pytest.approx(outcome.advantage)
    at_once = [np.mean(a >= t) for t in range(-6, 7) if np.mean(b >= t) <= 0.1]
    assert outcome.found(0.1) == pytest.approx(max([0, *at_once]))


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: from_scores([], [1.0]), "members"),
        (lambda: from_scores([1.0], [float("nan")]), "others"),
        (lambda: nearest(torch.zeros(2, 3), torch.zeros(2, 4)), "one shape"),
        (lambda: nearest(torch.zeros(2, 3), torch.zeros(0, 3)), "samples"),
        (lambda: nearest(torch.full((1, 3), torch.inf), torch.zeros(1, 3)), "records"),
        (lambda: from_scores([1.0], [0.0]).found(2.0), "false_alarms"),
    ],
)
def test_what_cannot_be_judged_is_refused_in_one_line(call, word):
    with pytest.raises(BadInput, match=word) as said:
        call()
    assert "\n" not in str(said.value)
