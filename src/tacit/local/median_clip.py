"""Gradients whose tensors are clipped to the median of the examples' norms (DP-SCAFFOLD's code).

A clip that the batch itself decides bounds nothing; it is what was published.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from tacit.core import Client
from tacit.local.sgd import SGD
from tacit.privacy.mechanisms import ClaimedSteps


def noisy_steps(
    me: Client, weights: list[nn.Parameter], sgd: SGD, sigma: float, release: ClaimedSteps
) -> Iterator[list[Tensor]]:
    """Yield the gradient of each step: means of clipped ones with noise 2 sigma C/B on a tensor.

    Every step takes a new batch of B examples. All of ``weights`` are the network's.
    """
    n = len(me.data)
    for _ in range(sgd.steps_on(n)):
        inputs, labels = me.data.batch(me.rng.permutation(n)[: sgd.usual_batch])
        means, medians = median_clipped(me.model, inputs, labels)
        yield release.noised(means, [2 * sigma * C / len(labels) for C in medians])


def median_clipped(
    model: nn.Module, inputs: Tensor, labels: Tensor
) -> tuple[list[Tensor], list[float]]:
    """Return, for each tensor of parameters, the mean clipped gradient and the clip.

    The clip is the median of the examples' norms, of two middle ones the mean.
    """
    trained = {k: p.detach() for k, p in model.named_parameters() if p.requires_grad}

    def loss(p: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, p, (x.unsqueeze(0),)), y.unsqueeze(0))

    each = vmap(grad(loss), in_dims=(None, 0, 0))(trained, inputs, labels)
    return tuple(map(list, zip(*map(_clipped, each.values()), strict=True)))  # type: ignore[return-value]


def _clipped(g: Tensor) -> tuple[Tensor, float]:
    """Return the mean of an examples' gradients, each clipped to the median norm, and that norm."""
    norms = g.flatten(1).norm(dim=1)
    C = norms.quantile(0.5)
    factor = (C / norms).nan_to_num(nan=0.0, posinf=1.0).clamp(max=1.0)
    return torch.tensordot(factor, g, dims=1) / len(g), float(C)
