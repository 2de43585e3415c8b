"""The clipped sum of a goal's gradients; of a linear classifier in closed form.

A linear classifier's gradient for one example is an outer product, G_i = (p_i - y_i) [x_i, 1], so
its norm is known without a backward pass: ||G_i||^2 = ||p_i - y_i||^2 (||x_i||^2 + 1). It is what
private training of public features consists of. Classes lie along columns here, as torch's softmax
is fastest; the bound is that of :func:`tacit.privacy.perexample.clipped_sum`, which does the
examples, and only those, for which single precision is not enough.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from tacit.core.data import Goal
from tacit.privacy.losses import LOSSES
from tacit.privacy.perexample import (
    HAIR,
    clipped_sum,
    doubtful,
    linear_alone,
    micro_batch,
)
from tacit.privacy.squares import Squares

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
        unsure = _add_linear(layer, x.flatten(1), y, clip, total)
        if unsure.any():
            some, _ = clipped_sum(model, LOSSES[goal], x[unsure], y[unsure], clip)
            for w, gradient in some.items():
                total[w] += gradient
    return total


def _plain(model: nn.Module, layer: nn.Linear, inputs: Tensor) -> bool:
    """Tell whether a linear model does to these inputs what its layer says, and nothing else."""
    trained = [name for name, w in layer.named_parameters() if w.requires_grad]
    whole = trained == ["weight", "bias"] and len(list(model.parameters())) == len(trained)
    flat = [(m.start_dim, m.end_dim) == (1, -1) for m in model.modules() if type(m) is nn.Flatten]
    single = inputs.dtype == layer.weight.dtype == torch.float32
    everywhere = _has_any_global_hook()  # type: ignore[no-untyped-call]
    alone = not (torch.is_autocast_enabled(inputs.device.type) or everywhere)
    as_written = alone and not any(map(_hooked, model.modules()))
    return whole and single and as_written and (inputs.dim() == 2 or flat == [True])


def _hooked(m: nn.Module) -> bool:
    """Tell whether something else is called where a layer is."""
    forward = "forward" in vars(m) or m._forward_hooks or m._forward_pre_hooks
    return bool(forward or m._backward_hooks or m._backward_pre_hooks)


@torch.no_grad()
def _add_linear(layer: nn.Linear, x: Tensor, y: Tensor, clip: float, total: Sums) -> Tensor:
    """Add examples' clipped gradients to a total; return which it takes double precision for.

    None of these is added, and what is done with the others does not depend on them.
    """
    W, b = layer.parameters()
    wrong = nn.functional.linear(x, W, b).t().contiguous().softmax(0)
    # p - y, class by class; of the right class not p - 1, which would cancel
    wrong.scatter_(0, y[None], 0.0).scatter_(0, y[None], -wrong.sum(0, keepdim=True))
    # squares of single numbers are all there in double precision
    bias = Squares(wrong.double().square_().sum(0), 0.0)
    weight = bias * Squares.of(x)
    both = Squares(bias.value + weight.value, weight.missing)
    unsure = doubtful(both, clip, exactly=False)
    wrong *= (clip * (1 - HAIR) / both.whole.sqrt()).clamp(max=1.0).to(wrong.dtype)
    if unsure.any():
        wrong, x = wrong[:, ~unsure], x[~unsure]
    total[W] += wrong @ x
    total[b] += wrong.sum(1)
    return unsure
