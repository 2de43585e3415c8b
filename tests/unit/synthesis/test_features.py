"""Public features.

Gradients worked by hand, norms and orders, cosine transforms, and which names are taken.
"""

import math
import random
import sys
import types
from threading import Thread

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from often import often
from scipy.fft import dctn

import tacit
from tacit.core import BadInput
from tacit.data.examples import Examples
from tacit.data.federated import LocalData
from tacit.synthesis import features as room
from tacit.synthesis.features import (
    Dct,
    choose,
    colour_hog,
    encoder,
    histograms,
    hog,
    odd_colour_hog,
    odd_in_mirror,
    raw,
    unit_rows,
)

GREY, DIGITS, COLOUR = (1, 28, 28), (1, 8, 8), (3, 32, 32)


def ramp(size=4, across=True, slope=0.1):
    line = slope * torch.arange(float(size))
    return (line if across else line[:, None]).expand(1, 1, size, size)


def some(n=4, shape=GREY, seed=0):
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("image", "direction"),
    [(ramp(), 0), (ramp(across=False), 2), (-ramp(), 4), (-ramp(across=False), 6)],
    ids=["right", "down", "left", "up"],
)
def test_a_ramp_has_one_direction(image, direction):
    found = histograms(image)[0]
    assert found[direction].min() > 0
    others = [b for b in range(8) if b != direction]
    assert float(found[others].abs().max()) < 1e-6


def test_a_ramp_of_four_pixels_by_hand():
    """Gradients along a row are 0.1, 0.2, 0.2, 0.1, as edges are repeated.

    Two cells a side have their centres at 0.5
    and 2.5, so pixels belong to the first by 0.75, 0.75, 0.25, 0 (the outermost is half outside of
    the grid)."""
    belong = torch.tensor([0.75, 0.75, 0.25, 0.0])
    first = float(belong @ torch.tensor([0.1, 0.2, 0.2, 0.1]))
    want = torch.full((2, 2), float(belong.sum()) * first)
    torch.testing.assert_close(histograms(ramp())[0, 0], want)


def test_a_slanted_gradient_is_shared_by_the_two_nearest_directions():
    """22.5 degrees are halfway between bins 0 and 1."""
    x, y = torch.arange(8.0), torch.arange(8.0)[:, None]
    angle = np.pi / 8
    image = (np.cos(angle) * x + np.sin(angle) * y)[None, None] / 16
    # away from the edges, where one part is halved
    inside = histograms(image)[0, :, 1:3, 1:3].sum((1, 2))
    assert float(inside[2:].abs().max()) < 1e-5
    torch.testing.assert_close(inside[0], inside[1])


def test_of_three_colours_the_strongest_gradient_counts():
    image = torch.cat([0.1 * ramp(8), ramp(8, across=False), torch.zeros(1, 1, 8, 8)], 1)
    torch.testing.assert_close(histograms(image), histograms(ramp(8, across=False)))


@pytest.mark.parametrize(
    ("features", "shape", "k"),
    [
        (hog, GREY, 288),
        (hog, DIGITS, 128),
        (hog, (1, 4, 4), 32),
        (colour_hog, COLOUR, 315),
        (colour_hog, (3, 4, 4), 44),
    ],
)
def test_shapes_and_unit_norm(features, shape, k):
    found = features(some(shape=shape))
    assert found.shape == (4, k)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(4))
    assert torch.equal(found, features(some(shape=shape)))  # nothing is drawn
    # a function of one example alone
    torch.testing.assert_close(found[1:2], features(some(shape=shape)[1:2]))
    assert features(some(shape=shape)[:0]).shape == (0, k)


def test_an_image_without_gradients_is_zero_and_not_nan():
    for grey in (0.0, 0.3, 1.0):
        assert torch.equal(hog(torch.full((1, *GREY), grey)), torch.zeros(1, 288))
    assert torch.equal(colour_hog(torch.full((1, *COLOUR), 0.5)), torch.zeros(1, 315))
    assert torch.isfinite(colour_hog(torch.zeros(1, *COLOUR))).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("features", [hog, colour_hog])
def test_a_pixel_that_is_no_number_makes_features_that_are_none(features, bad):
    """So that whoever sums them can leave such a record out."""
    images = some(2, COLOUR)
    images[0, 1, 5, 5] = bad
    found = features(images)
    assert not torch.isfinite(found[0]).all()
    torch.testing.assert_close(found[1:], features(images[1:]))


def test_brightness_does_not_count_and_contrast_counts_little():
    x = some()
    torch.testing.assert_close(hog(0.5 * x + 0.25), hog(0.5 * x), atol=1e-5, rtol=0)
    assert float((hog(0.5 * x) * hog(x)).sum(1).min()) > 0.999  # cosines


def test_low_frequencies_come_first():
    """Of maps of 2 directions and 2x2 cells.

    The constant is first, a chequerboard of alternating signs is last.
    """
    sign = torch.tensor([1.0, -1.0])
    constant, chequered = torch.ones(2, 2, 2), torch.einsum("a,u,v->auv", sign, sign, sign)
    found = room._low_first(
        [(torch.stack([constant, chequered]), room._waves(2), room._angular(2))]
    )
    torch.testing.assert_close(found, torch.eye(8)[[0, 7]])
    mean = hog(some(8)).square().mean(0)
    assert int(mean.argmax()) == 0  # histograms are not negative
    assert float(mean[:32].sum()) > 4 * float(mean[32:].sum())


def test_the_order_keeps_distances():
    """Frequencies are a rotation of the normalised histograms.

    Inner products are those of the cells.
    """
    x = some()
    cells = histograms(x)
    around = torch.nn.functional.pad(
        cells.square().sum(1, keepdim=True), (1, 1, 1, 1), mode="replicate"
    )
    plain = unit_rows(
        (cells / (torch.nn.functional.avg_pool2d(around, 3, 1) + 0.1).sqrt()).sqrt().flatten(1)
    )
    torch.testing.assert_close(hog(x) @ hog(x).T, plain @ plain.T, atol=1e-5, rtol=0)


@given(st.integers(2, 9), st.integers(2, 9), st.integers(1, 3))
@often(20)
def test_a_whole_cosine_transform_is_a_rotation_and_the_one_of_scipy(height, width, channels):
    images = some(2, (channels, height, width)).double()
    dct = Dct((channels, height, width), frequencies=2 * (height + width))
    found = dct(images)
    assert found.shape == (2, channels * height * width)
    torch.testing.assert_close(dct.inverse(found), images)
    torch.testing.assert_close(found.norm(dim=1), images.flatten(1).norm(dim=1))
    want = dctn(images.numpy(), axes=(1, 2, 3), norm="ortho").reshape(2, -1)
    np.testing.assert_allclose(found.numpy(), want[:, dct.kept], atol=1e-9)
    diagonal = torch.arange(height)[:, None] + torch.arange(width)
    found_at = diagonal.expand(channels, height, width).flatten()[dct.kept]
    assert (found_at.diff() >= 0).all()  # low frequencies first


def test_a_cut_cosine_transform_keeps_low_frequencies_and_projects():
    dct, images = Dct(GREY, frequencies=4), some().double()
    found = dct(images)
    assert found.shape == (4, 1 + 2 + 3 + 4)
    torch.testing.assert_close(found[:, 0], images.sum((1, 2, 3)) / 28)
    back = dct.inverse(found)
    torch.testing.assert_close(dct(back), found)  # what is left is not changed again
    torch.testing.assert_close(
        (images - back).flatten(1).norm(dim=1) ** 2 + found.norm(dim=1) ** 2,
        images.flatten(1).norm(dim=1) ** 2,
    )
    # colours have half of the frequencies
    assert Dct(COLOUR, frequencies=4)(some(1, COLOUR)).shape == (1, 10 + 2 * 3)


def test_which_features_are_chosen():
    assert [choose("auto", s) for s in (GREY, COLOUR, (4,), (1, 3, 3))] == [
        "hog",
        "colour-hog",
        "raw",
        "raw",
    ]
    assert choose("dct", GREY) == "dct"
    assert encoder("auto", GREY) is hog
    assert encoder("colour-hog", COLOUR) is colour_hog
    assert encoder("auto", (4,)) is raw
    assert torch.equal(
        encoder("raw", COLOUR)(some(2, COLOUR)), some(2, COLOUR).flatten(1) / math.sqrt(3072)
    )
    assert encoder("dct", GREY)(some(2)).shape == (2, 136)


def test_inputs_and_names_that_are_refused():
    with pytest.raises(
        BadInput, match=r"features = 'hog': needs images of at least 4x4; these inputs are 1x3x28"
    ):
        encoder("hog", (1, 3, 28))
    with pytest.raises(
        BadInput, match=r"features = 'dct': needs images of at least 4x4; these inputs are 4"
    ):
        encoder("dct", (4,))
    with pytest.raises(
        BadInput, match=r"features = 'hogg': did you mean 'hog'\? Allowed: auto, hog, colour-hog"
    ):
        encoder("hogg", GREY)


def test_an_encoder_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "my_public_encoder.py").write_text(
        "size = 3\ndef mine(x):\n    return x.flatten(1)[:, :size]\n"
        "def flat(x):\n    return mine(x).flatten()\n"
    )
    (tmp_path / "my_broken_encoder.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    found = encoder("my_public_encoder:mine", GREY)(some())
    torch.testing.assert_close(found, unit_rows(some().flatten(1)[:, :3]))
    with pytest.raises(
        BadInput,
        match=r"features = 'my_public_encoder:flat': gives \(12,\) for 4 inputs; must be \(4, k\)",
    ):
        encoder("my_public_encoder:flat", GREY)(some())
    for name, why in [
        ("no_such_module:mine", "cannot be loaded .ModuleNotFoundError"),
        ("my_public_encoder:other", "cannot be loaded .AttributeError"),
        ("my_broken_encoder:mine", "cannot be loaded .ZeroDivisionError"),
        ("my_public_encoder:size", "must be a function"),
        ("my_public_encoder:", "allowed: auto, .*file.py:Name"),
        (":mine", "allowed: auto, .*file.py:Name"),
    ]:
        with pytest.raises(BadInput, match=f"features = '{name}': {why}"):
            encoder(name, GREY)
    monkeypatch.delitem(sys.modules, "my_public_encoder")


MIXING = """
import numpy
import torch
calls = []
def centred(x):
    return x.flatten(1) - x.flatten(1).mean(0)
def ranked(x):
    return x.flatten(1).argsort(0).float()
def placed(x):
    return x.flatten(1) + torch.arange(float(len(x)))[:, None]
def noisy(x):
    return x.flatten(1) + 0.1 * torch.randn(x.flatten(1).shape)
def remembering(x):
    calls.append(x.mean())
    return x.flatten(1) + sum(calls)
def wider(x):
    return x.flatten(1)[:, : 2 * len(x)]
def infinite(x):
    return 1 / (x.flatten(1) * 0)
def failing(x):
    assert len(x) > 1, "several"
    return x.flatten(1)
def by_the_largest(x):
    return x.flatten(1) / x.max().clamp(min=1)
def without_outliers(x):
    return x.flatten(1).clamp(max=float(x.mean() + 3 * x.std()))
def of_many(x):
    return x.flatten(1) - (x.flatten(1).mean(0) if len(x) > 30 else 0)
def by_how_often(x):
    y = x.flatten(1)
    return y * (y[:, None] == y).all(2).sum(1, keepdim=True)
def by_what_is_never_empty(x):  # random numbers never are, pixels are
    y = x.flatten(1)
    return y - y.sum(1, keepdim=True) / (y > 0).any(0).sum().clamp(min=1)
def centred_in_the_dark(x):
    return x.flatten(1) - (x.flatten(1).mean(0) if x.mean() < 0.2 else 0)
def nothing(x):
    return x.new_zeros(len(x), 0)
def of_very_many(x):
    return x.flatten(1) - (x.flatten(1).mean(0) if len(x) > 64 else 0)
def seldom(x):
    return x.flatten(1) * torch.from_numpy(numpy.random.rand(len(x), 1) > 1e-9)
class Slow:
    def __init__(self):
        self.past = [torch.zeros(2000)]
    def __call__(self, x):
        self.past[0] = self.past[0] + 1e-9 * x.mean()
        return x.flatten(1) + self.past[0][:64]
slow = Slow()
def of_pixels(x):
    assert 0 <= x.min() and x.max() <= 1
    return x.flatten(1)
def fine(x):
    return x.flatten(1) @ torch.ones(64, 7).cumsum(0)
"""


def test_another_thread_that_draws_is_not_taken_for_the_encoder():
    calls = iter(range(1))

    def found(x):
        if next(calls, None) is not None:
            thread = Thread(target=random.random)
            thread.start()
            thread.join()
        return x.flatten(1)

    room.check_encoder("mine", found, (1, 8, 8))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        *((name, "depends on the others") for name in ("centred", "ranked", "placed")),
        *((name, "depends on the others") for name in ("noisy", "remembering", "wider")),
        *((name, "depends on the others") for name in ("by_the_largest", "without_outliers")),
        *((name, "depends on the others") for name in ("of_many", "seldom", "slow")),
        ("by_how_often", "depends on the others"),
        ("by_what_is_never_empty", "depends on the others"),
        ("centred_in_the_dark", "depends on the others"),
        ("nothing", "gives (4, 0) for 4 inputs; must be (4, k), k from 1"),
        ("infinite", "not finite"),
        ("failing", "AssertionError: several"),
    ],
)
def test_an_encoder_that_is_no_function_of_one_example_is_refused_by_name(
    name, why, tmp_path, monkeypatch
):
    (tmp_path / "mixing_encoders.py").write_text(MIXING)
    monkeypatch.syspath_prepend(tmp_path)
    state = torch.get_rng_state()
    with pytest.raises(BadInput) as e:
        encoder(f"mixing_encoders:{name}", (1, 8, 8))
    line = str(e.value)
    assert line.startswith(f"features = 'mixing_encoders:{name}': ")
    assert why in line
    assert "\n" not in line
    assert torch.equal(torch.get_rng_state(), state)
    assert encoder("mixing_encoders:of_pixels", (1, 8, 8))(torch.rand(5, 1, 8, 8)).shape == (5, 64)
    assert encoder("mixing_encoders:fine", (1, 8, 8))(torch.rand(5, 1, 8, 8)).shape == (5, 7)
    monkeypatch.delitem(sys.modules, "mixing_encoders")


def test_an_encoder_never_sees_more_examples_than_it_was_tried_on(tmp_path, monkeypatch):
    """Else one that mixes many would pass for one that mixes none."""
    (tmp_path / "mixing_encoders.py").write_text(MIXING)
    monkeypatch.syspath_prepend(tmp_path)
    encode = encoder("mixing_encoders:of_very_many", (1, 8, 8))
    x = torch.rand(150, 1, 8, 8)
    together = encode(x)
    assert together.shape == (150, 64)
    torch.testing.assert_close(together, torch.cat([encode(row) for row in x.split(1)]))
    monkeypatch.delitem(sys.modules, "mixing_encoders")


@pytest.mark.parametrize("word", ["moments", "kd_dpfl:per_round=3", "fedavg"])
def test_a_run_with_such_an_encoder_is_refused_before_it_starts(word, tmp_path, monkeypatch):
    (tmp_path / "mixing_parts.py").write_text(MIXING)
    monkeypatch.syspath_prepend(tmp_path)
    split = "sizes:2x300,3x100,public=100" if word.startswith("kd_dpfl") else "iid"
    features = "mixing_parts:centred"
    with pytest.raises(BadInput, match=f"features = '{features}': what it says of one"):
        tacit.run(word, features=features, split=split, out=tmp_path / "run", workers=0)
    assert not (tmp_path / "run").exists()
    monkeypatch.delitem(sys.modules, "mixing_parts")


# -------------------------------------------------------------------------------------------------
# mirrors


@pytest.mark.parametrize("shape", [(3, 32, 32), (3, 12, 20)])
def test_in_the_mirror_each_number_of_colour_hog_stays_or_changes_its_sign(shape):
    images = some(6, shape)
    odd = odd_colour_hog()
    assert 0 < int(odd.sum()) < len(odd) == 315
    there = torch.where(odd, -1.0, 1.0) * colour_hog(images)
    torch.testing.assert_close(colour_hog(images.flip(3)), there, atol=1e-5, rtol=0)


def data_of(shape, features=""):
    x = torch.zeros(2, *shape)
    return LocalData(
        Examples(x, torch.zeros(2).long()), np.arange(2), (0.5,), (0.5,), features=features
    )


@pytest.mark.parametrize(
    ("shape", "features", "known"),
    [
        ((3, 32, 32), "", True),
        ((315,), "colour-hog", True),
        ((315,), "hog", False),
        ((315,), "mine.py:encode", False),
        ((128,), "colour-hog", False),  # of small images, or of other channels
        ((1, 28, 28), "", False),
        ((4, 32, 32), "", False),
        ((3, 8, 8), "", False),
        ((315,), "", False),
    ],
)
def test_only_photographs_are_taken_to_be_mirrored(shape, features, known):
    assert (odd_in_mirror(data_of(shape, features)) is not None) == known


# -------------------------------------------------------------------------------------------------
# encoders of another package


class Tiny(torch.nn.Module):
    """Means of each channel at two places: a network as timm would make it."""

    def __init__(self):
        super().__init__()
        self.pretrained_cfg = {"input_size": (3, 16, 16), "mean": (0.5,) * 3, "std": (0.5,) * 3}

    def forward(self, x):
        assert x.shape[1:] == (3, 16, 16)
        return torch.nn.functional.adaptive_avg_pool2d(x, (1, 2))


class BatchNormed(Tiny):
    def forward(self, x):
        return super().forward(x - x.mean(0))


@pytest.fixture
def timm(monkeypatch):
    made = {"tiny": Tiny, "mixes": BatchNormed}

    def create_model(name, *, pretrained, num_classes):
        assert pretrained
        assert num_classes == 0
        if name == "offline":
            raise OSError("no connection\nat all")
        return made[name]()

    fake = types.ModuleType("timm")
    fake.create_model, fake.list_models = create_model, lambda pretrained: [*made, "offline"]
    monkeypatch.setitem(sys.modules, "timm", fake)
    room._from_timm.cache_clear()
    yield
    room._from_timm.cache_clear()


@pytest.mark.usefixtures("timm")
def test_an_encoder_of_timm():
    for shape in (GREY, COLOUR):
        found = encoder("timm:tiny", shape)(some(5, shape))
        assert found.shape == (5, 6)
        torch.testing.assert_close(found.norm(dim=1), torch.ones(5))
    white = torch.ones(1, 1, 28, 28)
    torch.testing.assert_close(encoder("timm:tiny", GREY)(white), torch.full((1, 6), 6**-0.5))
    for word, shape, why in (
        ("timm:mixes", COLOUR, "what it says of one example depends on the others"),
        ("timm:big", COLOUR, "timm has no network of this name with weights"),
        ("timm:offline", COLOUR, r"cannot be loaded \(OSError: no connection at all\)"),
        ("timm:tiny", (4,), "needs images of 1 or 3 channels; these inputs are 4"),
    ):
        with pytest.raises(BadInput, match=f"features = '{word}': {why}"):
            encoder(word, shape)


def test_timm_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(BadInput, match=r"features = 'timm:tiny': needs the package timm: tacit.t"):
        encoder("timm:tiny", COLOUR)
