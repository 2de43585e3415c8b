"""What a step of local training makes of a gradient. Whatever they remember begins anew each round.

They see gradients only as training passes them on: under DP-SGD with noise, so that what they
remember costs nothing more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor

Name = Literal["sgd", "adam"]
BETA_1, BETA_2, TINY = 0.9, 0.999, 1e-8  # Adam's usual constants (Kingma and Ba 2015)


class Optimizer(Protocol):
    """Moves a point along a gradient, in place."""

    def step(self, here: list[Tensor], g: list[Tensor], lr: float) -> None: ...


@dataclass
class HeavyBall:
    """SGD, with momentum or without."""

    momentum: float
    velocity: list[Tensor] = field(default_factory=list)

    def step(self, here: list[Tensor], g: list[Tensor], lr: float) -> None:
        if self.momentum:
            if self.velocity:
                g = list(torch._foreach_add(g, self.velocity, alpha=self.momentum))
            self.velocity = g
        torch._foreach_add_(here, g, alpha=-lr)


@dataclass
class Adam:
    """Adam (Kingma and Ba 2015, algorithm 1)."""

    m: list[Tensor] = field(default_factory=list)
    v: list[Tensor] = field(default_factory=list)
    t: int = 0

    def step(self, here: list[Tensor], g: list[Tensor], lr: float) -> None:
        if not self.t:
            self.m = [torch.zeros_like(x) for x in here]
            self.v = [torch.zeros_like(x) for x in here]
        self.t += 1
        torch._foreach_lerp_(self.m, g, 1 - BETA_1)
        torch._foreach_mul_(self.v, BETA_2)
        torch._foreach_addcmul_(self.v, g, g, 1 - BETA_2)
        spread = list(torch._foreach_sqrt(self.v))
        torch._foreach_div_(spread, (1 - BETA_2**self.t) ** 0.5)
        torch._foreach_add_(spread, TINY)
        torch._foreach_addcdiv_(here, self.m, spread, -lr / (1 - BETA_1**self.t))


def optimizer(name: Name, momentum: float) -> Optimizer:
    """Return a fresh optimiser."""
    return Adam() if name == "adam" else HeavyBall(momentum)
