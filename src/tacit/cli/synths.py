"""`tacit synth`: from a data set to a private synthetic one, with a certificate."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from tacit.cli.flags import parse
from tacit.cli.progress import watcher
from tacit.cli.stated_classes import load_stated
from tacit.core import BadInput, check
from tacit.experiment.rundir import free_folder
from tacit.experiment.synth import save, synthesise
from tacit.privacy import show_epsilon
from tacit.report.pictures import draw_sheet
from tacit.synthesis.gan import GANSettings
from tacit.synthesis.moments import Moments
from tacit.synthesis.source import Source

ABOUT = (
    "Make a private synthetic copy of a data set: synthetic.npz, a sheet of samples, and "
    "certificate.json."
)


@dataclass(frozen=True)
class SynthFlags:
    """Flags of ``tacit synth``."""

    data: tyro.conf.Positional[str] = "digits"  # a known data set, or a path to your own
    epsilon: float = 1.0  # what the synthetic set may cost one example of the real one
    generator: Literal["moments", "gan"] = "moments"  # moments: seconds; gan: minutes to hours
    # all classes there can be, in order, such as benign,malignant; or N for 0..N-1; or folders, for
    # those of a folder of images. Own data need it: the synthetic set names them
    classes: str = ""
    samples: int = 0  # how many to draw; 0: about as many as there are
    delta: float = 1e-5  # the delta of (epsilon, delta)
    label_epsilon: float = 0.05  # the part of epsilon for the GAN's class histogram
    seed: int = 0  # everything random but the noise derives from it
    # where noise comes from; seeded: a simulation that can be repeated
    noise: Literal["os", "seeded"] = "os"
    out: Path | None = None  # folder; default: a new one in runs/
    gan: Annotated[GANSettings, tyro.conf.arg(name="gan")] = field(default_factory=GANSettings)
    moments: Annotated[Moments, tyro.conf.arg(name="moments")] = field(default_factory=Moments)


def synth(args: Sequence[str]) -> None:
    """Make a private synthetic data set."""
    given = parse(SynthFlags, args, prog="tacit synth", about=ABOUT)
    source = _source(given)
    dataset = load_stated(given.data, given.classes)
    folder = given.out or free_folder(Path("runs") / f"synth-{dataset.name}")
    if (folder / "certificate.json").exists():
        raise BadInput(f"out = '{folder}': there is a synthetic set already")
    since = time.perf_counter()
    with watcher("synth") as watch:
        watch.begin("synth", 1)
        made = synthesise(
            dataset,
            source,
            samples=given.samples,
            delta=given.delta,
            seed=given.seed,
            noise=given.noise,
            watch=watch.answered,
        )
    certificate = save(made, dataset, source, folder)
    seconds = time.perf_counter() - since
    print(f"{len(made.examples)} synthetic examples of {dataset.name} in {seconds:.1f} s")
    adding, replacing = (show_epsilon(v) for v in made.epsilons().values())
    cost = f"eps {adding} (zero-out), {replacing} (replace), delta {made.delta:g}"
    print(f"{cost}: {certificate['why']}")
    sheet = draw_sheet(made.examples.x, made.examples.y, dataset.classes, folder / "sheet")
    print(f"files in {folder}: synthetic.npz, certificate.json{', sheet.png' if sheet else ''}")


def _source(given: SynthFlags) -> Source:
    """Return what makes the samples, within the budget of the flags."""
    check.number("epsilon", given.epsilon, above=0)
    if given.generator == "gan":
        check.number("label_epsilon", given.label_epsilon, above=0, below=given.epsilon)
    return Source(
        generator=given.generator,
        pool_epsilon=given.epsilon,
        label_epsilon=given.label_epsilon,
        gan=given.gan,
        moments=given.moments,
    )
