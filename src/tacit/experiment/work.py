"""How long an experiment takes on this machine: its work, counted, over a speed that is tried out.

An estimate for one processor that has nothing else to do; accountants and files are not in it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from tacit.core import Json
from tacit.experiment.config import Experiment
from tacit.methods.spec import raw_method
from tacit.models import build, choose

# training and test examples, shape and classes of the data sets that the papers use
SHAPES: dict[str, tuple[int, int, tuple[int, ...], int]] = {
    "digits": (1438, 359, (1, 8, 8), 10),
    "mnist": (60_000, 10_000, (1, 28, 28), 10),
    "fashion-mnist": (60_000, 10_000, (1, 28, 28), 10),
    "emnist-digits": (240_000, 40_000, (1, 28, 28), 10),
    "cifar10": (50_000, 10_000, (3, 32, 32), 10),
    "cifar100": (50_000, 10_000, (3, 32, 32), 100),
    "svhn": (73_257, 26_032, (3, 32, 32), 10),
}
CLIPPED = 1.4  # time of a step with every example's gradient clipped, over a plain one
FORWARD = 1 / 3  # the same of an answer without training
GAN = 4.0  # of an image through both networks of the GAN, over one through the classifier


@dataclass(frozen=True)
class Work:
    """Images that a run trains on, as if all were plain steps of its network."""

    images: float
    model: str
    shape: tuple[int, ...]
    classes: int


def work_of(experiment: Experiment) -> Work | None:
    """Count a run's work; None: nobody knows this data set's size beforehand."""
    method, s = experiment.method, experiment.setting
    if s.data not in SHAPES:
        return None
    train, test, shape, classes = SHAPES[s.data]
    raw = raw_method(method)
    asked = 1.0 if method.pooled else (method.per_round or s.clients) / s.clients
    each = _of_round(raw, train, asked, s.clients) * (CLIPPED if method.per_example else 1.0)
    evaluated = -(-method.rounds // s.eval_every)
    images = method.rounds * each + _before(raw, train) + evaluated * test * FORWARD
    return Work(images, choose(s.model, shape), shape, classes)


def _of_round(raw: Json, train: int, asked: float, clients: int) -> float:
    """Count the images of one round."""
    sgd = raw.get("sgd") or {}
    if "local" in raw:  # two batches for each step: prototypes, and those that are compared
        return float(2 * raw["local"]["steps"] * raw["local"]["batch"] * asked * clients)
    if sgd.get("steps"):
        return float(sgd["steps"] * sgd["batch"] * asked * clients)
    return float(sgd.get("epochs", 1) * train * asked)


def _before(raw: Json, train: int) -> float:
    """Count the images of what comes before the first round: a GAN, or teachers."""
    paper = raw.get("mode") == "paper"
    gan = raw["gan"]["epochs"] * train * GAN if "gan" in raw and paper else 0.0
    teachers = raw["teacher"]["epochs"] * train / 6 if "teacher" in raw else 0.0
    return float(gan + teachers)


def seconds_of(work: Work) -> float:
    """Return how long it takes one processor of this machine."""
    return work.images / _speed(work.model, work.shape, work.classes)


@cache
def _speed(model: str, shape: tuple[int, ...], classes: int) -> float:
    """Try out how many images a second a network trains on, with one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _tried(model, shape, classes)
    finally:
        torch.set_num_threads(threads)


def _tried(model: str, shape: tuple[int, ...], classes: int, batch: int = 32) -> float:
    network = build(model, shape, classes, 0)
    x, y = torch.zeros(batch, *shape), torch.zeros(batch, dtype=torch.long)
    steps, took = 0, 0.0
    _step(network, x, y)  # the first one makes ready
    since = time.process_time()  # of this process: what others do meanwhile does not count
    while took < 0.2:
        _step(network, x, y)
        steps, took = steps + 1, time.process_time() - since
    return steps * batch / took


def _step(network: torch.nn.Module, x: Tensor, y: Tensor) -> None:
    loss = torch.nn.functional.cross_entropy(network(x), y)
    torch.autograd.backward(loss)
