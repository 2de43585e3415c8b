"""Each example's own gradient of a layer's parameters: its norm, and the sum for given weights.

From a layer's input A_i and the gradient of its output U_i follows every example's own gradient G_i
= A_i^T U_i. It is formed once (as much work as the usual weight gradient), its norm is taken, and
sum_i c_i G_i is read off. Where G_i would be large and the layer sees few positions, the norm comes
from Gram matrices instead, ||G_i||^2 = <A_i A_i^T, U_i U_i^T>, and the weighted sum from one
product over all examples. Everything here keeps to the memory layout of its input; channels-last is
the fast one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from tacit.privacy.products import product
from tacit.privacy.squares import Squares, inner, norms_of

# numbers copied at a time: so many that calls do not count, so few that caches hold them until used
BLOCK = 1 << 19
# channels below which to fold is faster than the usual gradient of the input, which is made for
# many
FEW = 4
# to write and twice read a number of G_i takes about as long as this many products of a Gram matrix
MEMORY = 32


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


def gram_is_less(positions: int, out: int, inside: int) -> bool:
    """Tell whether Gram matrices over positions are less work than a gradient (out, inside)."""
    return positions**2 * (out + inside) < MEMORY * out * inside


def piece_of(
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
        return Piece(parameter, squares, lambda c: shape(product((c[:, None] * a).t(), u)))
    if gram_is_less(positions, out, inside):
        L = L.reshape(n, out, positions)
        R = R.reshape(n, positions, inside)
        squares = inner(product(L.mT, L), product(R, R.mT), max(out, inside))
        return Piece(
            parameter,
            squares,
            lambda c: shape(product((c[:, None, None] * L.mT).flatten(0, 1).t(), R.flatten(0, 1))),
        )
    G = L.new_empty(n, out, inside)
    block = max(1, BLOCK // (positions * max(out, inside)))
    for left, right, part in zip(*(torch.split(t, block) for t in (L, R, G)), strict=True):
        product(left.reshape(-1, out, positions), right.reshape(-1, positions, inside), part)
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
        return piece_of(self.module.weight, A.mT, U, A.shape[1], lambda G: G)

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
            product(left[: len(part)], right, part)
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
                here = slice(first * columns, (first + rows) * columns)
                product(left[:, phase, :, here], right, part)
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
            return piece_of(weight, U, A, positions, lambda G: G.t().reshape(weight.shape))
        by_kernel = (out, *self.kernel, channels)
        return piece_of(
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
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """Return the input's gradient.

        What is left of the output's without the directions that change nothing.
        """
        y, scale = ctx.saved_tensors
        (g,) = grads
        along = (g * y).mean(ctx.dims, keepdim=True)
        return (g - g.mean(ctx.dims, keepdim=True)).addcmul_(y, along, value=-1).mul_(scale), None


class InstanceNorm2d(nn.InstanceNorm2d):
    """Torch's, affine. What comes channels-last stays so, which makes what follows faster."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, affine=True)

    def forward(self, input: Tensor) -> Tensor:
        """Return the input with the deviation and the mean of the parameters in each channel."""
        half = input.dtype in (torch.bfloat16, torch.float16)  # torch's adds up in single precision
        if half or input.dim() != 4 or input[0, 0].numel() < 2:
            return super().forward(input)
        y: Tensor = Normalise.apply(input, self.eps)  # type: ignore[no-untyped-call]
        return y * self.weight.view(-1, 1, 1) + self.bias.view(-1, 1, 1)


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
    InstanceNorm2d: Affine,
    nn.LayerNorm: Affine,
}


def _two(t: Any, first: int) -> tuple[int, int]:
    a = (t,) if isinstance(t, int) else tuple(t)
    return (first, a[0]) if len(a) == 1 else (a[0], a[1])
