"""VGG-16 (Simonyan and Zisserman 2015, configuration D) for 32x32 images.

13 convolutions and a small head.
"""

from __future__ import annotations

from torch import nn

from tacit.models.architecture import network

# width and number of convolutions, each stage halved
STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))


@network("vgg16", "VGG-16 for images of 32x32, without batch norm", least=32)
def vgg16(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return the CIFAR form with 512 units in the head: about 15 million numbers."""
    layers: list[nn.Module] = []
    inside = shape[0]
    for width, convolutions in STAGES:
        for _ in range(convolutions):
            layers += [nn.Conv2d(inside, width, 3, padding=1), nn.ReLU()]
            inside = width
        layers.append(nn.MaxPool2d(2))
    head = [nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, classes)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), *head)
