"""How long an experiment takes on this machine: its work, counted, over a speed that is tried out.

An estimate for one processor that has nothing else to do; accountants and files are not in it, nor
are public features, which are computed once and kept, and the fit of moments, which takes seconds.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from tacit.core import Json, Known, Method
from tacit.experiment.config import Experiment, Setting
from tacit.experiment.encoding import NONE, chosen_features, is_linear, network_for, shape_of
from tacit.methods.gfl_settings import Settings as GFL
from tacit.methods.spec import raw_method
from tacit.models import build
from tacit.synthesis.augment import Augment

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
CLIPPED_LINEAR = 5.5  # the same of a linear model, whose plain step is next to nothing
FORWARD = 1 / 3  # the same of an answer without training
GAN = 4.0  # of an image through both networks of the GAN, over one through the classifier
STEP, WHOLE = 32, 1024  # examples at a time: in a step, and where one gradient is of all of them


@dataclass(frozen=True)
class Work:
    """Inputs that a run trains on, as if all were plain steps of its network."""

    images: float
    model: str
    shape: tuple[int, ...]  # of one input: an image, or its public features
    classes: int
    batch: int = STEP  # how many of them the network sees at a time


def work_of(experiment: Experiment) -> Work | None:
    """Count a run's work; None: nobody knows this data set's size beforehand."""
    s = experiment.setting
    if s.data not in SHAPES:
        return None
    train, test, image, classes = SHAPES[s.data]
    features = chosen_features(s.features, experiment.method, image, s.model)
    shape = _seen(features, image)
    model = network_for(s.model, features, shape, experiment.method)
    linear = (math.prod(shape) + 1) * classes if is_linear(model, features) else 0
    sizes = {str(i): max(1, train // s.clients) for i in range(s.clients)}
    method = experiment.method.tuned(Known(sizes, s.delta, linear, features != NONE))
    clipped = CLIPPED_LINEAR if linear else CLIPPED
    images = _trained_on(method, train, s.clients, clipped if method.per_example else 1.0)
    images += _evaluations(method, s) * test * FORWARD
    whole = linear and _one_gradient(raw_method(method))
    return Work(images, model, shape, classes, WHOLE if whole else STEP)


@cache
def _seen(features: str, image: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of what a network sees of an image."""
    return shape_of(features, image)


def _evaluations(method: Method, s: Setting) -> int:
    return -(-method.rounds // s.eval_every)


def _trained_on(method: Method, train: int, clients: int, clipped: float) -> float:
    """Count the images of all rounds, and of what is before them; ``clipped``: for each of them."""
    raw = raw_method(method)
    asked = 1.0 if method.pooled else (method.per_round or clients) / clients
    held = _held(method, train, clients)
    each = _of_round(raw, held, asked, clients) * clipped
    return method.rounds * each + _before(raw, train) + _at_server(method, clients)


def _held(method: Method, train: int, clients: int) -> float:
    """Count the examples that all clients train on in one epoch, synthetic ones included."""
    if isinstance(method, GFL) and method.work == "none":
        return 0.0
    if not isinstance(method, Augment):
        return train
    pool = method.ratio * train  # in place of their own each has a part of it, else the others'
    return pool if method.phase == "synthetic" else train + (clients - 1) * pool


def _at_server(method: Method, clients: int) -> float:
    """Count the synthetic images that GFL's server trains on."""
    if not isinstance(method, GFL):
        return 0.0
    epochs = sum(method.epochs_in(t) for t in range(method.rounds))
    return epochs * method.n_k * clients


def _one_gradient(raw: Json) -> bool:
    """Tell whether a client's work in a round is one gradient of all its examples."""
    return "gradient" in (raw.get("mode"), raw.get("send"))


def _of_round(raw: Json, train: float, asked: float, clients: int) -> float:
    """Count the images of one round."""
    sgd = raw.get("sgd") or {}
    if raw.get("head") == "gaussian":  # fitted in closed form, by everybody
        return float(train)
    if _one_gradient(raw):
        return float(train * asked)
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
    return work.images / _speed(work.model, work.shape, work.classes, work.batch)


@cache
def _speed(model: str, shape: tuple[int, ...], classes: int, batch: int) -> float:
    """Try out how many images a second a network trains on, with one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _tried(model, shape, classes, batch)
    finally:
        torch.set_num_threads(threads)


def _tried(model: str, shape: tuple[int, ...], classes: int, batch: int) -> float:
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
