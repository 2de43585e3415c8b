"""ResNet-18 (He et al. 2016) for small images, with group norm.

Batch norm mixes examples and clients.
"""

from __future__ import annotations

from torch import Tensor, nn

from tacit.models.architecture import network


def _conv(inside: int, outside: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inside, outside, 3, stride=stride, padding=1, bias=False)


class Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            _conv(inside, outside, stride),
            nn.GroupNorm(32, outside),
            nn.ReLU(),
            _conv(outside, outside),
            nn.GroupNorm(32, outside),
        )
        self.around = (
            nn.Identity()
            if stride == 1 and inside == outside
            else nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride=stride, bias=False), nn.GroupNorm(32, outside)
            )
        )
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        out: Tensor = self.act(self.main(x) + self.around(x))
        return out


@network("resnet18", "ResNet-18 for small images, with group norm", least=8)
def resnet18(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return the CIFAR form.

    A 3x3 stem without pooling, four stages of two blocks, average pooling.
    """
    widths = [64, 64, 128, 128, 256, 256, 512, 512]
    blocks = [
        Block(i, o, stride=2 if o != i else 1)
        for i, o in zip([64, *widths[:-1]], widths, strict=True)
    ]
    return nn.Sequential(
        _conv(shape[0], 64),
        nn.GroupNorm(32, 64),
        nn.ReLU(),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, classes),
    )
