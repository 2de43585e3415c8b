"""Networks without convolutions, for features and very small images."""

from __future__ import annotations

import math

from torch import nn

from tacit.models.architecture import network


@network("logistic", "multinomial logistic regression")
def logistic(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return multinomial logistic regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


@network("mlp", "one hidden layer of 64 units")
def mlp(shape: tuple[int, ...], classes: int, hidden: int = 64) -> nn.Module:
    """Return a network with one hidden layer."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(shape), hidden), nn.ReLU(), nn.Linear(hidden, classes)
    )
