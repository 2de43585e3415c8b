"""DA-FL's discriminator, for the DP-SGD benchmark.

A DCGAN's on 1x32x32 images, with the label as a second channel.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SIZE, CLASSES = 32, 10


class Discriminator(nn.Module):
    """Scores how real an image of a given class looks; computes in the given memory layout."""

    def __init__(self, layout: torch.memory_format = torch.channels_last) -> None:
        super().__init__()
        self.layout = layout
        self.label = nn.Embedding(CLASSES, SIZE * SIZE)
        self.body = nn.Sequential(
            nn.Conv2d(2, 32, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(32, 64, 4, 2, 1),
            nn.InstanceNorm2d(64, affine=True),
            nn.LeakyReLU(0.2),
            nn.Conv2d(64, 128, 4, 2, 1),
            nn.InstanceNorm2d(128, affine=True),
            nn.LeakyReLU(0.2),
            nn.Conv2d(128, 1, 4),
        )

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return one score per image."""
        label = self.label(y).view(-1, 1, SIZE, SIZE)
        x = torch.cat([x, label], 1).contiguous(memory_format=self.layout)
        score: Tensor = self.body(x).flatten()
        return score


def real_loss(score: Tensor) -> Tensor:
    """Return each real image's loss: the score should be large."""
    return F.softplus(-score)
