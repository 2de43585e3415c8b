"""The scattering transform of images (Bruna and Mallat 2013): waves of waves, averaged over cells.

An image is filtered by Morlet wavelets of two widths and eight directions, and the size of the
outcome is taken, twice over; means over cells are what is left. It is a small convolutional network
whose weights nobody had to learn, so it says nothing of anybody's data. Colours beyond the first
filtering are left out.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

WIDTHS = 2  # of wavelets; each is twice the one before
DIRECTIONS = 8  # of wavelets, over half a circle
MARGIN = 4  # pixels at each side, so that edges of the image do not meet
SIGMA, XI, SLANT = 0.8, 0.75 * math.pi, 0.5  # of the narrowest: width, frequency, shape


def strengths(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return how strong waves are in images, and waves in the strength of the finest ones.

    Args:
        images: (n, channels, height, width)

    Returns:
        (n, channels, widths, directions, height, width) and, of the images' brightness,
        (n, directions, second directions, height, width).
    """
    height, width = images.shape[-2:]
    padded = F.pad(images, (MARGIN,) * 4, mode="replicate")
    bank = wavelets(*padded.shape[-2:]).to(images)
    first = _strength(padded[:, :, None, None], bank)
    fine = _strength(padded.mean(1)[:, None], bank[0])
    second = _strength(fine[:, :, None], bank[1])
    inside = (..., slice(MARGIN, MARGIN + height), slice(MARGIN, MARGIN + width))
    return first[inside], second[inside]


def _strength(maps: Tensor, bank: Tensor) -> Tensor:
    """Return the absolute value of maps, convolved with filters that are given by frequency."""
    waves: Tensor = torch.fft.ifft2(torch.fft.fft2(maps) * bank)
    return waves.abs()


@lru_cache
def wavelets(height: int, width: int) -> Tensor:
    """Return the filters (widths, directions, height, width), by frequency; all are real.

    A Morlet wavelet is a wave under a bell, less as much of the bell as makes its mean 0.
    """
    directions = [math.pi * i / DIRECTIONS for i in range(DIRECTIONS)]
    return torch.stack(
        [
            torch.stack([_morlet(height, width, 2.0**j, angle) for angle in directions])
            for j in range(WIDTHS)
        ]
    )


def _morlet(height: int, width: int, scale: float, angle: float) -> Tensor:
    frequency = XI / scale
    centre = (frequency * math.sin(angle), frequency * math.cos(angle))
    wave = _bell(height, width, scale, angle, centre)
    bell = _bell(height, width, scale, angle, (0.0, 0.0))
    return wave - wave[0, 0] / bell[0, 0] * bell


def _bell(
    height: int, width: int, scale: float, angle: float, centre: tuple[float, float]
) -> Tensor:
    """Return a slanted bell about a frequency; frequencies go round, as a grid cannot tell them."""
    total = torch.zeros(height, width, dtype=torch.float64)
    for down in (-1, 0, 1):
        for right in (-1, 0, 1):
            y = 2 * math.pi * (torch.fft.fftfreq(height, dtype=torch.float64) + down) - centre[0]
            x = 2 * math.pi * (torch.fft.fftfreq(width, dtype=torch.float64) + right) - centre[1]
            along = math.cos(angle) * x + math.sin(angle) * y[:, None]
            across = math.cos(angle) * y[:, None] - math.sin(angle) * x
            far = along.square() + (across / SLANT).square()
            total += torch.exp(-((SIGMA * scale) ** 2) * far / 2)
    return total
