"""The clipped sum of a goal's gradients; of a linear classifier in closed form.

A linear classifier's gradient for one example is an outer product, G_i = (p_i - y_i) [x_i, 1], so
its norm is known without a backward pass: ||G_i||^2 = ||p_i - y_i||^2 (||x_i||^2 + 1). It is what
private training of public features consists of. Classes lie along columns here, as torch's softmax
is fastest; the bound, and what is done where single precision does not do, are those of
:func:`tacit.privacy.perexample.clipped_sum`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tacit.core.data import Goal
from tacit.privacy.losses import LOSSES
from tacit.privacy.perexample import (
    HAIR,
    Squares,
    clipped_sum,
    doubtful,
    linear_alone,
    micro_batch,
)

Sums = dict[nn.Parameter, Tensor]


def clipped_gradients(
    model: nn.Module, goal: Goal, inputs: Tensor, labels: Tensor, clip: float
) -> Sums:
    """Return the sum of the examples' gradients of a goal's loss, each clipped to ``clip``."""
    layer = linear_alone(model)
    if layer is None or goal != "classes" or not _plain(model, layer, inputs):
        return clipped_sum(model, LOSSES[goal], inputs, labels, clip)[0]
    total = {w: torch.zeros_like(w) for w in layer.parameters()}
    at_a_time = micro_batch(model)
    for x, y in zip(torch.split(inputs, at_a_time), torch.split(labels, at_a_time), strict=True):
        some = _of_linear(layer, x.flatten(1), y, clip)
        some = some or clipped_sum(model, LOSSES[goal], x, y, clip)[0]
        for w, gradient in some.items():
            total[w] += gradient
    return total


def _plain(model: nn.Module, layer: nn.Linear, inputs: Tensor) -> bool:
    """Tell whether a linear model does to these inputs what its layer says, and nothing else."""
    trained = layer.bias is not None and layer.bias.requires_grad and layer.weight.requires_grad
    flat = [(m.start_dim, m.end_dim) == (1, -1) for m in model.modules() if type(m) is nn.Flatten]
    as_written = not any(
        "forward" in vars(m) or m._forward_hooks or m._forward_pre_hooks for m in model.modules()
    )
    single = inputs.dtype == layer.weight.dtype == torch.float32
    return trained and as_written and single and (inputs.dim() == 2 or flat == [True])


@torch.no_grad()
def _of_linear(layer: nn.Linear, x: Tensor, y: Tensor, clip: float) -> Sums | None:
    """Return the clipped sum of some examples; None if it takes double precision."""
    W, b = layer.parameters()
    scores = nn.functional.linear(x, W, b)
    wrong = scores.t().contiguous().softmax(0)
    wrong.scatter_add_(0, y[None], wrong.new_full((1, len(y)), -1.0))  # p - y, class by class
    # squares of single numbers are all there in double precision
    bias = Squares(wrong.double().square_().sum(0), 0.0)
    weight = bias * Squares.of(x)
    both = Squares(bias.value + weight.value, weight.missing)
    if doubtful(both, clip, exactly=False).any():
        return None
    wrong *= (clip * (1 - HAIR) / both.whole.sqrt()).clamp(max=1.0).to(wrong.dtype)
    return {W: wrong @ x, b: wrong.sum(1)}
