"""Gradients of single examples by torch.func, for layers that have no fast path: the slow way.

The whole network computes one example at a time, so that nothing can mix them: `vmap` runs several
side by side where it can. Every example's gradient of every weight is formed, which takes time and
memory that the fast path does without.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

# layers whose gradients example by example come from torch.func
SLOW: tuple[type[nn.Module], ...] = (
    nn.MultiheadAttention,
    NonDynamicallyQuantizableLinear,  # the last part of it
    nn.LSTM,
    nn.GRU,
    nn.RNN,
    nn.Conv3d,
    nn.RMSNorm,
    nn.EmbeddingBag,
)
ONE_BY_ONE = (nn.LSTM, nn.GRU, nn.RNN)  # they write in place, which vmap does not follow
NUMBERS = 1 << 24  # of gradients at a time: 64 MB

Losses = Callable[[Any, Tensor, Tensor], Tensor]  # of a network, or what takes its place


def slow_layers(model: nn.Module) -> list[str]:
    """Return the kinds of trained layers that have no fast path."""
    kinds = {type(m) for m in model.modules() if _is_trained(m)} & set(SLOW)
    return sorted(kind.__name__ for kind in kinds if kind is not NonDynamicallyQuantizableLinear)


def is_slow(model: nn.Module) -> bool:
    """Tell whether a network needs the slow way."""
    return any_slow(m for m in model.modules() if _is_trained(m))


def any_slow(trained: Iterable[nn.Module]) -> bool:
    """Tell whether any of some trained layers has no fast path."""
    return any(type(m) in SLOW for m in trained)


def _is_trained(module: nn.Module) -> bool:
    return any(p.requires_grad for p in module.parameters(recurse=False))


def examples_at_once(model: nn.Module) -> int:
    """Return how many examples to take at a time, a power of 2 up to 256."""
    numbers = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return 1 << min(8, int(math.log2(max(1, NUMBERS // max(1, numbers)))))


def gradients(
    model: nn.Module, loss: Losses, inputs: Tensor, labels: Tensor
) -> dict[nn.Parameter, Tensor]:
    """Return each example's gradient of each trained weight, (n, *shape of the weight)."""
    weights = {name: p for name, p in model.named_parameters() if p.requires_grad}

    def of_one(point: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        losses = loss(lambda *given: functional_call(model, point, given), x[None], y[None])
        return losses.sum()

    point = {name: p.detach() for name, p in weights.items()}
    with _quietly(model):
        if any(isinstance(module, ONE_BY_ONE) for module in model.modules()):
            each = [grad(of_one)(point, x, y) for x, y in zip(inputs, labels, strict=True)]
            found = {name: torch.stack([one[name] for one in each]) for name in point}
        else:
            found = vmap(grad(of_one), in_dims=(None, 0, 0))(point, inputs, labels)
    return {p: found[name].detach() for name, p in weights.items()}


@contextmanager
def _quietly(model: nn.Module) -> Iterator[None]:
    """Leave the network as it was, and torch's remarks about its own speed unsaid."""
    with warnings.catch_warnings(), sdpa_kernel(SDPBackend.MATH):
        warnings.filterwarnings("ignore", message="There is a performance drop")
        try:
            yield
        finally:
            for module in model.modules():
                if isinstance(module, nn.RNNBase):  # it has its weights in a list besides
                    for name, p in module.named_parameters(recurse=False):
                        setattr(module, name, p)
