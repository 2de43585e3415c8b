"""What noise costs: nanoseconds for each noisy number, and how many times torch.randn that is.

    python benchmarks/noise.py [--repeats 25]

One thread, float32, values in one tensor. `release` is what a mechanism does with values: noise,
sum, grid, float32. The contenders take turns, so that a slow minute of the machine hits all of
them; the least processor time of all repeats is shown. At the end: a number of exact discrete
Laplace noise, and the noise beside the rest of a DP-SGD step of DA-FL's classifier, batch 256.
"""

import argparse
import os
import time
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import torch
import torch.nn.functional as F

from tacit.models import build
from tacit.privacy import exact
from tacit.privacy.noise import FromOS, FromSeed, noised, normal
from tacit.privacy.perexample import clipped_sum

Work = Callable[[], object]


def seconds(work: dict[str, Work], repeats: int) -> dict[str, float]:
    """Return the least processor time of each piece of work."""
    least = dict.fromkeys(work, float("inf"))
    for _ in range(repeats):
        for name, do in work.items():
            start = time.process_time()
            do()
            least[name] = min(least[name], time.process_time() - start)
    return least


def contenders(d: int) -> dict[str, Work]:
    """Return the ways to make, or to add, d numbers of noise."""
    values = [torch.zeros(d)]
    seeded = FromSeed(np.random.default_rng(0))
    return {
        "torch.randn": lambda: torch.randn(d),
        "torch.randn, float64": lambda: torch.randn(d, dtype=torch.float64),
        "64 bits of the system": lambda: os.urandom(8 * d),
        "64 bits of OpenSSL": lambda: FromOS().bits(d),
        "normal numbers": lambda: normal(FromOS(), d),
        "release": lambda: noised(FromOS(), values, 1.0),
        "release, seeded": lambda: noised(seeded, values, 1.0),
    }


def show_numbers(repeats: int) -> None:
    """Print nanoseconds for each number and the ratio to torch.randn."""
    for d in (10**4, 10**5, 10**6):
        took = seconds(contenders(d), repeats)
        print(f"\n{d:,} numbers")
        for name, s in took.items():
            print(f"  {name:24s} {s / d * 1e9:7.1f} ns  {s / took['torch.randn']:6.1f} x")


def show_exact(repeats: int) -> None:
    """Print microseconds for each exact number."""
    random, rate, n = exact.words(FromOS()), Fraction(0.1), 1000
    draw = {"": lambda: [exact.discrete_laplace(random, rate) for _ in range(n)]}
    took = seconds(draw, repeats)[""]
    print(f"\nexact discrete Laplace: {took / n * 1e6:.1f} microseconds")


def show_step(repeats: int) -> None:
    """Print what share of a DP-SGD step its noise is."""
    model = build("dafl-cnn", (1, 28, 28), 10, 0).to(memory_format=torch.channels_last)
    x = torch.rand(256, 1, 28, 28).to(memory_format=torch.channels_last)
    y = torch.randint(0, 10, (256,))
    weights = list(model.parameters())

    def each(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(x), y, reduction="none")

    took = seconds(
        {
            "gradients": lambda: clipped_sum(model, each, x, y, 1.0),
            "noise": lambda: noised(FromOS(), weights, 1.0),
        },
        repeats,
    )
    d = sum(w.numel() for w in weights)
    share = took["noise"] / sum(took.values())
    print(f"\na step of {d:,} parameters: {sum(took.values()) * 1e3:.0f} ms, noise {share:.1%}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=25)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    show_numbers(repeats)
    show_exact(repeats)
    show_step(repeats)


if __name__ == "__main__":
    main()
