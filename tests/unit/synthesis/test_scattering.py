"""The scattering transform against sums written out, and against what waves are."""

import math

import pytest
import torch
import torch.nn.functional as F

from tacit.synthesis.features import KEPT, encoder, scattering
from tacit.synthesis.scattering import DIRECTIONS, MARGIN, WIDTHS, XI, strengths, wavelets


def some(n=3, channels=1, size=12):
    return torch.rand(n, channels, size, size, generator=torch.Generator().manual_seed(1))


def grating(angle, frequency, size=28):
    y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    along = math.cos(angle) * x + math.sin(angle) * y
    return (0.5 + 0.5 * torch.cos(frequency * along)).view(1, 1, size, size)


def test_a_wavelet_does_not_see_what_is_constant():
    assert wavelets(20, 16)[..., 0, 0].abs().max() < 1e-12
    first, second = strengths(torch.full((1, 3, 8, 8), 0.7))
    assert first.max() < 1e-6
    assert second.max() < 1e-6


@pytest.mark.parametrize("shape", [(1, 32, 32), (1, 30, 30), (1, 28, 28)])
def test_rounding_is_not_taken_for_waves(shape):
    """What is left of a flat image in single precision must not be scaled up to norm 1."""
    flat = torch.stack([torch.full(shape, level) for level in (0.37, 0.38)])
    assert encoder("scattering", shape)(flat).abs().max() == 0


def test_it_is_the_absolute_value_of_a_convolution():
    """One number of it, summed over the whole padded image by hand."""
    image = some(1)
    padded = F.pad(image, (MARGIN,) * 4, mode="replicate")[0, 0].double()
    size = len(padded)
    kernel = torch.fft.ifft2(wavelets(size, size)[1, 3])
    row, column = MARGIN + 5, MARGIN + 7
    total = sum(
        padded[u, v] * kernel[(row - u) % size, (column - v) % size]
        for u in range(size)
        for v in range(size)
    )
    assert float(strengths(image)[0][0, 0, 1, 3, 5, 7]) == pytest.approx(
        float(abs(total)), rel=1e-4
    )


def test_second_waves_are_those_in_the_brightness_of_the_finest_first_ones():
    """Of the padded image, so inside it they are those of its first waves far from its edges."""
    image = some(1, channels=3, size=40)
    first, _ = strengths(image.mean(1, keepdim=True))
    again, _ = strengths(first[:, 0, 0, 2].unsqueeze(1))
    _, second = strengths(image)
    inner = (slice(16, 24), slice(16, 24))
    assert torch.allclose(second[0, 2, 5][inner], again[0, 0, 1, 5][inner], atol=1e-3)


@pytest.mark.parametrize("direction", [0, 3, 6])
@pytest.mark.parametrize("width", range(WIDTHS))
def test_a_grating_is_strongest_in_its_own_direction_and_width(direction, width):
    image = grating(math.pi * direction / DIRECTIONS, XI / 2**width)
    strength = strengths(image)[0][0, 0, :, :, 8:-8, 8:-8].mean((-2, -1))
    assert divmod(int(strength.argmax()), DIRECTIONS) == (width, direction)


def test_a_small_move_changes_it_less_than_the_image():
    image = some(4, size=28)
    moved = image.roll(1, 3)
    change = (scattering(image) - scattering(moved)).norm() / scattering(image).norm()
    assert change < 0.5 * (image - moved).norm() / image.norm()


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 8, 8), (2, 9, 14)])
def test_features_of_an_image_are_its_own_and_of_norm_1(shape):
    encode = encoder("scattering", shape)
    x = torch.rand(20, *shape, generator=torch.Generator().manual_seed(2))
    found = encode(x)
    assert found.shape[1] == min(KEPT, found.shape[1])
    assert torch.allclose(found.norm(dim=1), torch.ones(20), atol=1e-5)
    assert torch.allclose(found[17:18], encode(x[17:18]), atol=1e-5)
    assert encode(torch.zeros(1, *shape)).isfinite().all()
    assert encode(x[:0]).shape == (0, found.shape[1])
