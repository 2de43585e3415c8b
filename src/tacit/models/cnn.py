"""The convolutional networks of the papers.

Pooling comes before ReLU, whatever a paper's order: the largest of some numbers, if it is positive,
is the largest of the positive ones, so outputs and gradients are the same, with a quarter of the
work for ReLU.
"""

from __future__ import annotations

import torch
from torch import nn

from tacit.models.architecture import network


def _flat(features: nn.Module, shape: tuple[int, ...]) -> int:
    with torch.no_grad():
        return int(features(torch.zeros(1, *shape)).numel())


@network("dafl-cnn", "DA-FL: 2 convolutions, 2 fully connected layers", least=16)
def dafl_cnn(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return DA-FL's classifier.

    2 convolutions, each with max-pooling and ReLU, and 2 fully connected layers.

    The paper's figure 3 with the widths is not reproduced in its text; 16 and 32 channels and 128
    units reach its centralised accuracy on MNIST.
    """
    features = nn.Sequential(
        nn.Conv2d(shape[0], 16, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
    )
    return nn.Sequential(
        *features, nn.Linear(_flat(features, shape), 128), nn.ReLU(), nn.Linear(128, classes)
    )


@network("ldp-cnn", "LDP-FL: 2 convolutions of stride 2, 1 fully connected layer", least=4)
def ldp_cnn(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return LDP-FL's network: convolutions of 16 and 32 features, 5x5 of stride 2, a linear layer.

    28x28 becomes 14x14 and 7x7, so that the linear layer has the paper's 7x7x32 inputs.
    """
    features = nn.Sequential(
        nn.Conv2d(shape[0], 16, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Flatten(),
    )
    return nn.Sequential(*features, nn.Linear(_flat(features, shape), classes))


@network("ldp-cnn-pool", "like ldp-cnn, with max-pooling in place of the stride", least=4)
def ldp_cnn_pool(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return the same network, but halved by pooling: about four times the work."""
    features = nn.Sequential(
        nn.Conv2d(shape[0], 16, 5, padding=2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 5, padding=2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
    )
    return nn.Sequential(*features, nn.Linear(_flat(features, shape), classes))


@network("cuag-cnn", "CUAG-PFL (FedDyn's): 2 convolutions of 64, 384 and 192 units", least=16)
def cuag_cnn(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return CUAG-PFL's network, which is FedDyn's: 797,962 numbers on CIFAR-10.

    That count gives the paper's uplink to the digit: 4 bytes each, 300 rounds, 0.8918 GiB.
    """
    features = nn.Sequential(
        nn.Conv2d(shape[0], 64, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
    )
    head = [
        nn.Linear(_flat(features, shape), 384),
        nn.ReLU(),
        nn.Linear(384, 192),
        nn.ReLU(),
        nn.Linear(192, classes),
    ]
    return nn.Sequential(*features, *head)


@network("conv6", "6 convolutions of up to 256 features and their means, for encoders", least=8)
def conv6(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return the network of `tacit encode`: 1.2 million numbers for RGB, 256 features of an image.

    It begins with weights that keep the size of what passes (He et al. 2015): without a
    normalisation, six layers of the usual ones would make it vanish.
    """
    widths = (32, 64, 128, 128, 256, 256)
    layers: list[nn.Module] = []
    for i, (inside, width) in enumerate(zip((shape[0], *widths), widths, strict=False)):
        layers += _layer(inside, width, halved=i % 2 == 0)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, classes))


def _layer(inside: int, width: int, *, halved: bool) -> list[nn.Module]:
    conv = nn.Conv2d(inside, width, 3, padding=1)
    nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
    nn.init.zeros_(conv.bias)  # type: ignore[arg-type]
    return [conv, *([nn.MaxPool2d(2)] if halved else []), nn.ReLU()]
