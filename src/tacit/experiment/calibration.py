"""What a method's noise and budget are, from the numbers of examples, before it starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import torch

from tacit.core import ClientId, Known, Method, some
from tacit.engines.server import sample_rng
from tacit.experiment.config import Experiment
from tacit.privacy.guard import Budget


def budget_of(experiment: Experiment) -> Budget:
    """Return what an experiment may spend, of the unit and against the observer of its method."""
    unit, observer = experiment.method.protects
    return Budget(experiment.setting.budget, unit, observer, experiment.setting.delta)


def prepared(method: Method, known: Known, sample_seed: int) -> Method:
    """Return the method with whatever it chooses by rules, and solves.

    Args:
        method: as it was given
        known: what is public of the experiment
        sample_seed: who takes part in which round
    """
    return calibrated(method.tuned(known), known.sizes, known.delta, sample_seed)


def numbers_of(model: torch.nn.Module) -> int:
    """Return how many numbers a network has."""
    return sum(p.numel() for p in model.parameters())


def calibrated(
    method: Method, sizes: Mapping[ClientId, int], delta: float, sample_seed: int
) -> Method:
    """Return the method with whatever it solves from an epsilon before it starts."""
    # Where the sample is a secret, noise that depends on it would tell of it: everybody is taken to
    # be in every round.
    per_round = method.per_round if method.protects[1] == "server" else 0
    return method.solved(
        sizes, participations(tuple(sizes), per_round, method.rounds, sample_seed), delta
    )


def participations(
    everyone: Sequence[str], per_round: int, rounds: int, sample_seed: int
) -> Counter[str]:
    """Return how often each client will be sampled, which does not depend on any data."""
    draws = (some(per_round).pick(everyone, sample_rng(sample_seed, t)) for t in range(rounds))
    return Counter(client for draw in draws for client in draw)
