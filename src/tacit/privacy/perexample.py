"""The sum of gradients clipped example by example, in one backward pass.

Autograd adds the examples' gradients up before anybody can clip them. So each layer with parameters
is replaced, while a loss is computed, by a tap: it passes the gradient on to the layer below as
usual, but notes its input and the gradient of its output instead of forming the weight's gradient.
From the two follows every example's own gradient (own_gradients.py).

Squared norms come with what may be missing from them (squares.py). An example for which that could
matter is done again in double precision, where the square of a product of any two single numbers is
exact enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tacit.privacy.own_gradients import LAYERS, Layer, Piece, formed
from tacit.privacy.products import set_up
from tacit.privacy.slowly import SLOW, any_slow, examples_at_once, gradients, is_slow
from tacit.privacy.squares import Squares, sum_of

PerExampleLoss = Callable[[nn.Module, Tensor, Tensor], Tensor]  # one loss for each example
KNOWN = (*LAYERS, *SLOW)  # all others are refused
# by which gradients end up below the clip, so that rounding cannot pass it
HAIR = 1e-5
# of a squared norm may be missing in single precision: more than that, and double has to be used
MISSING = 1e-6


class CannotClip(RuntimeError):
    """A network does something to a batch for which no example's own gradient can be told.

    Networks are tried before they see data, so this comes up only where data decide what a network
    does. It is no refusal that a client may tell of freely.
    """


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
    with set_up():
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
    with torch.no_grad(), set_up():
        for piece in notes.pieces:
            at = total[piece.parameter]
            at += piece.weighted(c.to(torch.float64 if notes.exactly else at.dtype))
    notes.pieces.clear()
