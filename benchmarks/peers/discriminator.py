"""DA-FL's discriminator, for the DP-SGD benchmark.

A DCGAN's on 1x32x32 images, with the label as a second channel.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.privacy.own_gradients import InstanceNorm2d

SIZE, CLASSES = 32, 10


class Discriminator(nn.Module):
    """Scores how real an image of a given class looks; computes in the given memory layout.

    ``fast``: its instance norms keep that layout, as Tacit's do; Opacus knows torch's alone.
    """

    def __init__(
        self, layout: torch.memory_format = torch.channels_last, *, fast: bool = True
    ) -> None:
        super().__init__()
        self.layout = layout
        self.label = nn.Embedding(CLASSES, SIZE * SIZE)
        self.body = nn.Sequential(
            nn.Conv2d(2, 32, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(32, 64, 4, 2, 1),
            instance_norm(64, fast=fast),
            nn.LeakyReLU(0.2),
            nn.Conv2d(64, 128, 4, 2, 1),
            instance_norm(128, fast=fast),
            nn.LeakyReLU(0.2),
            nn.Conv2d(128, 1, 4),
        )

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return one score per image."""
        label = self.label(y).view(-1, 1, SIZE, SIZE)
        x = torch.cat([x, label], 1).contiguous(memory_format=self.layout)
        score: Tensor = self.body(x).flatten()
        return score


def instance_norm(channels: int, *, fast: bool) -> nn.Module:
    """Return an instance norm, torch's or the one that copies nothing where it is channels-last."""
    return InstanceNorm2d(channels) if fast else nn.InstanceNorm2d(channels, affine=True)


def real_loss(score: Tensor) -> Tensor:
    """Return each real image's loss: the score should be large."""
    return F.softplus(-score)
