"""Train a public encoder on public data, with labels; nothing here is private.

While it trains, each convolution of a network without normalisation of its own is followed by batch
norm, which is folded into its weights at the end: the encoder treats each example by itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from tacit import __version__
from tacit.core import BadInput, Diverged, check, rng_for
from tacit.core.own_code import bare
from tacit.data.examples import Dataset, Examples
from tacit.models import MODELS, build
from tacit.synthesis.encoder_file import Card, fingerprint, head_off

SMOOTHING = 0.1  # of the labels (Szegedy et al. 2016)
WARM = 0.2  # of all steps, until the step size is the largest
SHIFT = 8  # a side of an image over this: as far as it is moved, at most
SMALL = 0.75  # of a side: parts of images that all but the last epochs look at, for speed
FULL = 0.25  # of the epochs, at the end, look at whole images
DECAY = 5e-4  # L2 penalty
CHUNK = 500  # rows at a time that are only looked at
OWN_NORM = (nn.GroupNorm, nn.LayerNorm)


@dataclass(frozen=True)
class Training:
    """How a network is trained."""

    epochs: int = 10  # passes over the public data
    batch: int = 128  # examples in a step
    lr: float = 0.1  # the largest step size; it rises to it and falls to 0
    seed: int = 0  # everything random derives from it

    def __post_init__(self) -> None:
        check.number("epochs", self.epochs, at_least=1, whole=True)
        check.number("batch", self.batch, at_least=2, whole=True)
        check.number("lr", self.lr, above=0)
        check.number("seed", self.seed, at_least=0, at_most=2**63 - 1, whole=True)


class Told(Protocol):
    """Is told after each step how far training has come, and its loss."""

    def __call__(self, done: int, of: int, loss: float) -> object: ...


def network_for(model: str, shape: tuple[int, ...]) -> str:
    """Return the network that a name stands for: six convolutions for images from 16x16 on."""
    if model == "auto":
        return "conv6" if len(shape) == 3 and min(shape[1:]) >= 16 else "mlp"
    if bare(model) not in MODELS:
        if ":" in model:
            raise BadInput(
                f"model = {model!r}: the file cannot hold code; allowed: {', '.join(MODELS)}. "
                "An encoder of your own code is --features module:function"
            )
        check.choice("model", model, ["auto", *MODELS])
    return model


def trained(
    dataset: Dataset, model: str, how: Training, *, command: str, told: Told
) -> tuple[Card, nn.Module]:
    """Train a network; return a card and its layers without the last one.

    Args:
        dataset: public, with classes; its test part is held out
        model: a network of this package
        how: it is trained
        command: for the card
        told: after each step
    """
    if dataset.goal != "classes":
        raise BadInput(f"task = {dataset.goal!r}: an encoder learns from classes")
    word, classes = network_for(model, dataset.shape), len(dataset.classes)
    made = build(word, dataset.shape, classes, how.seed)
    head_off(made)  # refused now, not after an hour
    scaled = Scaled(dataset)
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(how.seed)
        network = _normed(made)
        _fit(network, scaled, how, told)
    network = _folded(network.eval())
    made.load_state_dict(network.state_dict())
    layers = head_off(made.eval())
    with torch.no_grad():
        width = layers(torch.zeros(1, *dataset.shape)).shape[1]
    card = Card(
        network=word,
        shape=dataset.shape,
        classes=classes,
        width=int(width),
        mean=dataset.mean,
        std=dataset.std,
        data=re.sub(r"[^\w-]", "-", dataset.name)[:60],
        rows=len(dataset.train),
        sha256=fingerprint(dataset.train),
        accuracy=accuracy(made, scaled, dataset.test),
        held_out=len(dataset.test),
        command=command,
        tacit=__version__,
    )
    return card, layers


@dataclass(frozen=True)
class Scaled:
    """Inputs of a data set as a network takes them."""

    dataset: Dataset

    def __call__(self, x: Tensor) -> Tensor:
        """Return float inputs, images by the data set's public constants."""
        x = x.float() / 255.0 if x.dtype == torch.uint8 else x
        if x.dim() != 4:
            return x
        mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (self.dataset.mean, self.dataset.std))
        return ((x - mean) / std).contiguous(memory_format=torch.channels_last)


def accuracy(model: nn.Module, scaled: Scaled, rows: Examples) -> float:
    """Return the share of rows that a network is right about."""
    with torch.no_grad():
        right = [
            (model(scaled(rows.x[i : i + CHUNK])).argmax(1) == rows.y[i : i + CHUNK]).sum()
            for i in range(0, len(rows), CHUNK)
        ]
    return float(sum(int(r) for r in right) / max(len(rows), 1))


def _fit(network: nn.Module, scaled: Scaled, how: Training, told: Told) -> None:
    """Minimise the cross-entropy by SGD with momentum; the step size rises and falls in lines."""
    rows, rng = scaled.dataset.train, rng_for(how.seed, "encode")
    each = max(1, len(rows) // how.batch)
    steps = torch.optim.SGD(
        network.parameters(), lr=how.lr, momentum=0.9, nesterov=True, weight_decay=DECAY
    )
    network.train().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    done, of = 0, how.epochs * each
    for epoch in range(how.epochs):
        side = 1.0 if epoch >= (1 - FULL) * how.epochs - 0.5 else smaller(network)
        order = torch.from_numpy(rng.permutation(len(rows)))
        for batch in order[: each * how.batch].chunk(each):
            steps.param_groups[0]["lr"] = how.lr * factor(done, of)
            x = scaled(varied(rows.x[batch], rng, side))
            loss = F.cross_entropy(network(x), rows.y[batch], label_smoothing=SMOOTHING)
            if not loss.isfinite():
                raise Diverged(f"lr = {how.lr:g}: the loss is not finite any more; take a smaller")
            steps.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            steps.step()
            done += 1
            told(done, of, float(loss.detach()))


def factor(done: int, of: int) -> float:
    """Return the step size over the largest one: up to it in a fifth of the steps, down to 0.

    >>> [factor(i, 10) for i in (0, 1, 2, 6, 9)]
    [0.5, 1.0, 1.0, 0.5, 0.125]
    """
    warm = max(1, round(WARM * of))
    return min((done + 1) / warm, (of - done) / max(of - warm, 1))


def smaller(network: nn.Module) -> float:
    """Return the part of a side that a network may learn from, too: all, if sizes are fixed."""
    return SMALL if any(isinstance(m, nn.AdaptiveAvgPool2d) for m in network.modules()) else 1.0


def varied(images: Tensor, rng: np.random.Generator, side: float = 1.0) -> Tensor:
    """Return images moved a little, each by itself; those with colours also mirrored by chance.

    Inputs that are no images stay as they are.

    Args:
        images: (n, channels, height, width)
        rng: for places and mirrors
        side: of each image a part of this share of its sides, from anywhere in it
    """
    if images.dim() != 4:
        return images
    n, channels, height, width = images.shape
    if channels == 3:  # what is mirrored is still the same thing in a photograph, not in writing
        mirrored = torch.from_numpy(rng.random(n) < 0.5).view(-1, 1, 1, 1)
        images = torch.where(mirrored, images.flip(3), images)
    away = min(height, width) // SHIFT if side == 1.0 else 0
    padded = F.pad(images, (away,) * 4)
    free = [2 * away + size - round(side * size) for size in (height, width)]
    down, right = (torch.from_numpy(rng.integers(0, most + 1, n)) for most in free)
    height, width = round(side * height), round(side * width)
    rows = (down[:, None] + torch.arange(height)).view(n, 1, height, 1)
    columns = (right[:, None] + torch.arange(width)).view(n, 1, 1, width)
    every = torch.arange(n).view(n, 1, 1, 1), torch.arange(channels).view(1, channels, 1, 1)
    return padded[(*every, rows, columns)]


def _normed(model: nn.Module) -> nn.Module:
    """Return a network with batch norm behind each convolution, if it has nothing of the kind."""
    if any(isinstance(m, OWN_NORM) for m in model.modules()):
        return model
    layers: list[nn.Module] = []
    for layer in model.children():
        layers.append(layer)
        if isinstance(layer, nn.Conv2d):
            layers.append(nn.BatchNorm2d(layer.out_channels))
    return nn.Sequential(*layers)


def _folded(network: nn.Module) -> nn.Module:
    """Return the same function, in eval mode, with batch norm inside the convolutions."""
    layers: list[nn.Module] = []
    for layer in network.children():
        if isinstance(layer, nn.BatchNorm2d):
            conv = layers.pop()
            assert isinstance(conv, nn.Conv2d)
            layers.append(fuse_conv_bn_eval(conv, layer))
        else:
            layers.append(layer)
    return nn.Sequential(*layers)
