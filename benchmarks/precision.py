"""How much faster networks are trained in bfloat16 than in single precision, in one run.

    python benchmarks/precision.py [--repeats 15] [--only cuag-cnn]

One thread, one batch in memory; a step is forward, backward and an update, as local training takes
it. Both precisions take turns; medians are shown. GFlop/s count the multiplications and additions
of convolutions and linear layers. The last line is what one large convolution reaches, which has
little to do but multiply: no network can be expected to gain more in bf16 than it does. (A product
of matrices says less: where MKL computes it, on AMD's processors, f32 gets half of its due.)
Nothing else should run at the same time.
"""

import argparse
import copy
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tacit.engines.memory import keep_memory
from tacit.models import build
from tacit.models.precision import Precision, compute_in

# network, shape of an image, images in a step
WORK = [
    ("dafl-cnn", (1, 28, 28), 256),
    ("dafl-cnn", (1, 28, 28), 32),
    ("cuag-cnn", (3, 32, 32), 50),
    ("resnet18", (3, 32, 32), 32),
]
BOTH: tuple[Precision, ...] = ("f32", "bf16")
CHANNELS, SIDE = 64, 32  # of the images of the large convolution
RATE = 0.01


def stepper(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], object]:
    """Return a step of training."""
    weights = list(model.parameters())

    def step() -> None:
        gradients = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), weights)
        with torch.no_grad():
            torch._foreach_add_(weights, list(gradients), alpha=-RATE)

    return step


def flops_of(model: nn.Module, x: Tensor) -> float:
    """Return the operations of a step: a pass forward, and two back but for the first layer's."""
    counted: list[float] = []

    def count(layer: Any, given: tuple[Tensor, ...], out: Tensor) -> None:
        counted.append(2.0 * out.numel() * math.prod(layer.weight.shape[1:]))

    layers = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    model(x)
    for hook in hooks:
        hook.remove()
    return 3 * sum(counted) - counted[0]


def training(name: str, shape: tuple[int, ...], batch: int) -> tuple[float, list[Callable]]:
    """Return the operations of a step, and a step in each precision."""
    torch.manual_seed(0)
    model = build(name, shape, 10, 0).train()
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.rand(batch, *shape).contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, 10, (batch,))
    each = []
    for precision in BOTH:
        own = copy.deepcopy(model)
        compute_in(precision, own)
        each.append(stepper(own, x, y))
    return flops_of(model, x), each


def convolution() -> tuple[float, list[Callable]]:
    """Return the operations of a large convolution, and it in each precision."""
    x = torch.rand(50, CHANNELS, SIDE, SIDE).contiguous(memory_format=torch.channels_last)
    w = torch.rand(CHANNELS, CHANNELS, 3, 3).contiguous(memory_format=torch.channels_last)
    each = [(x, w), (x.bfloat16(), w.bfloat16())]
    flops = 2.0 * x.numel() * CHANNELS * 9
    return flops, [lambda x=x, w=w: torch.conv2d(x, w, padding=1) for x, w in each]


def show(what: str, units: int, flops: float, each: list[Callable], repeats: int) -> None:
    """Time both in turns and print a line."""
    took: list[list[float]] = [[], []]
    for _ in range(repeats + 2):
        for times, call in zip(took, each, strict=True):
            begun = time.perf_counter()
            call()
            times.append(time.perf_counter() - begun)
    plain, fast = (statistics.median(times[2:]) for times in took)
    speeds = "".join(f"{units / t:12.0f}{1e-9 * flops / t:9.0f}" for t in (plain, fast))
    print(f"{what:24}{speeds}{plain / fast:8.2f}x")


def main() -> None:
    """Print a line for each network, and one for the large product."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--only", help="a network", choices=sorted({name for name, _, _ in WORK}))
    given = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    print(f"{'':24}{'f32: 1/s':>12}{'GFlop/s':>9}{'bf16: 1/s':>12}{'GFlop/s':>9}{'bf16 is':>9}")
    for name, shape, batch in WORK:
        if given.only in (None, name):
            flops, each = training(name, shape, batch)
            show(f"{name}, batches of {batch}", batch, flops, each, given.repeats)
    flops, each = convolution()
    show("one large convolution", 50, flops, each, given.repeats)


if __name__ == "__main__":
    main()
