"""The membership attack on the synthetic samples that a run's clients have shared."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from tacit.attacks.membership import Outcome, from_scores, nearest
from tacit.core import BadInput
from tacit.experiment.result import Run
from tacit.experiment.rundir import RunDir
from tacit.experiment.start import plan_again

MOST = 500  # members, and as many others, of each client


def attack_on(run: Run) -> Outcome:
    """Attack each client's samples with its own records and as many that it never had.

    The others are test records of its own classes, so that what is found is membership and not the
    class. All clients' scores are judged together.
    """
    directory = RunDir.open(run.folder)
    federation = plan_again(directory).encoded
    saved = directory.checkpoint()
    shares = run.experiment.method.synthetic(saved[0]) if saved else []
    if len(shares) != len(federation.everyone):
        raise BadInput(f"'{run.folder}': not every client has shared samples")
    members, others = [], []
    for client, share in zip(federation.everyone, shares, strict=True):
        own, held_out = federation.train(client).seen, federation.test(client).seen
        n = min(MOST, len(own), len(held_out))
        members.append(_scores(own[:n], share.x))
        others.append(_scores(held_out[:n], share.x))
    return from_scores(np.concatenate(members), np.concatenate(others))


def _scores(records: Tensor, samples: Tensor) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return scores that are higher the nearer a record is to a sample."""
    return -nearest(records, samples)
