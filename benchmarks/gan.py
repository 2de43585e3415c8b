"""What a step of DA-FL's GAN consists of, paper mode, on 256 pairs of images: one thread.

    python benchmarks/gan.py [--repeats 40]
    PYTHONPATH=../before/src python benchmarks/gan.py   # another checkout, to compare with

Medians over the repeats, in ms. Nothing else should run at the same time.
"""

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from tacit.engines.workers import keep_memory
from tacit.privacy.noise import FromOS, noised
from tacit.privacy.perexample import clipped_sum
from tacit.synthesis.gan import GAN, Game

PAIRS, CLASSES = 256, 10
taken: dict[str, list[float]] = defaultdict(list)


@contextmanager
def timed(part: str) -> Iterator[None]:
    """Note how long a part of the step takes."""
    begun = time.perf_counter()
    yield
    taken[part].append(time.perf_counter() - begun)


def step(game: Game, real: torch.Tensor, y: torch.Tensor) -> None:
    """Take one step as a client does: `GAN._paper`, line by line."""
    weights = list(game.D.parameters())
    with timed("fake images"):
        fakes = game.fakes(y)
    with timed("discriminator's clipped gradient"):
        pairs = torch.stack([real, fakes.detach()], 1)
        sums, _ = clipped_sum(game.D, game.pair_loss, pairs, y, game.clip, rows=2)
    with timed("noise"):
        noisy = noised(FromOS(), [sums[w] for w in weights], 0.5 * game.clip)
    with timed("discriminator's step"):
        game.improve_D([g / PAIRS for g in noisy])
    with timed("generator's gradient and step"):
        game.improve_G(fakes, y)


def main() -> None:
    """Take steps and print what they took."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=40, help="steps")
    given = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    torch.manual_seed(0)
    game = Game(GAN(mode="paper"), (1, 28, 28), CLASSES, np.random.default_rng(0))
    real, y = torch.rand(PAIRS, 1, 32, 32) * 2 - 1, torch.randint(0, CLASSES, (PAIRS,))
    for _ in range(3):
        step(game, real, y)
    taken.clear()
    for _ in range(given.repeats):
        step(game, real, y)
    middle = {part: 1000 * statistics.median(seconds) for part, seconds in taken.items()}
    for part, ms in {**middle, "a step": sum(middle.values())}.items():
        print(f"{part:34}{ms:7.1f} ms")


if __name__ == "__main__":
    main()
