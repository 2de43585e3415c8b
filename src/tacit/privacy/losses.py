"""The loss of each example, for whatever is predicted: a sum over examples can be clipped."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from tacit.core.data import Goal
from tacit.privacy.perexample import PerExampleLoss


def _entropies(scores: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(scores, labels, reduction="none")


def _squared(given: Tensor, targets: Tensor) -> Tensor:
    """Return the squared error of each example, the mean over its numbers."""
    return F.mse_loss(given, targets, reduction="none").mean(1)


def _binary(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of each example's labels, yes or no, the mean over them."""
    return F.binary_cross_entropy_with_logits(scores, labels, reduction="none").mean(1)


# from what a network gives, and labels
OF_OUTPUTS: dict[Goal, Callable[[Tensor, Tensor], Tensor]] = {
    "classes": _entropies,
    "regression": _squared,
    "multilabel": _binary,
}


def cross_entropies(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of each example."""
    return _entropies(model(inputs), labels)


def squared_errors(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the squared error of each example."""
    return _squared(model(inputs), targets)


def binary_cross_entropies(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of each example's labels, yes or no."""
    return _binary(model(inputs), labels)


LOSSES: dict[Goal, PerExampleLoss] = {
    "classes": cross_entropies,
    "regression": squared_errors,
    "multilabel": binary_cross_entropies,
}
