"""Mini-batch SGD on one client's data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.core import Client, Params, Predictor, check_number, load_params, params_of

Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]
Correction = Callable[[Params, Params], Params]  # (gradient, where we are) -> the direction a method goes instead


def cross_entropy(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of a batch."""
    return F.cross_entropy(model(inputs), labels)


@dataclass(frozen=True)
class SGD:
    """Local training: ``epochs`` passes over the client's data in shuffled mini-batches."""

    lr: float = 0.05  # step size
    epochs: int = 1  # passes over the client's data in one round
    batch: int = 32  # examples per step; the last one may be smaller
    momentum: float = 0.0  # heavy-ball, reset at every round
    weight_decay: float = 0.0  # L2 penalty on every parameter

    def __post_init__(self) -> None:
        check_number("sgd.lr", self.lr, above=0)
        check_number("sgd.epochs", self.epochs, at_least=1, whole=True)
        check_number("sgd.batch", self.batch, at_least=1, whole=True)
        check_number("sgd.momentum", self.momentum, at_least=0, below=1)
        check_number("sgd.weight_decay", self.weight_decay, at_least=0)

    def fit(
        self, me: Client, x: Params, *, grad: Correction | None = None, loss: Loss = cross_entropy
    ) -> tuple[Params, int]:
        """Minimise the local loss from ``x``; return where it ended and the number of steps.

        ``grad(g, y)`` lets a method correct each gradient ``g`` at the present point ``y``; both are live tensors.
        """
        weights = load_params(me.model.train(), x)
        y = Params(zip(x, (w.detach() for w in weights), strict=True))
        velocity: list[Tensor] | None = None
        steps = 0
        for rows in self.batches(len(me.data), me.rng):
            inputs, labels = me.data.batch(rows)
            g: list[Tensor] = list(torch.autograd.grad(loss(me.model, inputs, labels), weights))
            if self.weight_decay:
                torch._foreach_add_(g, list(y.values()), alpha=self.weight_decay)
            if grad is not None:
                g = list(grad(Params(zip(x, g, strict=True)), y).values())
            if self.momentum:
                g = g if velocity is None else list(torch._foreach_add(g, velocity, alpha=self.momentum))
                velocity = g
            torch._foreach_add_(list(y.values()), g, alpha=-self.lr)
            steps += 1
        return params_of(me.model), steps

    def batches(self, n: int, rng: np.random.Generator) -> Iterator[np.ndarray[Any, np.dtype[np.int64]]]:
        """Yield the rows of each mini-batch: every example once in each epoch."""
        for _ in range(self.epochs):
            order = rng.permutation(n)
            for start in range(0, n, self.batch):
                yield order[start : start + self.batch]

    def reach(self, steps: int) -> float:
        """Return the sum of the weights that ``steps`` gradients get in the final point, in units of ``lr``.

        FedNova's ``||a||_1``: the number of steps without momentum, more with it (a gradient acts again later).
        """
        m = self.momentum
        return float(steps) if m == 0.0 else (steps - m * (1 - m**steps) / (1 - m)) / (1 - m)


def network(me: Client, x: Params) -> Predictor:
    """Return the experiment's network with the parameters ``x``, as a function from inputs to scores."""
    load_params(me.model.eval(), x)
    return me.model
