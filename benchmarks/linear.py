"""How fast gradients of a linear classifier are clipped: in closed form, by taps, and not at all.

    python benchmarks/linear.py [--repeats 30] [--examples 6000] [--features 288] [--classes 10]

One thread, one batch in memory, the sum of the gradients of all its examples. The contenders take
turns; medians are shown. `not clipped` is autograd's own gradient of the mean loss. Nothing else
should run at the same time.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from tacit.engines.memory import keep_memory
from tacit.privacy.clipping import clipped_gradients
from tacit.privacy.losses import cross_entropies
from tacit.privacy.perexample import clipped_sum


def contenders(examples: int, features: int, classes: int) -> dict[str, Callable[[], object]]:
    """Return what is timed, on the same model and batch."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(features, classes))
    x, y = 0.3 * torch.randn(examples, features), torch.randint(0, classes, (examples,))
    weights = list(model.parameters())
    return {
        "closed form": lambda: clipped_gradients(model, "classes", x, y, 1.0),
        "taps, thousands at a time": lambda: clipped_sum(model, cross_entropies, x, y, 1.0),
        "taps, 256 at a time": lambda: clipped_sum(model, cross_entropies, x, y, 1.0, 256),
        "not clipped": lambda: torch.autograd.grad(
            nn.functional.cross_entropy(model(x), y), weights
        ),
    }


def main() -> None:
    """Time all in turns and print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--examples", type=int, default=6000)
    parser.add_argument("--features", type=int, default=288)
    parser.add_argument("--classes", type=int, default=10)
    given = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    each = contenders(given.examples, given.features, given.classes)
    took: dict[str, list[float]] = {name: [] for name in each}
    for _ in range(given.repeats):
        for name, call in each.items():
            begun = time.perf_counter()
            call()
            took[name].append(1e3 * (time.perf_counter() - begun))
    medians = {name: statistics.median(times[1:] or times) for name, times in took.items()}
    for name, ms in medians.items():
        print(f"{name:26} {ms:7.2f} ms  {ms / medians['closed form']:5.2f}x the closed form")


if __name__ == "__main__":
    main()
