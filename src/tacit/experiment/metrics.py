"""Measures of a classifier besides accuracy; none looks at training data.

F1 and AUROC are written out: importing scikit-learn for them took longer than a small run. The
tests hold them against scikit-learn's.
"""

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
    y, p = labels.numpy(), probabilities.double().numpy()
    if not len(y) or not np.isfinite(p).all():  # a network that diverged has no probabilities
        return {}
    area = _auroc(y, p)
    found = {
        "macro_f1": macro_f1(y, p.argmax(1)),
        "calibration_error": calibration_error(y, p),
        **({} if area is None else {"auroc": area}),
    }
    return {name: round(value, 6) for name, value in found.items()}


def macro_f1(y: Array, predicted: Array) -> float:
    """Return the mean of 2TP / (2TP + FP + FN) over the classes that occur or were predicted."""
    classes = int(max(y.max(), predicted.max())) + 1
    right = np.bincount(y[y == predicted], minlength=classes)
    of = np.bincount(y, minlength=classes) + np.bincount(predicted, minlength=classes)
    return float((2 * right[of > 0] / of[of > 0]).mean())


def _auroc(y: Array, p: Array) -> float | None:
    """Return the mean area under the curves of each class against the rest.

    Classes that all examples have, or none, have no curve.
    """
    there = [c for c in range(p.shape[1]) if 0 < (y == c).sum() < len(y)]
    areas = [area_under_curve(y == c, p[:, c]) for c in there]
    return float(np.mean(areas)) if areas else None


def area_under_curve(positive: Array, score: Array) -> float:
    """Return how often a positive example scores above a negative one; a tie counts half."""
    values, at = np.unique(score, return_inverse=True)
    ups = np.bincount(at, weights=positive, minlength=len(values))
    downs = np.bincount(at, weights=~positive, minlength=len(values))
    below = np.cumsum(downs) - downs
    return float((ups * (below + downs / 2)).sum() / (ups.sum() * downs.sum()))


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
