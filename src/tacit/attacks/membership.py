"""Was this record in the training set? Answered from synthetic samples alone.

The full black-box attack of GAN-Leaks (Chen, Yu, Zhang and Fritz 2020, section 4.1), by which GFL
(figure 3, table IV) measures its generator: whoever is nearer to the samples was rather a member.
Any other attack that gives each record a score can be judged in the same way, by `from_scores`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.core import BadInput, check

Array = npt.NDArray[np.float64]
AT_ONCE = 1024  # records compared with all samples at a time


@dataclass(frozen=True)
class Outcome:
    """How well scores tell members from others; higher scores speak for membership."""

    members: Array  # scores of records that were trained on
    others: Array  # scores of records that were not

    @cached_property
    def roc(self) -> tuple[Array, Array]:
        """Return the false and the true positive rates, from the strictest threshold on."""
        from sklearn.metrics import roc_curve  # slow to import, and seldom needed

        true = np.r_[np.ones(len(self.members)), np.zeros(len(self.others))]
        scores = np.r_[self.members, self.others]
        false_positives, true_positives, _ = roc_curve(true, scores, drop_intermediate=False)
        return false_positives, true_positives

    @property
    def auc(self) -> float:
        """Return the probability that a member has a higher score than another record."""
        from sklearn.metrics import auc

        return float(auc(*self.roc))

    @property
    def advantage(self) -> float:
        """Return the largest difference of true and false positives: 0 is guessing, 1 certainty."""
        false_positives, true_positives = self.roc
        return float(np.max(true_positives - false_positives))

    @property
    def accuracy(self) -> float:
        """Return the share of right answers at the best threshold, members being one half."""
        return (1 + self.advantage) / 2

    def found(self, false_alarms: float = 0.01) -> float:
        """Return the true positive rate where at most this share of the others is suspected."""
        check.number("false_alarms", false_alarms, at_least=0, at_most=1)
        false_positives, true_positives = self.roc
        return float(np.max(true_positives[false_positives <= false_alarms]))


def from_scores(members: npt.ArrayLike, others: npt.ArrayLike) -> Outcome:
    """Judge an attack by the scores it gives to members and to records that are none."""
    scores = {"members": np.asarray(members, float), "others": np.asarray(others, float)}
    for name, each in scores.items():
        if each.ndim != 1 or not len(each) or not np.isfinite(each).all():
            raise BadInput(f"{name}: must be one finite score for each of at least one record")
    return Outcome(**scores)


def nearest(records: Tensor, samples: Tensor) -> Array:
    """Return how far each record is from the sample that is most like it (Euclidean)."""
    for name, x in (("records", records), ("samples", samples)):
        if not len(x) or not torch.isfinite(x).all():
            raise BadInput(f"{name}: must be finite numbers, and at least one row")
    if records.shape[1:] != samples.shape[1:]:
        shapes = f"{tuple(records.shape[1:])} and {tuple(samples.shape[1:])}"
        raise BadInput(f"records, samples: must have one shape; these have {shapes}")
    rows = records.flatten(1).double()
    drawn = samples.flatten(1).double()
    distances = [torch.cdist(part, drawn).amin(1) for part in torch.split(rows, AT_ONCE)]
    return torch.cat(distances).numpy()


def on_samples(samples: Tensor, members: Tensor, others: Tensor) -> Outcome:
    """Attack a synthetic set: which of these records was its generator trained on?

    Args:
        samples: the synthetic set, all that the attacker sees
        members: records that the generator was trained on
        others: records from the same source that it was not trained on
    """
    return from_scores(-nearest(members, samples), -nearest(others, samples))
