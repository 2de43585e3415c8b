"""`tacit encode`: train a public encoder on public data, for --features."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from tacit.cli.flags import parse
from tacit.core import BadInput, check
from tacit.data import Dataset, load
from tacit.experiment.encode import Training, trained
from tacit.synthesis.encoder_file import ENDING, write

EVERY = 10.0  # seconds between two lines
FIRST = 2.0  # seconds until the first one
ABOUT = (
    "Train an encoder on public data, with labels, and write it as one file: the network up to its "
    "last linear layer, with a card (data, checksum, command, accuracy). --features FILE then puts "
    "it in front of any method. It says much of the data that it was trained on: they must be "
    "public."
)
EXAMPLES = (
    "tacit encode --data cifar100 --out cifar100.safetensors",
    "tacit run moments --data cifar10 --split label:1 --features cifar100.safetensors",
    "tacit join --data mine.npz --features cifar100.safetensors ... # at a site: only this encoder",
)


@dataclass(frozen=True)
class EncodeFlags(Training):
    """Flags of ``tacit encode``."""

    data: str = "cifar100"  # a known data set (see `tacit data`), or a path to your own
    public: bool = False  # your own data are public: you say so, nobody can check it
    classes: str = ""  # all classes of own data: names with commas, N for 0..N-1, or folders
    # a network of this package (see `tacit methods`); auto: conv6 for images from 16x16 on, else
    # mlp; its arguments follow as --model.NAME VALUE
    model: str = "auto"
    out: Path = Path("encoder.safetensors")  # the file to write; one that is there stays
    threads: int = 0  # processors to use; 0: all


def encode(args: Sequence[str]) -> None:
    """Train an encoder and write it."""
    given = parse(EncodeFlags, args, prog="tacit encode", about=ABOUT, examples=EXAMPLES)
    dataset = _public(given)
    _check_out(given.out)
    check.number("threads", given.threads, at_least=0, at_most=os.cpu_count() or 1, whole=True)
    if given.threads:
        torch.set_num_threads(given.threads)
    command = shlex.join(["tacit", "encode", *args])
    how = Training(given.epochs, given.batch, given.lr, given.seed)
    began = time.monotonic()
    card, layers = trained(dataset, given.model, how, command=command, told=Lines(how.epochs))
    card = write(given.out, card, layers)
    print(
        f"{card.network} trained on {card.rows:,} rows of {card.data} in "
        f"{time.monotonic() - began:.0f} s: {100 * card.accuracy:.2f}% of {card.held_out:,} "
        f"rows that were held out, {card.width} features of an input"
    )
    print(f"--features {given.out} uses it; its card is in the file")


def _public(given: EncodeFlags) -> Dataset:
    """Return data that somebody says are public."""
    dataset = load(given.data, classes=given.classes or None)
    if dataset.own and not given.public:
        raise BadInput(
            f"data = {given.data!r}: your own, and an encoder tells of the records that it was "
            "trained on; --public says that everybody may have them"
        )
    return dataset


def _check_out(out: Path) -> None:
    """Refuse a place for the file before the work, not after it."""
    if out.suffix != ENDING:
        raise BadInput(f"out = '{out}': must end in {ENDING}")
    if out.exists():
        raise BadInput(f"out = '{out}': there is a file already; remove it, or name another")
    if not out.absolute().parent.is_dir():
        raise BadInput(f"out = '{out}': there is no folder {out.absolute().parent}")


class Lines:
    """Says now and then how far training has come, and how long it will take."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs
        self.began = time.monotonic()
        self.next = self.began + FIRST
        self.loss = 0.0  # a mean of the last ones

    def __call__(self, done: int, of: int, loss: float) -> None:
        """Be told of a step."""
        self.loss = loss if done == 1 else 0.98 * self.loss + 0.02 * loss
        now = time.monotonic()
        if now < self.next and done < of:
            return
        self.next = now + EVERY
        left = (now - self.began) / done * (of - done)
        print(
            f"encode: epoch {min(self.epochs, 1 + done * self.epochs // of)}/{self.epochs}, "
            f"{100 * done / of:.1f}%, loss {self.loss:.3f}, {_duration(left)} left",
            file=sys.stderr,
            flush=True,
        )


def _duration(seconds: float) -> str:
    """Return a time in words: minutes where there are many seconds.

    >>> _duration(45), _duration(1500)
    ('45 s', '25 min')
    """
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
