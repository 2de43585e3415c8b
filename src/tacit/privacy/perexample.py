"""The sum of gradients clipped example by example, in one backward pass.

Autograd adds the examples' gradients up before anybody can clip them. So each layer with parameters
is replaced, while a loss is computed, by a tap: it passes the gradient on to the layer below as
usual, but notes its input and the gradient of its output instead of forming the weight's gradient.
From the two follows every example's own gradient G_i = A_i^T U_i. It is formed once (as much work
as the usual weight gradient), its norm is taken, and sum_i c_i G_i is read off. Where G_i would be
large and the layer sees few positions, the norm comes from Gram matrices instead, ||G_i||^2 = <A_i
A_i^T, U_i U_i^T>, and the weighted sum from one product over all examples. Everything here keeps to
the memory layout of its input; channels-last is the fast one.

Squares of small numbers vanish in single precision, and squares of large ones have no end. So each
squared norm comes with what may be missing from it. An example for which that could matter is done
again in double precision, where the square of a product of any two single numbers is exact enough.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.privacy.slowly import SLOW, any_slow, examples_at_once, gradients, is_slow

PerExampleLoss = Callable[[nn.Module, Tensor, Tensor], Tensor]  # one loss for each example
BLOCK = 1 << 18  # numbers copied at a time: as many as stay in a core's cache until they are used
# channels below which to fold is faster than the usual gradient of the input, which is made for
# many
FEW = 4
# to write and twice read a number of G_i takes about as long as this many products of a Gram matrix
MEMORY = 32
# by which gradients end up below the clip, so that rounding cannot pass it
HAIR = 1e-5
# numbers whose squares are added up in single precision: of 100,000 alike, rounding would leave out
# one in 10,000
STRETCH = 1024
# of a squared norm may be missing in single precision: more than that, and double has to be used
MISSING = 1e-6


class CannotClip(RuntimeError):
    """A network does something to a batch for which no example's own gradient can be told.

    Networks are tried before they see data, so this comes up only where data decide what a network
    does. It is no refusal that a client may tell of freely.
    """


@dataclass(frozen=True)
class Squares:
    """Squared norms, one for each example, in double precision.

    The true ones are at most ``value + missing``, but for rounding: squares below the smallest
    number that their precision can hold were lost.
    """

    value: Tensor
    missing: Tensor | float

    @classmethod
    def of(cls, rows: Tensor) -> Squares:
        """Return the squared norms of rows (n, ...)."""
        flat = rows.flatten(1)
        return cls.added(norms_of(flat), flat.shape[1])

    @classmethod
    def added(cls, norms: Tensor, numbers: int) -> Squares:
        """Return the squared norms of rows of so many numbers, given the norms of their parts."""
        value = norms.double().square().sum(1)
        return cls(value, numbers * least(norms))

    def __mul__(self, other: Squares) -> Squares:
        """Return the squared norms of outer products."""
        value = self.value * other.value
        whole = self.whole * other.whole
        return Squares(value, whole - value)

    @property
    def whole(self) -> Tensor:
        """What the squared norms are at most."""
        return self.value + self.missing


def norms_of(flat: Tensor) -> Tensor:
    """Return the norms of stretches of rows, (n, stretches)."""
    n, numbers = flat.shape
    stretch = stretch_of(numbers)
    whole = numbers - numbers % stretch
    stretches = flat[:, :whole].view(n, whole // stretch, stretch)
    norms: Tensor = torch.linalg.vector_norm(stretches, dim=2)
    if whole == numbers:
        return norms
    rest = torch.linalg.vector_norm(flat[:, whole:], dim=1, keepdim=True)
    return torch.cat([norms, rest], 1)


@cache
def stretch_of(numbers: int) -> int:
    """Return the longest stretch that divides rows evenly, as sizes of layers mostly allow."""
    if numbers <= STRETCH:
        return max(1, numbers)
    even = next(s for s in range(STRETCH, 0, -1) if numbers % s == 0)
    return even if even >= STRETCH // 8 else STRETCH


def least(t: Tensor) -> float:
    """Return below what a square is lost in a tensor's precision."""
    return torch.finfo(t.dtype).tiny


@dataclass(frozen=True)
class Piece:
    """One parameter's gradients: each example's squared norm, and the sum for given weights."""

    parameter: nn.Parameter
    squares: Squares
    weighted: Callable[[Tensor], Tensor]


def formed(
    parameter: nn.Parameter, G: Tensor, shape: Callable[[Tensor], Tensor] = lambda G: G
) -> Piece:
    """Return the piece of gradients that are formed already, one per example."""
    flat = G.flatten(1)
    return Piece(parameter, Squares.of(flat), lambda c: shape((c @ flat).view(G.shape[1:])))


def inner(K: Tensor, M: Tensor, depth: int) -> Squares:
    """Return <K_i, M_i> of Gram matrices, each a sum over ``depth`` products, and a little more.

    Where positions cancel, rounding must not make it less.
    """
    k, m = (t.diagonal(dim1=1, dim2=2).sum(1).double() for t in (K, M))
    value = (K * M).sum((1, 2)).double() + 32 * torch.finfo(K.dtype).eps * k * m
    # no entry is larger than a trace; each may lack as much, and so may each product of two
    lost = depth * least(K)
    return Squares(value, K.shape[1] ** 2 * (lost * (k + m) + lost**2 + least(K)))


def gram_is_less(positions: int, out: int, inside: int) -> bool:
    """Tell whether Gram matrices over positions are less work than a gradient (out, inside)."""
    return positions**2 * (out + inside) < MEMORY * out * inside


def product(
    parameter: nn.Parameter, L: Tensor, R: Tensor, positions: int, shape: Callable[[Tensor], Tensor]
) -> Piece:
    """Return the piece of G_i = L_i R_i, with L (n, out, positions) and R (n, positions, in).

    Each may be a view with more dimensions that add up to these.
    """
    n = len(L)
    out = L[0].numel() // positions
    inside = R[0].numel() // positions
    if positions == 1:
        a = L.reshape(n, out)
        u = R.reshape(n, inside)
        squares = Squares.of(a) * Squares.of(u)
        return Piece(parameter, squares, lambda c: shape((c[:, None] * a).t() @ u))
    if gram_is_less(positions, out, inside):
        L = L.reshape(n, out, positions)
        R = R.reshape(n, positions, inside)
        squares = inner(L.mT @ L, R @ R.mT, max(out, inside))
        return Piece(
            parameter,
            squares,
            lambda c: shape((c[:, None, None] * L.mT).flatten(0, 1).t() @ R.flatten(0, 1)),
        )
    G = L.new_empty(n, out, inside)
    block = max(1, BLOCK // (positions * max(out, inside)))
    for left, right, part in zip(*(torch.split(t, block) for t in (L, R, G)), strict=True):
        torch.bmm(left.reshape(-1, out, positions), right.reshape(-1, positions, inside), out=part)
    return formed(parameter, G, shape)


class Layer(ABC):
    """How one kind of module computes, passes gradients on, and yields each example's gradients."""

    # of the batch that make up one example, one after the other: its gradient is the sum of theirs
    rows = 1

    def __init__(self, module: Any) -> None:
        self.module = module

    def before(self, x: Tensor) -> Tensor:
        """Do what comes before the parameters and is left to autograd."""
        return x

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Return the output."""

    @abstractmethod
    def input_grad(self, x: Tensor, g: Tensor) -> Tensor | None:
        """Return the gradient of the input."""

    @abstractmethod
    def weight(self, x: Tensor, g: Tensor) -> Piece:
        """Return the weight's piece."""

    def bias(self, g: Tensor) -> Tensor:
        """Return each example's gradient of the bias: one number per channel."""
        return g.flatten(2).sum(2)

    def pieces(self, x: Tensor, g: Tensor) -> list[Piece]:
        """Return a piece for each trainable parameter."""
        found = [self.weight(x, g)] if self.module.weight.requires_grad else []
        bias = getattr(self.module, "bias", None)
        return (
            [*found, formed(bias, self.added(self.bias(g)))]
            if bias is not None and bias.requires_grad
            else found
        )

    def added(self, G: Tensor) -> Tensor:
        """Return gradients of examples from those of their rows."""
        return G if self.rows == 1 else G.view(-1, self.rows, *G.shape[1:]).sum(1)


class Linear(Layer):
    """nn.Linear on (n, in) or (n, ..., in)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.module.weight, self.module.bias)

    def input_grad(self, x: Tensor, g: Tensor) -> Tensor:
        back: Tensor = g @ self.module.weight
        return back

    def weight(self, x: Tensor, g: Tensor) -> Piece:
        A, U = (t.reshape(len(t) // self.rows, -1, t.shape[-1]) for t in (g, x))
        return product(self.module.weight, A.mT, U, A.shape[1], lambda G: G)

    def bias(self, g: Tensor) -> Tensor:
        return g.reshape(len(g), -1, g.shape[-1]).sum(1)


def patches(
    x: Tensor, kernel: Sequence[int], stride: Sequence[int], pad: Sequence[int], dil: Sequence[int]
) -> Tensor:
    """Return what a convolution sees, as a view: (n, rows, columns, kh, kw, channels)."""
    x = x.permute(0, 2, 3, 1)
    x = F.pad(x, (0, 0, pad[1], pad[1], pad[0], pad[0])) if any(pad) else x
    x = x.contiguous()
    n, h, w, channels = x.shape
    rows, columns = (
        (size - d * (k - 1) - 1) // s + 1
        for size, k, s, d in zip((h, w), kernel, stride, dil, strict=True)
    )
    a, b, c, e = x.stride()
    return x.as_strided(
        (n, rows, columns, kernel[0], kernel[1], channels),
        (a, b * stride[0], c * stride[1], b * dil[0], c * dil[1], e),
    )


def strips(
    x: Tensor, kernel: Sequence[int], stride: Sequence[int], pad: Sequence[int], dil: Sequence[int]
) -> Tensor:
    """Return what one row of a kernel sees, wherever it lies, as a view.

    (n, stride, rows, columns, kw, channels): rows that are a stride apart come one after the other,
    so what any row of the kernel sees of an example is one piece of this. All of its rows see the
    same, each from another row of the image on; so it is copied once and not for each of them.
    """
    left_over = -(x.shape[2] + 2 * pad[0]) % stride[0]
    x = x.permute(0, 2, 3, 1)
    if any(pad) or left_over:
        x = F.pad(x, (0, 0, pad[1], pad[1], pad[0], pad[0] + left_over))
    x = x.contiguous()
    n, h, w, channels = x.shape
    columns = (w - dil[1] * (kernel[1] - 1) - 1) // stride[1] + 1
    a, b, c, e = x.stride()
    return x.as_strided(
        (n, stride[0], h // stride[0], columns, kernel[1], channels),
        (a, b, b * stride[0], c * stride[1], c * dil[1], e),
    )


class Conv(Layer):
    """nn.Conv2d, and nn.Conv1d as one of height 1; any stride, padding, dilation and groups."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.flat = module.weight.dim() == 3
        self.kernel, self.stride, self.dilation = (
            _two(t, 1) for t in (module.kernel_size, module.stride, module.dilation)
        )
        own = module.padding_mode == "zeros" and not isinstance(module.padding, str)
        self.padding = _two(module.padding, 0) if own else (0, 0)
        self.outer = [] if own else module._reversed_padding_repeated_twice

    def before(self, x: Tensor) -> Tensor:
        mode = "constant" if self.module.padding_mode == "zeros" else self.module.padding_mode
        return F.pad(x, self.outer, mode=mode) if self.outer else x

    def _weight(self) -> Tensor:
        w: Tensor = self.module.weight
        return w.unsqueeze(2) if self.flat else w

    def forward(self, x: Tensor) -> Tensor:
        x = x.unsqueeze(2) if self.flat else x
        y = F.conv2d(
            x,
            self._weight(),
            self.module.bias,
            self.stride,
            self.padding,
            self.dilation,
            self.module.groups,
        )
        return y.squeeze(2) if self.flat else y

    def input_grad(self, x: Tensor, g: Tensor) -> Tensor:
        x, g = (t.unsqueeze(2) if self.flat else t for t in (x, g))
        if x.shape[1] < FEW and self.module.groups == 1:
            seen = self._weight().flatten(1).t() @ g.flatten(2)
            back: Tensor = F.fold(
                seen, x.shape[2:], self.kernel, self.dilation, self.padding, self.stride
            )
            return back.squeeze(2) if self.flat else back
        where = (
            list(self.stride),
            list(self.padding),
            list(self.dilation),
            False,
            [0, 0],
            self.module.groups,
        )
        back = torch.ops.aten.convolution_backward(
            g, x, self._weight(), None, *where, [True, False, False]
        )[0]
        return back.squeeze(2) if self.flat else back

    def pieces(self, x: Tensor, g: Tensor) -> list[Piece]:
        m = self.module
        both = m.weight.requires_grad and m.bias is not None and m.bias.requires_grad
        if both and self.is_formed(g, x) and x.shape[1] == 1:
            return self.of_one_channel(x, g)
        return super().pieces(x, g)

    def weight(self, x: Tensor, g: Tensor) -> Piece:
        x, g = (t.unsqueeze(2) if self.flat else t for t in (x, g))
        return self.from_sides(g, x)

    def is_formed(self, g: Tensor, x: Tensor) -> bool:
        """Tell whether examples' gradients are formed, given what a kernel gives and what it sees.

        Those of groups are too, in another way.
        """
        positions = self.rows * g[0, 0].numel()
        inside = math.prod(self.kernel) * x.shape[1]
        return self.module.groups == 1 and not gram_is_less(positions, g.shape[1], inside)

    def from_sides(self, g: Tensor, x: Tensor) -> Piece:
        """Return the weight's piece from what a kernel gives, or its gradient, and what it sees."""
        where = (self.kernel, self.stride, self.padding, self.dilation)
        A = g.permute(0, 2, 3, 1).flatten(1, 2)
        high, wide = g.shape[2:]  # the kernel may fit in once more: output_padding of a transpose
        if x.shape[1] > 1 and self.rows == 1 and self.is_formed(g, x):
            return self.from_strips(A, strips(x, *where)[:, :, :, :wide], high)
        return self.from_patches(A, patches(x, *where)[:, :high, :wide])

    def of_one_channel(self, x: Tensor, g: Tensor) -> list[Piece]:
        """Return the pieces of weight and bias together: a bias is a weight that always sees 1.

        So its gradient comes along while those of the output are at hand. Patches are copied along
        the image's rows.
        """
        x, g = (t.unsqueeze(2) if self.flat else t for t in (x, g))
        A = g.permute(0, 2, 3, 1).reshape(len(g) // self.rows, -1, g.shape[1])
        seen = patches(x, self.kernel, self.stride, self.padding, self.dilation)
        seen = seen.view(-1, self.rows, *seen.shape[1:5]).permute(0, 4, 5, 1, 2, 3)
        n, positions, out = A.shape
        G = A.new_empty(n, math.prod(self.kernel) + 1, out)
        block = min(n, max(1, BLOCK // (positions * G.shape[1])))
        left = A.new_ones(block, G.shape[1], positions)
        for some, right, part in zip(*(torch.split(t, block) for t in (seen, A, G)), strict=True):
            left[: len(part), :-1].view(some.shape).copy_(some)
            torch.bmm(left[: len(part)], right, out=part)
        weight = self.module.weight
        return [
            formed(weight, G[:, :-1], lambda G: G.t().reshape(weight.shape)),
            formed(self.module.bias, G[:, -1]),
        ]

    def from_strips(self, A: Tensor, seen: Tensor, rows: int) -> Piece:
        """Return the weight's piece, its gradients formed for each row of the kernel by itself."""
        n, _, out = A.shape
        phases, _, columns, width, channels = seen.shape[1:]
        G = A.new_empty(self.kernel[0], n, width * channels, out)
        # both what is copied and what is formed of it
        block = max(1, 2 * BLOCK // (seen[0].numel() + G[:, 0].numel()))
        split = (torch.split(A, block), torch.split(seen, block), torch.split(G, block, 1))
        found: list[Tensor] = []  # norms, of a row of the kernel after the other
        for right, strip, parts in zip(*split, strict=True):
            left = strip.reshape(len(right), phases, -1, width * channels).transpose(2, 3)
            for k, part in enumerate(parts):
                first, phase = divmod(k * self.dilation[0], phases)
                torch.bmm(
                    left[:, phase, :, first * columns : (first + rows) * columns], right, out=part
                )
                found.append(norms_of(part.flatten(1)))  # while it is still in the cache
        G = G.flatten(2)
        norms = torch.cat([torch.cat(found[k :: len(G)]) for k in range(len(G))], 1)
        weight = self.module.weight
        by_kernel = (*self.kernel, channels, out)
        return Piece(
            weight,
            Squares.added(norms, G[:, 0].numel()),
            lambda c: (c @ G).view(by_kernel).permute(3, 2, 0, 1).reshape(weight.shape),
        )

    def from_patches(self, A: Tensor, seen: Tensor) -> Piece:
        """Return the weight's piece from A (n, positions, out) and the patches that go with it."""
        A = A.reshape(len(A) // self.rows, -1, A.shape[2])
        seen = seen.view(-1, self.rows, *seen.shape[1:])
        n, positions, out = A.shape
        weight = self.module.weight
        groups = self.module.groups
        channels = seen.shape[6]
        if groups > 1:
            A = A.reshape(n, positions, groups, -1)
            U = seen.reshape(n, positions, -1, groups, channels // groups)
            return formed(weight, torch.einsum("npgo,npkgc->ngock", A, U).reshape(n, *weight.shape))
        # the other way round, so that patches are copied along the image's rows: kernels' are short
        if channels == 1:
            U = seen.permute(0, 4, 5, 6, 1, 2, 3)
            return product(weight, U, A, positions, lambda G: G.t().reshape(weight.shape))
        by_kernel = (out, *self.kernel, channels)
        return product(
            weight,
            A.mT,
            seen,
            positions,
            lambda G: G.view(by_kernel).permute(0, 3, 1, 2).view(weight.shape),
        )


class ConvTranspose(Conv):
    """nn.ConvTranspose2d and nn.ConvTranspose1d.

    A convolution with input and output gradient exchanged.
    """

    def forward(self, x: Tensor) -> Tensor:
        m = self.module
        x = x.unsqueeze(2) if self.flat else x
        more = _two(m.output_padding, 0)
        y = F.conv_transpose2d(
            x, self._weight(), m.bias, self.stride, self.padding, more, m.groups, self.dilation
        )
        return y.squeeze(2) if self.flat else y

    def input_grad(self, x: Tensor, g: Tensor) -> Tensor:
        x, g = (t.unsqueeze(2) if self.flat else t for t in (x, g))
        back = F.conv2d(
            g, self._weight(), None, self.stride, self.padding, self.dilation, self.module.groups
        )[:, :, : x.shape[2], : x.shape[3]]
        return back.squeeze(2) if self.flat else back

    def weight(self, x: Tensor, g: Tensor) -> Piece:
        x, g = (t.unsqueeze(2) if self.flat else t for t in (x, g))
        return self.from_sides(x, g)

    def pieces(self, x: Tensor, g: Tensor) -> list[Piece]:
        return Layer.pieces(
            self, x, g
        )  # the kernel gives the input here, which no bias is added to


class Embedding(Layer):
    """nn.Embedding on (n,) or (n, ...) indices."""

    def forward(self, x: Tensor) -> Tensor:
        return F.embedding(x, self.module.weight)

    def input_grad(self, x: Tensor, g: Tensor) -> None:
        return None

    def weight(self, x: Tensor, g: Tensor) -> Piece:
        n = len(x) // self.rows
        weight = self.module.weight
        pad = self.module.padding_idx
        index = x.reshape(n, -1)
        rows = g.reshape(n, -1, g.shape[-1])
        if pad is not None:
            rows = rows * (index != pad).unsqueeze(2)
        # an index met twice adds up
        alike = (index.unsqueeze(1) == index.unsqueeze(2)).to(rows.dtype)
        squares = inner(alike, rows @ rows.mT, rows.shape[2])

        def weighted(c: Tensor) -> Tensor:
            out = rows.new_zeros(weight.shape)
            return out.index_add_(0, index.flatten(), (c[:, None, None] * rows).flatten(0, 1))

        return Piece(weight, squares, weighted)


class Normalise(torch.autograd.Function):
    """Instance norm without scale and shift, on (n, channels, ...).

    Torch's own copies channels-last tensors.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        """Return the input with mean 0 and variance 1 in each channel."""
        ctx.dims = tuple(range(2, x.dim()))
        y = x - x.mean(ctx.dims, keepdim=True)
        scale = (y.square().mean(ctx.dims, keepdim=True) + eps).rsqrt()
        y *= scale
        ctx.save_for_backward(y, scale)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """Return the input's gradient.

        What is left of the output's without the directions that change nothing.
        """
        y, scale = ctx.saved_tensors
        (g,) = grads
        along = (g * y).mean(ctx.dims, keepdim=True)
        return (g - g.mean(ctx.dims, keepdim=True)).addcmul_(y, along, value=-1).mul_(scale), None


class Affine(Layer):
    """The scale and shift of group, instance and layer norm.

    The normalisation itself is left to autograd.
    """

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.trailing = len(module.normalized_shape) if isinstance(module, nn.LayerNorm) else 0

    def before(self, x: Tensor) -> Tensor:
        m = self.module
        if isinstance(m, nn.LayerNorm):
            return F.layer_norm(x, m.normalized_shape, eps=m.eps)
        if isinstance(m, nn.GroupNorm):
            return F.group_norm(x, m.num_groups, eps=m.eps)
        y: Tensor = Normalise.apply(x, m.eps)  # type: ignore[no-untyped-call]
        return y

    def _spread(self, v: Tensor, like: Tensor) -> Tensor:
        return v if self.trailing else v.view(-1, *(1,) * (like.dim() - 2))

    def forward(self, x: Tensor) -> Tensor:
        y = x * self._spread(self.module.weight, x)
        return y if self.module.bias is None else y + self._spread(self.module.bias, x)

    def input_grad(self, x: Tensor, g: Tensor) -> Tensor:
        return g * self._spread(self.module.weight, x)

    def _sum(self, t: Tensor) -> Tensor:
        places = range(1, t.dim() - self.trailing) if self.trailing else range(2, t.dim())
        return t.sum(tuple(places)) if len(places) else t

    def weight(self, x: Tensor, g: Tensor) -> Piece:
        return formed(self.module.weight, self.added(self._sum(g * x)))

    def bias(self, g: Tensor) -> Tensor:
        return self._sum(g)


# layers that have a fast path
LAYERS: dict[type[nn.Module], type[Layer]] = {
    nn.Linear: Linear,
    nn.Conv1d: Conv,
    nn.Conv2d: Conv,
    nn.ConvTranspose1d: ConvTranspose,
    nn.ConvTranspose2d: ConvTranspose,
    nn.Embedding: Embedding,
    nn.GroupNorm: Affine,
    nn.InstanceNorm1d: Affine,
    nn.InstanceNorm2d: Affine,
    nn.LayerNorm: Affine,
}
KNOWN = (*LAYERS, *SLOW)  # all others are refused


def _two(t: Any, first: int) -> tuple[int, int]:
    a = (t,) if isinstance(t, int) else tuple(t)
    return (first, a[0]) if len(a) == 1 else (a[0], a[1])


@dataclass
class Notes:
    """What the taps of a network have noted in a backward pass."""

    named: dict[str, nn.Parameter]  # all of the network's
    rows: int = 1  # that the loss shows the network for each example
    examples: int = 0  # in the present pass
    pieces: list[Piece] = field(default_factory=list)
    exactly: bool = False  # gradients of examples are to be formed in double precision
    # where there is no fast path: returns the gradients of examples, one by one
    slowly: Callable[[Tensor, Tensor], dict[nn.Parameter, Tensor]] | None = None

    def expect(self, examples: int) -> None:
        """Begin anew."""
        self.examples = examples
        self.pieces.clear()

    def check(self, name: str, x: Tensor) -> None:
        """Refuse a layer's input whose rows are not the examples: each row is clipped by itself."""
        want = self.examples * self.rows
        if x.shape[:1] != (want,):
            raise CannotClip(
                f"layer {name!r} sees inputs of shape {tuple(x.shape)} for {want} examples; "
                "its rows must be the examples, so keep the batch as the first dimension "
                "(nn.Linear takes (n, positions, features))"
            )

    def add(self, layer: Layer, x: Tensor, g: Tensor) -> None:
        """Note the gradients of a layer's parameters, given its input and its output's gradient."""
        if self.exactly:
            x = x.double() if x.is_floating_point() else x
            g = g.double()
        self.pieces += layer.pieces(x, g)

    def note(self, found: dict[nn.Parameter, Tensor]) -> None:
        """Note gradients of examples that are formed already."""
        self.pieces += [formed(p, G.double() if self.exactly else G) for p, G in found.items()]

    def squares(self) -> Squares:
        """Return the squared norms over all parameters."""
        self._check_all()
        each = [piece.squares for piece in self.pieces]
        return Squares(sum_of(s.value for s in each), sum(s.missing for s in each))

    def _check_all(self) -> None:
        """Refuse parameters whose gradient went past the taps, or came by more than once."""
        for name, p in self.named.items():
            if p.grad is not None:
                raise CannotClip(
                    f"parameter {name!r} is used outside of its layer, where per-example "
                    "clipping does not see it; call the layer instead"
                )
        if len({piece.parameter for piece in self.pieces}) < len(self.pieces):
            raise CannotClip(
                "a layer or its weight is used more than once in a forward pass, "
                "which per-example clipping cannot do"
            )
        if any(len(piece.squares.value) != self.examples for piece in self.pieces):
            raise CannotClip("its gradients are not one for each example")


def sum_of(tensors: Iterable[Tensor]) -> Tensor:
    """Return the sum of tensors of one shape."""
    return torch.stack(list(tensors)).sum(0)


def check_digits(out: Tensor) -> None:
    """Refuse half precision: norms of such gradients are wrong by up to 1/256."""
    if out.dtype in (torch.bfloat16, torch.float16):
        what = str(out.dtype).removeprefix("torch.")
        raise CannotClip(f"it computes in {what}, and clipping needs float32 or float64")


class Tap(torch.autograd.Function):
    """A layer whose backward pass notes what the weights' gradients follow from, and goes on."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, start: Tensor, layer: Layer, notes: Notes) -> Tensor:
        """Compute the output.

        ``start`` needs a gradient, so that autograd follows a layer on plain inputs too.
        """
        ctx.layer = layer
        ctx.notes = notes
        ctx.save_for_backward(x)
        out = layer.forward(x)
        check_digits(out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, None, None]:
        """Note the pieces and return the input's gradient."""
        (x,) = ctx.saved_tensors
        (g,) = grads
        ctx.notes.add(ctx.layer, x, g)
        return (ctx.layer.input_grad(x, g) if ctx.needs_input_grad[0] else None), None, None, None


@contextmanager
def tapped(notes: Notes, layers: dict[str, nn.Module]) -> Iterator[None]:
    """Replace the forward function of layers with trainable parameters by a tap."""
    start = torch.zeros((), requires_grad=True, device=next(iter(notes.named.values())).device)

    def forward(name: str, layer: Layer, x: Tensor) -> Tensor:
        notes.check(name, x)
        tap: Callable[..., Tensor] = Tap.apply
        return tap(layer.before(x), start, layer, notes)

    for name, module in layers.items():
        layer = LAYERS[type(module)](module)
        layer.rows = notes.rows
        module.forward = partial(forward, name, layer)
    try:
        with without_grads(notes.named.values()):
            yield
    finally:
        for module in layers.values():
            del module.forward  # the class's own shows again


def trained_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers that have trainable parameters of their own, with their names."""
    for name, module in model.named_modules():
        if any(p.requires_grad for p in module.parameters(recurse=False)):
            yield name, module


@contextmanager
def without_grads(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Set gradients aside that parameters have, so that any which comes is seen."""
    aside = [(p, p.grad) for p in parameters]
    for p, _ in aside:
        p.grad = None
    try:
        yield
    finally:
        for p, grad in aside:
            p.grad = grad


def micro_batch(model: nn.Module) -> int:
    """Return how many examples to take at a time."""
    if is_slow(model):
        return examples_at_once(model)
    return at_a_time(model, [p for p in model.parameters() if p.requires_grad])


def at_a_time(model: nn.Module, trained: Iterable[nn.Parameter]) -> int:
    """Return how many examples to take at a time, where there is a fast path.

    A power of 2, 32 to 256, so that the G_i fill about 32 MB (a cache).

    Those of linear layers and of large convolutions, which see few positions, are not formed as a
    rule. Of a linear model nothing is held but inputs and scores: up to 4096, in the same memory.
    """
    if alone := linear_alone(model):
        return _power_of_2(alone.in_features + alone.out_features, 8, 12)
    sizes = [p.numel() for p in trained if p.dim() > 2]
    return _power_of_2(sum(size for size in sizes if size < 1 << 17), 5, 8)


def _power_of_2(numbers: int, least: int, most: int) -> int:
    """Return how many examples of so many numbers fill about 32 MB."""
    return 1 << min(most, max(least, round(23 - math.log2(max(1, numbers)))))


def linear_alone(model: nn.Module) -> nn.Linear | None:
    """Return the one layer of a network that is nothing but it, flattened inputs perhaps."""
    layers = list(model) if type(model) is nn.Sequential else [model]
    if layers and type(layers[0]) is nn.Flatten:
        del layers[0]
    only = layers[0] if len(layers) == 1 else None
    return only if type(only) is nn.Linear else None


def clipped_sum(
    model: nn.Module,
    loss: PerExampleLoss,
    inputs: Tensor,
    labels: Tensor,
    clip: float,
    micro: int | None = None,
    rows: int = 1,
) -> tuple[dict[nn.Parameter, Tensor], Tensor]:
    """Return the sum of the examples' gradients, each clipped to ``clip``, and their norms.

    Guarantee: zeroing one example out changes the sum by at most ``clip`` in Euclidean norm,
    as long as the model does not mix examples. A gradient that is not finite counts for nothing.
    Memory is bounded by ``micro``, how many examples are taken at a time; by default it follows
    from the size of the model. ``rows``: the loss shows the model that many rows for each example,
    one after the other (a pair of images, say), and they are clipped together.
    """
    # each of these walks through the whole network, which takes as long as a small batch
    named = dict(model.named_parameters())
    layers = dict(trained_layers(model))
    slow = any_slow(layers.values())
    total = {p: torch.zeros_like(p) for p in named.values() if p.requires_grad}
    micro = micro or (examples_at_once(model) if slow else at_a_time(model, total))
    norms = [torch.zeros(0, device=inputs.device)]
    notes = Notes(named, rows, slowly=partial(gradients, model, loss) if slow else None)
    with without_grads(named.values()) if slow else tapped(notes, layers):
        for start in range(0, len(inputs), micro):
            x = inputs[start : start + micro]
            y = labels[start : start + micro]
            norms.append(_add_clipped(partial(loss, model), x, y, notes, clip, total))
    return total, torch.cat(norms).to(next(iter(total.values())).dtype)


def _add_clipped(
    loss: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    y: Tensor,
    notes: Notes,
    clip: float,
    total: dict[nn.Parameter, Tensor],
) -> Tensor:
    """Add the clipped gradients of some examples to the total; return their norms before that."""
    squares = _squares(loss, x, y, notes)
    norms = squares.value.sqrt()
    unsure = doubtful(squares, clip, exactly=notes.exactly)
    if not unsure.any():
        _add(notes, (clip * (1 - HAIR) / squares.whole.sqrt()).clamp(max=1.0), total)
        return norms
    if not unsure.all():
        _add_clipped(loss, x[~unsure], y[~unsure], notes, clip, total)
    if not notes.exactly:
        norms[unsure] = _exactly(loss, x[unsure], y[unsure], notes, clip, total)
    return norms


def _exactly(loss: Any, x: Tensor, y: Tensor, notes: Notes, clip: float, total: Any) -> Tensor:
    """Do the same in double precision; what is not finite there counts for nothing."""
    notes.exactly = True
    try:
        return _add_clipped(loss, x, y, notes, clip, total)
    finally:
        notes.exactly = False


def _squares(
    loss: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor, notes: Notes
) -> Squares:
    """Let the taps note each example's gradient; return the squared norms."""
    notes.expect(len(x))
    if notes.slowly is not None:
        notes.note(notes.slowly(x, y))
        return notes.squares()
    losses = loss(x, y)
    if losses.shape != (len(x),):
        raise CannotClip(f"it gives losses of shape {tuple(losses.shape)} for {len(x)} examples")
    torch.autograd.backward(losses.sum())
    return notes.squares()


def doubtful(squares: Squares, clip: float, *, exactly: bool) -> Tensor:
    """Tell which examples cannot be clipped well enough: by their norm, or by the factor it gives.

    One that is within the clip whatever is missing needs no better figure. A factor that is hardly
    above the smallest number of its precision has few digits.
    """
    inside = squares.whole <= (clip * (1 - HAIR)) ** 2
    known = squares.whole.isfinite() & (squares.missing <= MISSING * squares.value)
    smallest = torch.finfo(torch.float64 if exactly else torch.float32).tiny
    precise = clip / squares.whole.sqrt() > smallest / MISSING
    return ~(inside | (known & precise))


def _add(notes: Notes, c: Tensor, total: dict[nn.Parameter, Tensor]) -> None:
    """Add each parameter's gradients, weighted by example, to its total."""
    with torch.no_grad():
        for piece in notes.pieces:
            at = total[piece.parameter]
            at += piece.weighted(c.to(torch.float64 if notes.exactly else at.dtype))
    notes.pieces.clear()
