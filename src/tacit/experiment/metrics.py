"""Measures of a classifier besides accuracy, from scikit-learn; none looks at training data."""

from __future__ import annotations

from typing import Literal

import numpy as np
from torch import Tensor

from tacit.core import Array

Metric = Literal["accuracy", "macro_f1", "balanced_accuracy", "auroc", "calibration_error"]
WORDS: dict[str, str] = {
    "accuracy": "accuracy",
    "macro_f1": "macro F1",
    "balanced_accuracy": "balanced accuracy",
    "auroc": "AUROC",
    "calibration_error": "calibration error",
}
SQUARED = "mse"  # of numbers, which have no accuracy
COUNTED = ("accuracy", "balanced_accuracy")  # follow from counts of right and wrong by class
BINS = 15  # of confidence
MOST_CLASSES = 100  # of a confusion matrix that is written down


def measures(labels: Tensor, probabilities: Tensor) -> dict[str, float]:
    """Return what follows from the probabilities of some examples; what is not defined is left out.

    Args:
        labels: the true class of each example
        probabilities: a row for each example, a column for each class
    """
    from sklearn.metrics import f1_score  # slow to import, and needed once a run

    y, p = labels.numpy(), probabilities.double().numpy()
    if not len(y):
        return {}
    area = _auroc(y, p)
    found = {
        "macro_f1": float(f1_score(y, p.argmax(1), average="macro", zero_division=0.0)),
        "calibration_error": calibration_error(y, p),
        **({} if area is None else {"auroc": area}),
    }
    return {name: round(value, 6) for name, value in found.items()}


def _auroc(y: Array, p: Array) -> float | None:
    """Return the mean area under the curves of each class against the rest.

    Classes that all examples have, or none, have no curve.
    """
    from sklearn.metrics import roc_auc_score

    there = [c for c in range(p.shape[1]) if 0 < (y == c).sum() < len(y)]
    areas = [float(roc_auc_score(y == c, p[:, c])) for c in there]
    return float(np.mean(areas)) if areas else None


def calibration_error(y: Array, p: Array) -> float:
    """Return how far confidence is from accuracy (Guo et al. 2017): 15 bins of equal width.

    The mean distance in a bin, weighted by how many examples are in it.
    """
    sure, right = p.max(1), p.argmax(1) == y
    at = np.clip(np.ceil(sure * BINS).astype(int) - 1, 0, BINS - 1)
    gap = np.bincount(at, weights=sure - right, minlength=BINS)
    return float(np.abs(gap).sum() / len(y))


def confusion(labels: Tensor, predicted: Tensor, classes: int) -> list[list[int]]:
    """Return how many examples of each class (row) were taken for each (column)."""
    if classes > MOST_CLASSES:
        return []
    table = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(table, (labels.numpy(), predicted.numpy()), 1)
    rows: list[list[int]] = table.tolist()
    return rows
