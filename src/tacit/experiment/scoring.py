"""From predictions to what metrics.jsonl says, the same for a simulation and for real sites.

A model's predictions on some test data are counted as right or wrong for each class; counts of all
clients, exact or noisy, make an evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.core import Client, ClientId, Json, Predictor
from tacit.privacy.losses import OF_OUTPUTS

CHUNK = 500  # examples scored at a time
SHOWN = 100  # with more clients than that, only a summary of them is written


@dataclass(frozen=True)
class Scored:
    """Predictions for some test examples, in order, and the sum of their losses."""

    predicted: Tensor
    loss: float
    probabilities: Tensor | None = None  # of each class, where more than accuracy is measured


def score_with(me: Client, predict: Predictor, *, detailed: bool = False) -> Scored:
    """Score a client's test data; ``detailed`` with the probabilities."""
    predicted = [torch.zeros(0, dtype=torch.int64)]
    shares = []
    loss = 0.0
    if me.goal != "classes":
        return numbers_with(me, predict)
    with torch.no_grad():
        for start in range(0, len(me.test), CHUNK):
            inputs, labels = me.test.batch(slice(start, start + CHUNK))
            scores = predict(inputs)
            predicted.append(scores.argmax(1).cpu())
            loss += float(F.cross_entropy(scores, labels, reduction="sum"))
            shares += [scores.float().softmax(1).cpu()] if detailed else []
    return Scored(torch.cat(predicted), loss, torch.cat(shares) if shares else None)


def numbers_with(me: Client, predict: Predictor) -> Scored:
    """Return what a model of numbers, or of yes and no, gives for a client's test data."""
    made = [torch.zeros(0, me.classes)]
    loss = 0.0
    with torch.no_grad():
        for start in range(0, len(me.test), CHUNK):
            inputs, labels = me.test.batch(slice(start, start + CHUNK))
            given = predict(inputs).float()
            made.append(given.cpu())
            loss += float(OF_OUTPUTS[me.goal](given, labels).sum())
    return Scored(torch.cat(made), loss)


@dataclass(frozen=True)
class Tally:
    """How often a model was right and wrong on some test data, for each class.

    No example is in it, so it may leave a site. Counts with noise may be negative.
    """

    right: list[int]
    wrong: list[int]
    loss: float | None  # the sum over examples; None where the counts are noisy

    @property
    def examples(self) -> int:
        """How many test examples were counted."""
        return sum(self.right) + sum(self.wrong)

    @property
    def accuracy(self) -> float:
        """The share that was right, between 0 and 1, also where noise is in the counts."""
        return float(np.clip(sum(self.right) / self.examples, 0, 1))


def counted(right: Tensor, labels: Tensor, classes: int, loss: float) -> Tally:
    """Count, for each class, which test examples were answered right.

    Args:
        right: for each example, whether it was
        labels: for each example, the class that it is counted under
        classes: how many classes there are
        loss: the sum over these examples
    """
    good = torch.bincount(labels[right], minlength=classes)
    bad = torch.bincount(labels[~right], minlength=classes)
    return Tally(good.tolist(), bad.tolist(), loss)


def counted_apart(right: Tensor, labels: Tensor, classes: int, whose: Tensor) -> list[Tally]:
    """Count the same for many clients at once, without their losses.

    Args:
        right: for each example, whether it was answered right
        labels: for each example, the class that it is counted under
        classes: how many classes there are
        whose: for each example, its client's number, from 0 on without a gap
    """
    clients = int(whose.max()) + 1
    cell = (whose * classes + labels) * 2 + right
    counts = torch.bincount(cell, minlength=clients * classes * 2).view(clients, classes, 2)
    wrong, good = counts.unbind(2)
    return [Tally(g, b, 0.0) for g, b in zip(good.tolist(), wrong.tolist(), strict=True)]


def summed(tallies: Iterable[Tally]) -> Tally:
    """Return the counts of several clients together; what noise made negative counts as none."""
    every = list(tallies)
    right = np.sum([np.maximum(t.right, 0) for t in every], axis=0, dtype=int)
    wrong = np.sum([np.maximum(t.wrong, 0) for t in every], axis=0, dtype=int)
    known = [t.loss for t in every if t.loss is not None]
    loss = sum(known) if len(known) == len(every) else None
    return Tally(np.ravel(right).tolist(), np.ravel(wrong).tolist(), loss)


def noise_in(tallies: Mapping[ClientId, Tally], epsilons: Mapping[ClientId, float]) -> float:
    """Return the standard deviation that noisy counts give the accuracy over all examples.

    Each count of a report has two-sided geometric noise. To first order, without the cut at 0.

    Args:
        tallies: the counts of each client
        epsilons: of the reports of those clients whose counts are noisy
    """
    total = summed(tallies.values())
    variance = sum(
        len(tallies[i].right) * 2 * math.exp(-e) / math.expm1(-e) ** 2 for i, e in epsilons.items()
    )
    right, wrong = sum(total.right), sum(total.wrong)
    return math.hypot(right, wrong) * math.sqrt(variance) / max(total.examples, 1) ** 2


@dataclass(frozen=True)
class Evaluation:
    """How good a state is.

    ``accuracy`` is of the shared model on all test data, where every example counts alike, or, for
    personal models, the mean over clients; NaN where nobody has test data.
    """

    accuracy: float
    loss: float | None  # the mean over examples; None where a count is noisy
    personal: bool
    per_class: list[float | None]
    per_client: dict[ClientId, float]  # clients that have test data of their own
    measures: dict[str, float] = field(default_factory=dict)  # besides, where they were asked for
    confusion: list[list[int]] = field(default_factory=list)  # likewise

    @classmethod
    def of(
        cls, clients: Mapping[ClientId, Tally], *, personal: bool, whole: Tally | None = None
    ) -> Evaluation:
        """Return what counts say.

        Args:
            clients: the counts of each client on its own test data
            personal: whether each client answers with a model of its own
            whole: the counts on the whole test set; None: those of all clients together
        """
        nonempty = {i: t for i, t in clients.items() if t.examples > 0}
        total = whole or summed(nonempty.values())
        if total.examples <= 0:
            return cls(math.nan, None, personal, [], {})
        own = {i: t.accuracy for i, t in nonempty.items()}
        accuracy = float(np.mean(list(own.values()))) if personal else total.accuracy
        loss = None if total.loss is None else total.loss / total.examples
        return cls(accuracy, loss, personal, _per_class(total), own)

    def line(self) -> Json:
        """Return what goes into metrics.jsonl; single clients only where there are not too many."""
        if math.isnan(self.accuracy):
            return {}
        known = [share for share in self.per_class if share is not None]
        line = {
            "accuracy": self.accuracy,
            "balanced_accuracy": round(float(np.mean(known)), 6),
            "loss": self.loss,
            "personal": self.personal,
            "per_class": self.per_class,
            **self.measures,
            **({"confusion": self.confusion} if self.confusion else {}),
            "own_data": _spread(list(self.per_client.values())),
        }
        return line | ({"per_client": self.per_client} if len(self.per_client) <= SHOWN else {})


@dataclass(frozen=True)
class Errors:
    """How good a shared model of numbers, or of yes and no, is on the whole test set."""

    loss: float  # the mean over examples: for numbers the mean squared error, as they are scaled
    right: dict[str, float]  # yes and no: the share of examples for which each label is right
    mae: dict[str, float]  # numbers: the mean absolute error, in each label's own unit

    @property
    def accuracy(self) -> float:
        """The mean share of right labels; numbers have none."""
        return float(np.mean(list(self.right.values()))) if self.right else math.nan

    def line(self) -> Json:
        """Return what goes into metrics.jsonl; numbers have no accuracy."""
        if not self.right:
            return {"accuracy": None, "loss": self.loss, "mse": self.loss, "mae": self.mae}
        return {
            "accuracy": self.accuracy,
            "loss": self.loss,
            "personal": False,
            "per_label": {name: round(share, 6) for name, share in self.right.items()},
            "own_data": {},
        }


def _per_class(tally: Tally) -> list[float | None]:
    """Return the accuracy of each class, None where there is no example of it."""
    pairs = zip(tally.right, tally.wrong, strict=True)
    return [round(good / (good + bad), 6) if good + bad else None for good, bad in pairs]


def _spread(accuracies: list[float]) -> dict[str, float]:
    """Return how clients' accuracies on their own test data spread; nothing if there are none."""
    if not accuracies:
        return {}
    summary = {
        "mean": np.mean(accuracies),
        "std": np.std(accuracies),
        "worst": np.min(accuracies),
    }
    return {k: round(float(v), 6) for k, v in summary.items()}
