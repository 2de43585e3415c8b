"""VGG-16 (Simonyan and Zisserman 2015, configuration D) for 32x32 images.

13 convolutions and a small head, or the head that it has for large images.
"""

from __future__ import annotations

from torch import nn

from tacit.models.architecture import network

# width and number of convolutions, each stage halved
STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))


@network("vgg16", "VGG-16 for images of 32x32, without batch norm", least=32)
def vgg16(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return the CIFAR form with 512 units in the head: about 15 million numbers."""
    head = [nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, classes)]
    return nn.Sequential(*_convolutions(shape), nn.AdaptiveAvgPool2d(1), nn.Flatten(), *head)


@network("vgg16-large", "VGG-16 with torchvision's head: 134 million numbers", least=32)
def vgg16_large(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return torchvision's form, without dropout: 134,301,514 numbers for ten classes.

    That count gives CUAG-PFL's table 6 to the digit: at rate 0.5, 300 rounds are 75.0468 GiB.
    """
    head = [
        nn.Linear(512 * 7 * 7, 4096),
        nn.ReLU(),
        nn.Linear(4096, 4096),
        nn.ReLU(),
        nn.Linear(4096, classes),
    ]
    return nn.Sequential(*_convolutions(shape), nn.AdaptiveAvgPool2d(7), nn.Flatten(), *head)


def _convolutions(shape: tuple[int, ...]) -> list[nn.Module]:
    layers: list[nn.Module] = []
    inside = shape[0]
    for width, convolutions in STAGES:
        for _ in range(convolutions):
            layers += [nn.Conv2d(inside, width, 3, padding=1), nn.ReLU()]
            inside = width
        layers.append(nn.MaxPool2d(2))
    return layers
