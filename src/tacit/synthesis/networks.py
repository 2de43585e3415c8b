"""DA-FL's two networks.

A DCGAN's on images of 32x32, with instance norm, which keeps examples apart.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.privacy.own_gradients import InstanceNorm2d

SIZE = 32  # of the images that both networks know


class Discriminator(nn.Module):
    """Four convolutions that score how real an image of a given class looks.

    A class is one channel more.
    """

    def __init__(self, channels: int, classes: int, width: int) -> None:
        super().__init__()
        self.label = nn.Embedding(classes, SIZE * SIZE) if classes else None
        self.body = nn.Sequential(
            nn.Conv2d(channels + (1 if classes else 0), width, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, 2 * width, 4, 2, 1),
            InstanceNorm2d(2 * width),
            nn.LeakyReLU(0.2),
            nn.Conv2d(2 * width, 4 * width, 4, 2, 1),
            InstanceNorm2d(4 * width),
            nn.LeakyReLU(0.2),
            nn.Conv2d(4 * width, 1, 4),
        )

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return one score per image; without classes the labels are not looked at."""
        if self.label is not None:
            x = torch.cat([x, self.label(y).view(-1, 1, SIZE, SIZE)], 1)
        score: Tensor = self.body(x.contiguous(memory_format=torch.channels_last)).flatten()
        return score


class Generator(nn.Module):
    """From a latent vector and a class to pixels in -1..1, by four transposed convolutions."""

    def __init__(self, channels: int, classes: int, width: int, latent: int) -> None:
        super().__init__()
        self.latent = latent
        self.label = nn.Embedding(classes, latent) if classes else None
        self.body = nn.Sequential(
            nn.ConvTranspose2d(2 * latent if classes else latent, 4 * width, 4),
            InstanceNorm2d(4 * width),
            nn.ReLU(),
            nn.ConvTranspose2d(4 * width, 2 * width, 4, 2, 1),
            InstanceNorm2d(2 * width),
            nn.ReLU(),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1),
            InstanceNorm2d(width),
            nn.ReLU(),
            nn.ConvTranspose2d(width, channels, 4, 2, 1),
            nn.Tanh(),
        )

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        """Return one image for each latent vector; without classes the labels are not looked at."""
        if self.label is not None:
            z = torch.cat([z, self.label(y)], 1)
        image: Tensor = self.body(z[:, :, None, None].contiguous(memory_format=torch.channels_last))
        return image


def networks(
    channels: int, classes: int, width: int, latent: int, seed: int, device: str = "cpu"
) -> tuple[Discriminator, Generator]:
    """Return both networks, the same for the same seed; ``classes`` = 0: they see no labels."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        D = Discriminator(channels, classes, width)
        G = Generator(channels, classes, width, latent)
    for net in (D, G):
        net.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return D, G


def enlarged(pixels: Tensor) -> Tensor:
    """Return images with pixels in 0..1 as the networks know them: 32x32, in -1..1."""
    return _resized(pixels, (SIZE, SIZE)).mul(2).sub(1)


def as_drawn(images: Tensor, height: int, width: int) -> Tensor:
    """Return a generator's images as bytes, in the size of the data."""
    return (
        _resized(images, (height, width))
        .add(1)
        .mul(127.5)
        .round()
        .clamp(0, 255)
        .to(torch.uint8)
        .contiguous()
    )


def _resized(x: Tensor, size: tuple[int, int]) -> Tensor:
    same = tuple(x.shape[2:]) == size
    return (
        x if same else F.interpolate(x, size, mode="bilinear", align_corners=False, antialias=True)
    )
