"""A named point in parameter space, with the algebra of the papers."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

HAIR = 1e-6  # by which a clipped point ends up below its bound, so that rounding cannot pass it
SAFE = 1e-140, 1e140  # norms whose squares double precision holds


class Params(dict[str, Tensor]):
    """Named tensors that add and scale as one vector.

    ``x - y``, ``0.5 * x`` and ``x.norm()`` read as in a paper.

    A point remembers whether it may leave its client: what is made of released points only is
    released too.

    >>> x = Params(w=torch.tensor([3.0, 4.0]))
    >>> (0.5 * x).norm(), x.clipped(1.0).norm()  # doctest: +ELLIPSIS
    (2.5, 0.99999...)
    """

    # came out of a mechanism, or was known to the server before: may leave a client
    released: bool = False

    def _like(self, values: Iterable[Tensor], other: Params | None = None) -> Params:
        made = Params(zip(self, values, strict=True))
        return made.as_released(self.released and (other is None or other.released))

    def as_released(self, released: bool = True) -> Params:
        """Mark this point as free to leave its client, or as not."""
        self.released = released
        return self

    def _of(self, other: Params) -> list[Tensor]:
        if self.keys() != other.keys():
            raise ValueError(f"parameter names differ: {sorted(self.keys() ^ other.keys())}")
        return [other[k] for k in self]

    def __add__(self, other: Params) -> Params:
        return self._like(torch._foreach_add(list(self.values()), self._of(other)), other)

    def __sub__(self, other: Params) -> Params:
        return self._like(torch._foreach_sub(list(self.values()), self._of(other)), other)

    def __mul__(self, scale: float) -> Params:
        return self._like(torch._foreach_mul(list(self.values()), scale))

    def __truediv__(self, scale: float) -> Params:
        return self._like(torch._foreach_div(list(self.values()), scale))

    __rmul__ = __mul__

    def zeros(self) -> Params:
        """Return the origin of the same space, which says nothing about anybody."""
        return self._like(torch.zeros_like(v) for v in self.values()).as_released()

    def norm(self) -> float:
        """Return the Euclidean norm over all entries."""
        norm = self._norm(1.0)
        if SAFE[0] < norm < SAFE[1]:
            return norm
        # squares may have vanished, or have no end: once more, in units of the largest entry
        top = max((float(v.abs().max()) for v in self.values() if v.numel()), default=0.0)
        return self._norm(top) if math.isfinite(top) and top > 0 else norm

    def _norm(self, unit: float) -> float:
        squares = (float((v.double() / unit).square().sum()) for v in self.values())
        return unit * math.sqrt(sum(squares))

    def norms(self) -> dict[str, float]:
        """Return the norm of each tensor by itself."""
        return {name: Params({name: v}).norm() for name, v in self.items()}

    def clipped(self, bound: float) -> Params:
        """Return the nearest point with norm at most ``bound``.

        One that is not finite counts for nothing.
        """
        norm = self.norm()
        if not math.isfinite(norm):
            return self.zeros().as_released(self.released)
        least = bound * (1 - HAIR)
        if norm <= least:
            return self * 1.0
        # in double precision: the factor alone may be too small for a single number
        return self._like((v.double() * (least / norm)).to(v.dtype) for v in self.values())

    def size(self) -> int:
        """Return how many numbers there are."""
        return sum(v.numel() for v in self.values())


def weighted_sum(parts: Iterable[tuple[Params, float]]) -> Params:
    """Return the sum of ``weight * point``, added in the order given, so that the result is the same to the bit."""
    it = iter(parts)
    first, weight = next(it)
    out = first * weight
    for point, weight in it:
        torch._foreach_add_(list(out.values()), out._of(point), alpha=weight)
        out.released = out.released and point.released
    return out


def mean(parts: Iterable[Params | tuple[Params, float]]) -> Params:
    """Return the mean of points, or of ``(point, weight)`` pairs.

    >>> x, y = Params(w=torch.tensor(1.0)), Params(w=torch.tensor(5.0))
    >>> mean([x, y])["w"].item(), mean([(x, 3), (y, 1)])["w"].item()
    (3.0, 2.0)
    """
    pairs = [p if isinstance(p, tuple) else (p, 1.0) for p in parts]
    if not pairs:
        raise ValueError("the mean of no points is not defined")
    whole = sum(w for _, w in pairs)
    return weighted_sum((p, w / whole) for p, w in pairs)


def params_of(model: nn.Module) -> Params:
    """Return a copy of the trainable parameters, in plain row-major layout on the CPU."""
    return Params(
        (name, p.detach().to("cpu", copy=True, memory_format=torch.contiguous_format))
        for name, p in model.named_parameters()
        if p.requires_grad
    )


def load_params(model: nn.Module, x: Params) -> list[nn.Parameter]:
    """Copy ``x`` into the model and return its trainable parameters in the order of ``x``."""
    named = dict(model.named_parameters())
    with torch.no_grad():
        for name, value in x.items():
            named[name].copy_(value)
    return [named[name] for name in x]
