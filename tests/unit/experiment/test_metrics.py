"""Measures besides accuracy are those of scikit-learn, and of the public order of classes."""

import json
import math
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score, confusion_matrix, f1_score, roc_auc_score

import tacit
from tacit.core import BadInput
from tacit.experiment.metrics import (
    WORDS,
    area_under_curve,
    calibration_error,
    confusion,
    macro_f1,
    measures,
)
from tacit.experiment.scoring import Evaluation, counted

rng = np.random.default_rng(0)
Y = rng.integers(0, 4, 300)
P = torch.from_numpy(rng.dirichlet(np.ones(4), 300)).float()


def test_they_are_what_scikit_learn_says():
    got = measures(torch.from_numpy(Y), P)
    p = P.double().numpy()
    p /= p.sum(1, keepdims=True)
    want = roc_auc_score(Y, p, multi_class="ovr", average="macro")
    assert math.isclose(got["auroc"], want, abs_tol=1e-6)
    assert math.isclose(got["macro_f1"], f1_score(Y, p.argmax(1), average="macro"), abs_tol=1e-6)
    table = confusion(torch.from_numpy(Y), P.argmax(1), 4)
    assert table == confusion_matrix(Y, p.argmax(1)).tolist()


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 4)), min_size=1),
)
def test_f1_and_area_are_scikit_learn_s_with_ties_and_missing_classes(rows):
    y, predicted, score = (np.array(column) for column in zip(*rows, strict=True))
    want = f1_score(y, predicted, average="macro", zero_division=0.0)
    assert math.isclose(macro_f1(y, predicted), want, abs_tol=1e-9)
    positive = y == 0
    if 0 < positive.sum() < len(y):
        want = roc_auc_score(positive, score)
        assert math.isclose(area_under_curve(positive, score), want, abs_tol=1e-9)


def test_a_run_does_not_wait_for_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.metrics", None)  # whoever imports it fails
    assert "auroc" in measures(torch.from_numpy(Y), P)


def test_balanced_accuracy_follows_from_counts():
    labels = torch.from_numpy(Y)
    right = P.argmax(1) == labels
    line = Evaluation.of({"0": counted(right, labels, 4, 0.0)}, personal=False).line()
    want = balanced_accuracy_score(Y, P.argmax(1))
    assert math.isclose(line["balanced_accuracy"], want, abs_tol=1e-5)


def test_calibration_by_hand():
    # three examples in the bin up to 0.8, two of them right; one in the last, right
    sure = np.array([0.8, 0.8, 0.8, 1.0])
    p = np.stack([sure, 1 - sure], 1)
    assert math.isclose(calibration_error(np.array([0, 0, 1, 0]), p), (2.4 - 2) / 4)
    assert calibration_error(np.array([0, 0, 0, 0]), np.array([[1.0, 0.0]] * 4)) == 0


def test_what_is_not_defined_is_left_out():
    one_class = measures(torch.zeros(3, dtype=torch.int64), torch.tensor([[0.9, 0.1]] * 3))
    assert set(one_class) == {"macro_f1", "calibration_error"}
    missing = measures(torch.tensor([0, 1]), torch.tensor([[0.8, 0.1, 0.1], [0.2, 0.7, 0.1]]))
    assert missing["auroc"] == 1  # of the two classes that there are
    assert measures(torch.zeros(0, dtype=torch.int64), torch.zeros(0, 2)) == {}
    assert measures(torch.tensor([0, 1]), torch.tensor([[0.5, 0.5], [math.nan, 0.1]])) == {}


def run(tmp_path, method, **setting):
    return tacit.run(
        method, out=tmp_path / "run", clients=2, engine="serial", model="logistic", **setting
    )


def test_the_last_round_has_them_all_and_the_chosen_one_every_round(tmp_path):
    lines = run(tmp_path / "a", "fedavg:rounds=2").metrics
    more = {"macro_f1", "auroc", "calibration_error", "confusion"}
    assert not more & lines[0].keys()
    assert more <= lines[1].keys()
    assert sum(map(sum, lines[1]["confusion"])) == 360
    diagonal = sum(lines[1]["confusion"][c][c] for c in range(10)) / 360
    assert math.isclose(diagonal, lines[1]["accuracy"])
    chosen = run(tmp_path / "b", "fedavg:rounds=2", metric="auroc").metrics
    assert all("auroc" in line for line in chosen)
    assert chosen[1]["accuracy"] == lines[1]["accuracy"]


def test_personal_models_are_measured_under_the_public_names_of_classes(tmp_path):
    final = run(tmp_path, "local:rounds=2", split="alid:5").final
    table = np.array(final["confusion"])
    for c, accuracy in enumerate(final["per_class"]):
        examples = table[c].sum()
        assert (accuracy is None) == (examples == 0)
        assert not examples or math.isclose(table[c][c] / examples, accuracy, abs_tol=1e-5)
    assert final["accuracy"] > 0.5


def test_tables_show_the_chosen_metric(tmp_path):
    from tacit.report.tables import comparison_table

    compared = tacit.compare(
        ["fedavg:rounds=1"], out=tmp_path / "c", clients=2, engine="serial", model="logistic",
        metric="macro_f1",
    )  # fmt: skip
    written = (compared.folder / "fedavg-rounds=1-s0/metrics.jsonl").read_text()
    (line,) = [json.loads(x) for x in written.splitlines()]
    text = comparison_table(compared.rows)
    assert "macro F1 %" in text
    assert f"{100 * line['macro_f1']:.1f}" in text
    assert compared.rows[0].shown == [line["macro_f1"]]


def test_unknown_metrics_are_refused(tmp_path):
    with pytest.raises(BadInput, match="metric"):
        run(tmp_path, "fedavg", metric="f2")
    assert "auroc" in WORDS
