"""Public features of images.

Fixed functions of one example, the same for everybody, learnt from nobody's data.

Images are floats (n, channels, height, width) in 0..1. Histograms of oriented gradients: Dalal and
Triggs (2005). The scattering transform: scattering.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from tacit.core import BadInput
from tacit.core.data import LocalData
from tacit.core.registry import Registry
from tacit.privacy.checks import FAR, LOOKS
from tacit.privacy.insides import chance, digest
from tacit.synthesis import encoder_file, timm_encoder
from tacit.synthesis.scattering import DIRECTIONS, strengths

Encoder = Callable[[Tensor], Tensor]  # inputs (n, ...) -> features (n, k)

FEATURES: Registry[Callable[[tuple[int, ...]], Encoder]] = Registry(
    "features", group="tacit.features", also=("auto",)
)  # by name: what makes an encoder for inputs of a shape
# features that come in the order of their frequencies
ORDERED = ("hog", "colour-hog", "dct", "scattering")
# cells along a side, directions of gradients, cells of mean colours along a side
CELLS = 6
BINS = 8
COLOURS = 3
# of the scattering transform: cells along a side, numbers that are kept, images at a time (what
# they need fits into a processor's cache)
WIDE_CELLS = 4
KEPT = 320
FEW = 16
ROUNDING = 1e-4  # what rounding may leave of no waves at all in a cell: it must not count as waves
# what features are multiplied by as inputs of a network, which steps of the usual sizes then suit;
# a power of two, so that nothing is rounded
SCALE = 4.0
MANY = 64  # examples that an encoder is tried on; one of the user's own never sees more at a time


def encoder(name: str, shape: tuple[int, ...]) -> Encoder:
    """Return the features of this name for inputs of a shape.

    ``file.py:function`` and ``module:function`` are the user's own public encoders, a file is one
    that was trained on public data, and ``timm:NAME`` one of the package timm.

    Rows of images have norm 1; longer rows of others are for whoever uses them to clip.
    """
    name = choose(name, shape)
    if encoder_file.is_file(name):
        return _from_file(encoder_file.pinned(name), shape)
    if name.startswith(timm_encoder.PREFIX):
        return _from_timm(name, shape)
    if name not in FEATURES:
        return _own(name, shape)
    if name != "raw" and (len(shape) != 3 or min(shape[1:]) < 4):
        raise BadInput(
            f"features = {name!r}: needs images of at least 4x4; "
            f"these inputs are {'x'.join(map(str, shape))}"
        )
    return FEATURES[name](shape)


def encoder_of(data: LocalData) -> Encoder:
    """Return what makes features of :func:`tacit.synthesis.moments.plain` inputs of a client.

    Inputs that are features already stay; of others, those that ``auto`` stands for.
    """
    return as_they_are if data.features else encoder("auto", tuple(data.source.x.shape[1:]))


def as_they_are(x: Tensor) -> Tensor:
    """Return features as they are."""
    return x


def in_order(data: LocalData) -> bool:
    """Tell whether a client's features come in the order of their frequencies."""
    return choose(data.features or "auto", tuple(data.source.x.shape[1:])) in ORDERED


def odd_in_mirror(data: LocalData) -> Tensor | None:
    """Return which of a client's features change their sign if images are mirrored.

    None: not known, or mirror images are not taken to be of the same class. They are for colour
    images, which are photographs as a rule.
    """
    shape = tuple(data.source.x.shape[1:])
    if data.features:  # of smaller images, or of other channels than three, there are other numbers
        known = data.features == "colour-hog" and shape == tuple(odd_colour_hog().shape)
    else:
        known = len(shape) == 3 and shape[0] == 3 and min(shape[1:]) >= 2 * CELLS
    return odd_colour_hog() if known else None


@lru_cache
def odd_colour_hog() -> Tensor:
    """Return which numbers of :func:`colour_hog` of an RGB image change their sign in its mirror.

    A cosine along a row does if its frequency is odd. Directions turn from a to pi - a: a cosine of
    an odd and a sine of an even frequency do.
    """
    waves = [(f + (i > 0 and i % 2 == 0)) % 2 for i, f in enumerate(_angular(BINS))]
    cells = torch.tensor(waves).view(-1, 1, 1) + torch.zeros(CELLS, 1) + torch.arange(CELLS)
    colours = torch.zeros(3, COLOURS, 1) + torch.arange(COLOURS)
    both = torch.cat([cells.flatten(), colours.flatten()]) % 2 == 1
    parts = ((_angular(BINS), CELLS, CELLS), ((0, 0, 0), COLOURS, COLOURS))
    return both[_by_frequency(parts)]


def choose(name: str, shape: tuple[int, ...]) -> str:
    """Return what ``auto`` stands for.

    HOG for grey images, colour HOG for others, and features as they are.
    """
    if name != "auto":
        return name
    if len(shape) != 3 or min(shape[1:]) < 4:
        return "raw"
    return "hog" if shape[0] == 1 else "colour-hog"


@FEATURES.register("hog")
def _hog(shape: tuple[int, ...]) -> Encoder:
    return hog


@FEATURES.register("colour-hog")
def _colour_hog(shape: tuple[int, ...]) -> Encoder:
    return colour_hog


@FEATURES.register("dct")
def _dct(shape: tuple[int, ...]) -> Encoder:
    dct = Dct(shape)
    return lambda x: unit_rows(dct(x))


@FEATURES.register("scattering")
def _scattering(shape: tuple[int, ...]) -> Encoder:
    return _few_at_a_time


def _few_at_a_time(x: Tensor) -> Tensor:
    """Return the scattering transform of any number of images; of none, no rows as long."""
    if torch.compiler.is_compiling():  # where a model is followed to be exported, for any number
        return scattering(x)
    if not len(x):
        return scattering(x.new_zeros(1, *x.shape[1:]))[:0]
    return torch.cat([scattering(few) for few in torch.split(x, FEW)])


@FEATURES.register("raw")
def _raw(shape: tuple[int, ...]) -> Encoder:
    return raw


def raw(x: Tensor) -> Tensor:
    """Return the inputs, flat and over the root of their number.

    Standardised ones have a norm of about 1.
    """
    flat = x.flatten(1)
    return flat / math.sqrt(flat.shape[1])


def hog(images: Tensor) -> Tensor:
    """Return histograms of oriented gradients.

    As amplitudes of their spatial and angular frequencies, low ones first.

    The rotation to frequencies changes no distance; it lets whoever has too few examples keep the
    first ones only.
    """
    cells = unit_rows(_even(histograms(images)).sqrt())
    return _low_first([(cells, _waves(BINS), _angular(BINS))])


def colour_hog(images: Tensor) -> Tensor:
    """Return the same with the mean colours of larger cells, with less weight."""
    cells = _even(histograms(images)).sqrt()
    colours = _pool(images - 0.5, COLOURS)
    channels = images.shape[1]
    parts = [(unit_rows(cells), _waves(BINS), _angular(BINS))]
    return _low_first([*parts, (0.4 * unit_rows(colours), _cosines(channels), (0,) * channels)])


def scattering(images: Tensor) -> Tensor:
    """Return the scattering transform, means over cells, in the order of their frequencies.

    Pairs of directions are sorted by the angle between them: each kind goes round a circle.
    """
    cells = (_pool(maps, WIDE_CELLS) for maps in strengths(images))
    first, second = ((each - ROUNDING).clamp_min(0).sqrt() for each in cells)
    first, second = unit_rows(first), unit_rows(second)
    circle = torch.arange(DIRECTIONS)
    maps = [*first.flatten(1, 2).unbind(1)]
    maps += [second[:, circle, (circle + turn) % DIRECTIONS] for turn in range(DIRECTIONS)]
    parts = [(each, _waves(DIRECTIONS), _angular(DIRECTIONS)) for each in maps]
    channels = images.shape[1]
    if channels > 1:
        colours = 0.4 * unit_rows(_pool(images - 0.5, COLOURS))
        parts.append((colours, _cosines(channels), (0,) * channels))
    return unit_rows(_low_first(parts)[:, :KEPT])


def histograms(images: Tensor) -> Tensor:
    """Return (n, bins, rows, columns).

    Sizes of gradients by direction, shared linearly between bins and cells.

    Of each pixel, the channel with the strongest gradient counts. Bin 0 is brighter to the right,
    bin 2 downwards.
    """
    p = torch.nn.functional.pad(images, (1, 1, 1, 1), mode="replicate")
    dx = p[..., 1:-1, 2:] - p[..., 1:-1, :-2]
    dy = p[..., 2:, 1:-1] - p[..., :-2, 1:-1]
    strongest = (dx.square() + dy.square()).argmax(1, keepdim=True)
    dx = dx.gather(1, strongest)
    dy = dy.gather(1, strongest)
    away = torch.atan2(dy, dx) * (BINS / (2 * math.pi)) - torch.arange(BINS).view(1, -1, 1, 1)
    away = (away - BINS * torch.round(away / BINS)).abs()  # round the circle
    return _pool(torch.hypot(dx, dy) * (1 - away).clamp_min(0), CELLS)


def _even(cells: Tensor) -> Tensor:
    """Divide each cell by the strength of the gradients around it: contrast counts for little."""
    energy = torch.nn.functional.pad(
        cells.square().sum(1, keepdim=True), (1, 1, 1, 1), mode="replicate"
    )
    return cells / (torch.nn.functional.avg_pool2d(energy, 3, 1) + 0.1).sqrt()


def unit_rows(x: Tensor) -> Tensor:
    """Return rows of norm 1, whatever their shape; a row of zeros stays."""
    norms = torch.linalg.vector_norm(x.flatten(1), dim=1).view(-1, *(1,) * (x.dim() - 1))
    return x / torch.where(norms > 0, norms, 1.0)


def _pool(maps: Tensor, cells: int) -> Tensor:
    """Return sums over a grid of cells, each pixel shared between the nearest ones."""
    rows, columns = (_tents(size, cells).to(maps) for size in maps.shape[-2:])
    return rows.T @ maps @ columns


@lru_cache
def _tents(size: int, cells: int) -> Tensor:
    """Return (size, cells): how much of each pixel belongs to each cell along one side.

    Cells of at least 2 pixels.
    """
    cells = min(cells, size // 2)
    at = (torch.arange(size) + 0.5) * cells / size - 0.5
    return (1 - (at[:, None] - torch.arange(cells)).abs()).clamp_min(0)


def _low_first(parts: list[tuple[Tensor, Tensor, tuple[int, ...]]]) -> Tensor:
    """Return maps (n, a, rows, columns) as orthonormal frequencies, sorted.

    Each with its own waves along a.
    """
    flat = []
    order = []
    for maps, waves, frequencies in parts:
        rows, columns = maps.shape[-2:]
        turned = _cosines(rows).to(maps) @ maps @ _cosines(columns).to(maps).T
        flat.append(torch.einsum("ab,nbuv->nauv", waves.to(maps), turned).flatten(1))
        order.append((frequencies, rows, columns))
    return unit_rows(torch.cat(flat, 1))[:, _by_frequency(tuple(order))]


@lru_cache
def _by_frequency(parts: tuple[tuple[tuple[int, ...], int, int], ...]) -> Tensor:
    """Return the places of amplitudes, those of low frequencies first; the order is public."""
    sums = [
        torch.tensor(f).view(-1, 1, 1) + torch.arange(rows)[:, None] + torch.arange(columns)
        for f, rows, columns in parts
    ]
    return torch.cat([each.flatten() for each in sums]).argsort(stable=True)


@lru_cache
def _waves(size: int) -> Tensor:
    """Return orthonormal waves round a circle of an even size.

    A constant, cosines and sines, and alternating signs.
    """
    at = 2 * math.pi * torch.arange(size, dtype=torch.float64) / size
    table = [
        torch.sin(f * at) if i and i % 2 == 0 else torch.cos(f * at)
        for i, f in enumerate(_angular(size))
    ]
    return unit_rows(torch.stack(table))


def _angular(size: int) -> tuple[int, ...]:
    """Return the frequency of each of these waves: 0, 1, 1, 2, 2, ..."""
    return tuple((i + 1) // 2 for i in range(size))


class Dct:
    """The low frequencies of an orthonormal two-dimensional cosine transform.

    :meth:`inverse` gives images back.

    >>> images = torch.rand(2, 1, 8, 8)
    >>> dct = Dct((1, 8, 8), frequencies=15)
    >>> torch.allclose(dct.inverse(dct(images)), images, atol=1e-5)
    True
    """

    def __init__(self, shape: tuple[int, ...], frequencies: int = 16) -> None:
        self.shape = shape
        channels, height, width = shape
        self.rows = _cosines(height)
        self.columns = _cosines(width)
        self.mix = _cosines(channels)
        # along diagonals: low frequencies first
        order = torch.arange(height)[:, None] + torch.arange(width)
        first = (order < frequencies).expand(shape).clone()
        # colours need fewer than brightness, which is the first of the mixture
        first[1:] = order < frequencies / 2
        kept = first.flatten().nonzero()[:, 0]
        self.kept = kept[order.expand(shape).flatten()[kept].argsort(stable=True)]

    def __call__(self, images: Tensor) -> Tensor:
        """Return (n, k) coefficients."""
        full = torch.einsum(
            "nchw,ac,uh,vw->nauv",
            images,
            *(m.to(images) for m in (self.mix, self.rows, self.columns)),
        )
        return full.flatten(1)[:, self.kept]

    def inverse(self, coefficients: Tensor) -> Tensor:
        """Return the images that have these coefficients and none of the others."""
        full = coefficients.new_zeros(len(coefficients), math.prod(self.shape))
        full[:, self.kept] = coefficients
        maps = full.view(-1, *self.shape)
        return torch.einsum(
            "nauv,ac,uh,vw->nchw", maps, *(m.to(maps) for m in (self.mix, self.rows, self.columns))
        )


@lru_cache
def _cosines(size: int) -> Tensor:
    """Return the orthonormal DCT-II of a size as a matrix.

    Row u holds cos(pi (2 i + 1) u / (2 size)).
    """
    i = torch.arange(size, dtype=torch.float64)
    u = torch.arange(size, dtype=torch.float64)[:, None]
    table = torch.cos(math.pi * (2 * i + 1) * u / (2 * size)) * math.sqrt(2 / size)
    table[0] /= math.sqrt(2)
    return table


@lru_cache(maxsize=16)  # tried once, not by every client anew
def _own(name: str, shape: tuple[int, ...]) -> Encoder:
    """Return the user's function, from a file, a module or an installed package, and try it."""
    found = FEATURES.own(name)
    if not callable(found):
        raise BadInput(
            f"features = {name!r}: must be a function from inputs (n, ...) to features (n, k)"
        )
    return _tried(name, InParts(found), shape)


@dataclass(frozen=True)
class InParts:
    """A function that gets as many examples at a time as it is tried on, not more.

    Else it could be another one for more of them.
    """

    found: Callable[[Tensor], object]

    def __call__(self, x: Tensor) -> object:
        """Return what it makes of inputs, however many there are."""
        if torch.compiler.is_compiling() or 0 < len(x) <= MANY:  # an export has any number of them
            return self.found(x)
        if not len(x):  # who holds nothing; not every function has an answer to that
            one = self.found(x.new_zeros(1, *x.shape[1:]))
            return one[:0] if isinstance(one, Tensor) else one
        parts = [self.found(part) for part in torch.split(x, MANY)]
        fit = all(isinstance(part, Tensor) and part.dim() == 2 for part in parts)
        return torch.cat(parts) if fit else parts  # type: ignore[arg-type]


@lru_cache(maxsize=4)
def _from_file(word: str, shape: tuple[int, ...]) -> Encoder:
    """Return the encoder of a file, once it was tried."""
    return _tried(encoder_file.path_of(word), encoder_file.load(word, shape), shape)


@lru_cache(maxsize=4)
def _from_timm(word: str, shape: tuple[int, ...]) -> Encoder:
    """Return an encoder of another package, once it was tried."""
    return _tried(word, InParts(timm_encoder.load(word, shape)), shape)


def _tried(name: str, found: Callable[[Tensor], object], shape: tuple[int, ...]) -> Encoder:
    with torch.no_grad():
        check_encoder(name, found, shape)
    return lambda x: unit_rows(_features(name, found, x))


def _words(e: Exception) -> str:
    return " ".join(f"{type(e).__name__}: {e}".split())


def _features(name: str, found: Callable[[Tensor], object], x: Tensor) -> Tensor:
    """Return what an encoder makes of inputs, if that is one row for each of them."""
    made = found(x)
    # shapes, and not lengths: these stay open where a model is followed to be exported
    rows = isinstance(made, Tensor) and made.dim() == 2 and made.shape[0] == x.shape[0]
    if not isinstance(made, Tensor) or not rows or made.shape[1] == 0:
        got = tuple(made.shape) if isinstance(made, Tensor) else f"a {type(made).__name__}"
        # no refusal that a client may tell of freely: it was fine when it was tried, so data decide
        raise ValueError(
            f"features = {name!r}: gives {got} for {len(x)} inputs; must be ({len(x)}, k), k from 1"
        )
    return made.detach().float()


def check_encoder(name: str, found: Callable[[Tensor], object], shape: tuple[int, ...]) -> None:
    """Refuse an encoder whose features of one example depend on other examples, or on chance.

    The release of moments rests on that: a record adds its own features to the sums, and nothing
    else. So the same random inputs are encoded together, in another order, one alone, and together
    once more; then many, of which one is far from the others and one is there twice; then inputs as
    data may be: empty, plain, dark, and mostly empty. It must neither draw random numbers nor
    change. This finds mistakes; code that hides what it does, or does it to rare inputs only, may
    pass.
    """
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(4, *shape, generator=draw)
    many = torch.rand(MANY, *shape, generator=draw)
    many[2] = many[1]
    cpu = torch.device("cpu")
    with torch.random.fork_rng(devices=[]):
        before, drawn = digest(found), chance(cpu)
        first = _check_same(name, found, x)
        if not first.isfinite().all():
            raise BadInput(
                f"features = {name!r}: gives numbers that are not finite for inputs in 0..1"
            )
        try:
            _check_same(name, found, torch.cat([FAR * many[:1], many[1:]]))
        except Fails:  # it takes inputs from 0 to 1 alone, as those of images are
            _check_same(name, found, many)
        _check_same(name, found, _plain_inputs(many))
        drew = chance(cpu) != drawn and all(_draws(found, x) for _ in range(LOOKS))
        if drew or digest(found) != before:
            raise BadInput(_depends(name))


def _plain_inputs(x: Tensor) -> Tensor:
    """Return inputs of the kinds that data have and random numbers are not, one of each and more.

    Whatever looks at a whole batch, for where it is empty or how dark it is, sees another one in
    each part of this.
    """
    bare = (x > 0.8) * x
    kinds = [bare[:3], 0.05 * x[3:5], torch.zeros_like(x[:1]), torch.ones_like(x[:1]), bare[5:7]]
    return torch.cat([*kinds, torch.full_like(x[:1], 0.5)])


def _draws(found: Callable[[Tensor], object], x: Tensor) -> bool:
    """Tell whether random numbers are drawn meanwhile: once may be another thread, as a site's."""
    before = chance(x.device)
    found(x)
    return chance(x.device) != before


class Fails(BadInput):
    """An encoder fails on the inputs that it was given."""


def _check_same(name: str, found: Callable[[Tensor], object], x: Tensor) -> Tensor:
    """Refuse features that are others in another company; return them."""
    turned = torch.arange(len(x)).roll(1)
    turned[[0, 1]] = turned[[1, 0]]
    picks = (turned, torch.tensor([1]), torch.tensor([0]), torch.arange(1, len(x) - 1))
    try:
        first = _features(name, found, x)
        others = [(_features(name, found, x[rows]), first[rows]) for rows in picks]
        others.append((_features(name, found, x), first))
    except Exception as e:
        where = f"features = {name!r}: "
        words = str(e) if str(e).startswith(where) else f"{where}fails ({_words(e)})"
        raise Fails(words) from None
    for again, same in others:
        if again.shape != same.shape:
            raise BadInput(_depends(name))
        # row by row: one that is large must not hide what happens to others
        apart = (again - same).abs().amax(1)
        size = same.abs().amax(1)
        if same.isfinite().all() and not (apart <= 1e-4 * (size + same.abs().median())).all():
            raise BadInput(_depends(name))
    return first


def _depends(name: str) -> str:
    return (
        f"features = {name!r}: what it says of one example depends on the others, on "
        "earlier ones or on chance, so no per-example guarantee holds"
    )
