"""A named point in parameter space, with the algebra of the papers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor, nn

from tacit.core.errors import BadInput
from tacit.core.ledger import PublicInt, is_public

T = TypeVar("T")
HAIR = 1e-6  # by which a clipped point ends up below its bound, so that rounding cannot pass it
SAFE = 1e-140, 1e140  # norms whose squares double precision holds


def _rebuilt(tensors: dict[str, Tensor], released: bool) -> Params:
    """Return a point that was sent to another process."""
    return Params(tensors).as_released(released)


class Params(dict[str, Tensor]):
    """Named tensors that add and scale as one vector.

    ``x - y``, ``0.5 * x`` and ``x.norm()`` read as in a paper.

    A point remembers whether it may leave its client: what is made of released points and public
    numbers only is released too. It does not change; one whose tensors are written to is no longer
    released.

    >>> x = Params(w=torch.tensor([3.0, 4.0]))
    >>> (0.5 * x).norm(), x.clipped(1.0).norm()  # doctest: +ELLIPSIS
    (2.5, 0.99999...)
    """

    _mark: tuple[int, ...] | None = None  # what its tensors held when it was released

    @property
    def released(self) -> bool:
        """Whether it came out of a mechanism or was known to the server, and has not changed since.

        An empty point never is: it says nothing, and must not pass for a whole one.
        """
        return self._mark is not None and bool(self) and self._mark == self._contents()

    def _contents(self) -> tuple[int, ...]:
        """Return a checksum of each tensor: writing to it shows, however it is done."""
        return tuple(checksum(v) for v in self.values())

    def as_released(self, released: bool = True) -> Params:
        """Mark this point as free to leave its client, or as not."""
        self._mark = self._contents() if released else None
        return self

    def _like(self, values: Iterable[Tensor], released: bool) -> Params:
        return Params(zip(self, values, strict=True)).as_released(released)

    def _with(self, other: Params) -> bool:
        """Tell whether both are released; what was never marked need not be looked at."""
        marked = self._mark is not None and other._mark is not None
        return marked and self.released and other.released

    def _of(self, other: Params) -> list[Tensor]:
        if self.keys() != other.keys():
            raise ValueError(f"parameter names differ: {sorted(self.keys() ^ other.keys())}")
        return [other[k] for k in self]

    def __add__(self, other: Params) -> Params:
        values = torch._foreach_add(list(self.values()), self._of(other))
        return self._like(values, self._with(other))

    def __sub__(self, other: Params) -> Params:
        values = torch._foreach_sub(list(self.values()), self._of(other))
        return self._like(values, self._with(other))

    def __mul__(self, scale: float) -> Params:
        values = torch._foreach_mul(list(self.values()), scale)
        return self._like(values, self.released and is_public(scale))

    def __truediv__(self, scale: float) -> Params:
        values = torch._foreach_div(list(self.values()), scale)
        return self._like(values, self.released and is_public(scale))

    __rmul__ = __mul__

    def _immutable(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("a point of parameter space does not change; make a new one of it")

    __setitem__ = __delitem__ = __ior__ = _immutable
    update = pop = popitem = clear = setdefault = _immutable

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (dict(self), self.released)

    def zeros(self) -> Params:
        """Return the origin of the same space, which says nothing about anybody."""
        return self._like((torch.zeros_like(v) for v in self.values()), released=True)

    def norm(self) -> float:
        """Return the Euclidean norm over all entries."""
        norm = self._norm(1.0)
        if SAFE[0] < norm < SAFE[1]:
            return norm
        # squares may have vanished, or have no end: once more, in units of the largest entry
        top = max((float(v.abs().max()) for v in self.values() if v.numel()), default=0.0)
        return self._norm(top) if math.isfinite(top) and top > 0 else norm

    def _norm(self, unit: float) -> float:
        # one copy in double precision, whatever is done to it
        wide = (v.detach().to(torch.float64, copy=True) for v in self.values())
        squares = (float(v.div_(unit).square_().sum()) for v in wide)
        return unit * math.sqrt(sum(squares))

    def norms(self) -> dict[str, float]:
        """Return the norm of each tensor by itself."""
        return {name: Params({name: v}).norm() for name, v in self.items()}

    def clipped(self, bound: float) -> Params:
        """Return the nearest point with norm at most ``bound``.

        One that is not finite counts for nothing.
        """
        norm = self.norm()
        released = self.released and is_public(bound)
        if not math.isfinite(norm):
            return self.zeros().as_released(released)
        least = bound * (1 - HAIR)
        if norm <= least:
            return (self * 1.0).as_released(released)
        # in double precision: the factor alone may be too small for a single number
        scaled = ((v.double() * (least / norm)).to(v.dtype) for v in self.values())
        return self._like(scaled, released)

    def finite(self) -> Params:
        """Return this point, or the origin if it has a number that is not finite."""
        return self if math.isfinite(self.norm()) else self.zeros().as_released(self.released)

    def size(self) -> int:
        """Return how many numbers there are."""
        return sum(v.numel() for v in self.values())


PART = 1 << 18  # numbers that are added up at a time
WIDTHS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def checksum(v: Tensor) -> int:
    """Return a sum of a tensor's bits, each place with a weight of its own: no proof of anything.

    It is quick, and there to see that something was written by mistake: other numbers, the same
    ones in another order, or another shape.
    """
    bits = v.detach().reshape(-1).view(WIDTHS[v.element_size()])
    bits = bits if v.element_size() >= 4 else bits.int()
    # by parts, so that little memory is needed, however large the tensor
    parts = (bits,) if len(bits) <= PART else torch.split(bits, PART)
    return hash((tuple(_weighed(part) for part in parts), tuple(v.shape)))


def _weighed(bits: Tensor) -> int:
    """Return the sum of whole numbers, each times a number of its place; it may overflow."""
    weights = _weights(bits.dtype, bits.device)[: len(bits)]
    return int(bits.dot(weights) if bits.device.type == "cpu" else (bits * weights).sum())


@cache
def _weights(kind: torch.dtype, device: torch.device) -> Tensor:
    """Return odd numbers, so that no single change is lost where products overflow."""
    draw = torch.Generator().manual_seed(0)
    return torch.randint(1 << 30, (PART,), dtype=kind, generator=draw).mul_(2).add_(1).to(device)


def weighted_sum(parts: Iterable[tuple[Params, float]]) -> Params:
    """Return the sum of ``weight * point``, added in the order given: the same to the bit."""
    it = iter(parts)
    first, weight = next(it)
    out = first * weight
    released = out.released
    del first  # it may be as large as the model, and nobody else's
    for point, weight in it:
        torch._foreach_add_(list(out.values()), out._of(point), alpha=weight)
        released = released and point.released and is_public(weight)
    return out.as_released(released)


def mean(parts: Iterable[Params | tuple[Params, float]]) -> Params:
    """Return the mean of points, or of ``(point, weight)`` pairs.

    >>> x, y = Params(w=torch.tensor(1.0)), Params(w=torch.tensor(5.0))
    >>> mean([x, y])["w"].item(), mean([(x, 3), (y, 1)])["w"].item()
    (3.0, 2.0)
    """
    pairs = [p if isinstance(p, tuple) else (p, PublicInt(1)) for p in parts]
    if not pairs:
        raise ValueError("the mean of no points is not defined")
    whole = sum((w for _, w in pairs), PublicInt(0))
    return weighted_sum((p, w / whole) for p, w in _used_up(pairs))


def _used_up(pairs: list[T]) -> Iterator[T]:
    """Let go of each when it has been used: this may be all that keeps a reply in memory."""
    pairs.reverse()
    while pairs:
        yield pairs.pop()


def params_of(model: nn.Module) -> Params:
    """Return a copy of the trainable parameters, in plain row-major layout on the CPU."""
    return Params(
        (name, p.detach().to("cpu", copy=True, memory_format=torch.contiguous_format))
        for name, p in model.named_parameters()
        if p.requires_grad
    )


def load_params(model: nn.Module, x: Params) -> list[nn.Parameter]:
    """Copy ``x`` into the model and return its trainable parameters in the order of ``x``.

    All of them: a network that kept some of what it held before would pass it off as ``x``.
    """
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if named.keys() != x.keys():
        raise BadInput(
            f"parameters: {_few(x)}: must be all {len(named)} of the network, {_few(named)}"
        )
    with torch.no_grad():
        torch._foreach_copy_([named[name] for name in x], list(x.values()))
    return [named[name] for name in x]


def _few(names: Iterable[str]) -> str:
    """Return the first few of some names, so that a line stays a line."""
    known = sorted(names)
    return (", ".join(known[:3]) or "none") + (", ..." if len(known) > 3 else "")
