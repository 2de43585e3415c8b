"""Can a network train privately? Tried out on random inputs, before any data are looked at.

DP-SGD rests on one thing: what an example adds to the sum of clipped gradients is its own clipped
gradient, whoever else is in the batch and whatever came before. So a copy of the network computes
that sum, in train mode, several times in a row, and it is compared with the gradients of single
examples, which plain autograd gives.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from tacit.core import BadInput
from tacit.core.data import Goal
from tacit.privacy.insides import Insides
from tacit.privacy.losses import LOSSES
from tacit.privacy.perexample import (
    KNOWN,
    CannotClip,
    PerExampleLoss,
    clipped_sum,
    micro_batch,
    trained_layers,
)
from tacit.privacy.slowly import slow_layers

UNBOUND = 1e10  # a clip that does not bite
MANY = 12  # examples of unlike sizes
FAR = 10.0  # times as large as the others: an example that shows what is measured by the rest
TRIED = 3  # examples: as few as show how they meet, for a large network takes its time
# of the clip: as far as single precision may be from what autograd gives for single examples
APART = 1e-3
LOOKS = 3  # what draws random numbers each time is the pass, what draws once is another thread
SAME = 1e-5  # of an output's size: as far as the same inputs may differ from one time to the next
INSIDE = (NonDynamicallyQuantizableLinear,)  # part of another layer
CHANCE = (nn.modules.dropout._DropoutNd, nn.RReLU)

MIXES = (
    "model: in train mode {} depends on the others in the batch, or on batches before, so no "
    "per-example guarantee holds; replace batch norm and the like by nn.GroupNorm or nn.LayerNorm"
)

_checked: WeakSet[nn.Module] = WeakSet()


def check_network(
    model: nn.Module,
    shape: Sequence[int],
    classes: int | None = None,
    goal: Goal = "classes",
) -> str:
    """Say why a network can train privately, or refuse it and say why not.

    The network is left as it is: a copy is tried, on random inputs.

    Args:
        model: a network from inputs (n, *shape) to scores (n, classes).
        shape: the shape of one input.
        classes: how many classes there are; by default as many as the network has scores.
        goal: what is predicted: classes, or numbers or yes and no, as many as ``classes`` says.

    Returns:
        One sentence that says what was found.

    Raises:
        BadInput: in one line, which layer or parameter is in the way, and what to do.

    >>> check_network(nn.Sequential(nn.Linear(4, 3)), (4,))
    'can train privately: in all 1 layers with 2 parameters, each example has a gradient of its own'
    """
    _check_layers(model)
    for check in (_check_few, _check_full):
        try:
            _try(partial(check, goal=goal), model, shape, classes, torch.float32)
        except Mixes as e:
            # rounding may tip a unit of a deep network over, so double precision decides
            try:
                _try(partial(check, goal=goal), model, shape, classes, torch.float64)
            except BadInput:
                raise BadInput(str(e)) from None
    layers = dict(trained_layers(model))
    count = sum(p.requires_grad for p in model.parameters())
    return (
        f"can train privately: in all {len(layers)} layers with {count} parameters, "
        f"each example has a gradient of its own{slow_words(model)}"
    )


def slow_words(model: nn.Module) -> str:
    """Say which layers make private training slow; nothing where none does."""
    if not (kinds := slow_layers(model)):
        return ""
    return f"; by torch.func, the slow way, since {', '.join(kinds)} has no fast path"


class Mixes(BadInput):
    """The gradient of an example depends on others."""


Check = Callable[[nn.Module, Tensor, int | None], None]


def _try(
    check: Check,
    model: nn.Module,
    shape: Sequence[int],
    classes: int | None,
    precision: torch.dtype,
) -> None:
    """Let a copy of a network compute, and refuse what it does to examples."""
    with _trial(model, precision) as probe:
        x = _inputs(TRIED, shape).to(next(probe.parameters()).device, precision)
        check(probe, x, classes)


def _check_few(model: nn.Module, x: Tensor, classes: int | None, goal: Goal = "classes") -> None:
    """Refuse what shows with few examples: chance, memory, gradients that are not their own."""
    _check_chance(model)
    scores = _check_forward(model, x, classes)
    check_gradients(model, LOSSES[goal], x, _labels(goal, TRIED, scores.shape[1], x))
    _check_unlike(model, x, scores.shape[1], goal)


def _labels(goal: Goal, n: int, classes: int, like: Tensor) -> Tensor:
    """Return random labels, classes or columns of 0 and 1."""
    if goal == "classes":
        return torch.randint(0, classes, (n,)).to(like.device)
    return torch.randint(0, 2, (n, classes)).to(like)


def _check_unlike(model: nn.Module, x: Tensor, classes: int, goal: Goal) -> None:
    """Refuse a network that mixes examples of unlike sizes, or only when there are many of them.

    Scaling by the smallest and largest of a batch shows in neither of few inputs from 0 to 1.
    """
    sizes = torch.logspace(-1, 1, MANY).mul(torch.tensor([1.0, -1.0]).repeat(MANY // 2)).to(x)
    many = _inputs(MANY, x.shape[1:]).to(x) * sizes.view(-1, *(1,) * (x.dim() - 1))
    y = _labels(goal, MANY, classes, x)
    try:
        finite = bool(model(many).isfinite().all())
    except Exception:  # it takes inputs from 0 to 1 alone, such as the numbers of words
        return
    if finite:
        check_gradients(model, LOSSES[goal], many, y)


def _check_full(model: nn.Module, x: Tensor, classes: int | None, goal: Goal = "classes") -> None:
    """Refuse a network that mixes examples when they are as many as training takes at a time.

    Or when one is far from the others, or with other weights than it begins with: all are drawn
    anew, so that a gate which is closed at first is open.
    """
    inputs = _inputs(micro_batch(model), x.shape[1:]).to(x)
    far = torch.cat([FAR * inputs[:1], inputs[1:]])
    drawn = copy.deepcopy(model)
    _draw_anew(drawn)
    for network, together in ((drawn, far), (model, far), (model, inputs)):
        if _agree(network, together):
            return


def _agree(model: nn.Module, together: Tensor) -> bool:
    """Refuse a network that says something else of an example alone, or of others without it.

    Returns:
        Whether it could be told: a network may not take such inputs, or give no numbers for them.
    """
    try:
        with torch.no_grad():
            scores = model(together)
            alone = model(together[:1])
            apart = torch.cat([model(part) for part in torch.split(together[1:], MANY)])
    except Exception:  # it takes inputs from 0 to 1 alone, such as the numbers of words
        return False
    if not all(t.isfinite().all() for t in (scores, alone, apart)):
        return False
    for seen, own in ((scores[:1], alone), (scores[1:], apart)):
        if not (seen - own).abs().max() <= APART * own.abs().max():
            raise Mixes(MIXES.format("what it says of an example"))
    return True


def check_once(
    model: nn.Module,
    shape: Sequence[int],
    classes: int | None = None,
    goal: Goal = "classes",
) -> None:
    """Refuse a network that cannot train privately; one that was found fine is not tried again."""
    if model not in _checked:
        check_network(model, shape, classes, goal)
        _checked.add(model)


# ---- what can be told from the layers


def _check_layers(model: nn.Module) -> None:
    """Refuse layers whose gradients example by example are not known, or not precise enough."""
    if not any(p.requires_grad for p in model.parameters()):
        raise BadInput("model: has no trainable parameters, so there is nothing to train")
    for name, module in trained_layers(model):
        if type(module) not in KNOWN:
            raise BadInput(_unknown(name, module))
        if "forward" in vars(module):
            raise BadInput(
                f"model: layer {name!r} has a forward function that is not that of "
                f"{type(module).__name__}; make it a layer without parameters of its own"
            )
    for name, p in model.named_parameters():
        if p.requires_grad and p.dtype not in (torch.float32, torch.float64):
            kind = str(p.dtype).removeprefix("torch.")
            raise BadInput(
                f"model: parameter {name!r} is {kind}; "
                "private training needs float32, so that clipping is exact enough"
            )


def _unknown(name: str, module: nn.Module) -> str:
    own = [k for k, p in module.named_parameters(recurse=False) if p.requires_grad]
    known = ", ".join(sorted(cls.__name__ for cls in KNOWN if cls not in INSIDE))
    return (
        f"model: layer {name!r} is a {type(module).__name__} with {', '.join(map(repr, own))}, "
        f"for which per-example gradients are not known; use {known}, or freeze it"
    )


def _check_chance(model: nn.Module) -> None:
    """Refuse layers that draw random numbers in training, by name."""
    for name, module in model.named_modules():
        if isinstance(module, CHANCE) and module.training and _draws(module):
            raise BadInput(
                f"model: layer {name!r} is a {type(module).__name__}: one example more shifts the "
                "random numbers of all others, so private training has none; "
                "remove it, or set p = 0"
            )


def _draws(module: nn.Module) -> bool:
    if isinstance(module, nn.RReLU):
        return module.lower != module.upper
    return isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0


# ---- what has to be tried


@contextmanager
def _trial(model: nn.Module, precision: torch.dtype) -> Iterator[nn.Module]:
    """Lend a copy of a network in train mode; what is random meanwhile leaves no trace."""
    try:
        probe = copy.deepcopy(model).to(precision).train()
    except Exception as e:  # the network may be the user's own: anything can happen
        raise BadInput(f"model: cannot be copied ({_words(e)})") from None
    device = next(probe.parameters()).device
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.enable_grad():
        torch.manual_seed(0)
        _shake(probe)
        try:
            yield probe
        except BadInput:
            raise
        except CannotClip as e:
            raise BadInput(f"model: {e}") from None
        except Exception as e:
            raise BadInput(f"model: fails on random inputs ({_words(e)})") from None


def _words(e: Exception) -> str:
    return " ".join(f"{type(e).__name__}: {e}".split())[:200]


def _shake(model: nn.Module) -> None:
    """Move weights that are zero: behind a layer that begins so, nothing could be seen."""
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad and (p.dim() == 1 or not p.any()):
                p.copy_(p + 0.1 * torch.randn_like(p))


def _draw_anew(model: nn.Module) -> None:
    """Draw all weights that are trained: what a network does with one value it may do with any."""
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.copy_(torch.randn_like(p) / math.sqrt(max(1, p[0].numel() if p.dim() else 1)))


def _inputs(n: int, shape: Sequence[int]) -> Tensor:
    """Return inputs from 0 to 1, as pixels are; half of them 0 or 1, as counts of words are."""
    x = torch.rand(n, *shape)
    return torch.where(torch.rand_like(x) < 0.5, x, x.round())


@dataclass(frozen=True)
class Looks:
    """What a network says of some inputs, looked at in several ways."""

    scores: Tensor
    again: Tensor  # of the same inputs
    shown: Tensor  # in eval mode
    alone: Tensor  # of the first one, in eval mode

    @classmethod
    def at(cls, model: nn.Module, x: Tensor) -> Looks:
        """Look at it; refuse a network that is another one afterwards."""
        for left in reversed(range(LOOKS)):
            before = Insides.of(model, x.device)
            with torch.no_grad():
                looks = cls(model(x), model(x), model.eval()(x), model(x[:1]))
            model.train()
            after = Insides.of(model, x.device)
            before.check(after, drew=not left)
            if before.chance == after.chance:
                break
        return looks


def _check_forward(model: nn.Module, x: Tensor, classes: int | None) -> Tensor:
    """Refuse scores that are not one row for each example, and a network that is not a function."""
    looks = Looks.at(model, x)
    scores = looks.scores
    _check_scores(scores, len(x), classes)
    if not close(scores, looks.again):
        raise BadInput(
            "model: for the same inputs its scores differ from one time to the next, so it keeps "
            "something of earlier batches or draws random numbers; "
            "private training needs a function"
        )
    if not close(looks.shown[:1], looks.alone):
        raise BadInput(
            "model: in eval mode what it says of one example depends on the others in the batch, "
            "so no per-example guarantee holds"
        )
    return scores


def _check_scores(scores: object, n: int, classes: int | None) -> None:
    """Refuse anything but a row of finite scores for each of ``n`` examples."""
    wanted = f"({n}, {'classes' if classes is None else classes})"
    shape = tuple(scores.shape) if isinstance(scores, Tensor) else None
    if shape is None or len(shape) != 2 or shape[0] != n or classes not in (None, shape[1]):
        got = f"as a {type(scores).__name__}" if shape is None else f"of shape {shape}"
        raise BadInput(f"model: gives scores {got} for {n} inputs; must be {wanted}")
    assert isinstance(scores, Tensor)
    if not scores.isfinite().all():
        raise BadInput("model: gives scores that are not finite for inputs from 0 to 1")


def close(a: Tensor, b: Tensor) -> bool:
    """Tell whether two tensors are the same but for rounding, measured by the largest entry."""
    return a.shape == b.shape and bool((a - b).abs().max() <= SAME * (1e-6 + a.abs().max()))


# ---- gradients


def check_gradients(
    model: nn.Module, loss: PerExampleLoss, inputs: Tensor, labels: Tensor, rows: int = 1
) -> None:
    """Refuse a network whose clipped sums are not sums of its examples' own clipped gradients.

    Two sums in a row: all examples, with a clip that bites; and in another order without the first,
    with a clip that does not. Whatever a batch leaves behind shows in the second, and so does a
    dimension that is as long as the first batch by chance.

    Args:
        model: the network, in train mode.
        loss: gives one loss for each example.
        inputs: of a few examples.
        labels: of the same examples.
        rows: that the loss shows the network for each example, as in :func:`clipped_sum`.
    """
    every = list(range(len(inputs)))
    directions, rest, norms = _sums_alone(model, partial(loss, model), inputs, labels)
    least = min(norms)
    for order, clip, wanted, unit in (
        (every, least / 2, directions, least / 2),
        (every[:0:-1], UNBOUND, rest, 1.0),
    ):
        sums, _ = clipped_sum(model, loss, inputs[order], labels[order], clip, rows=rows)
        _compare(model, sums, wanted, unit, APART * min(clip, max(norms)))


def _sums_alone(
    model: nn.Module, losses: Callable[[Tensor, Tensor], Tensor], inputs: Tensor, labels: Tensor
) -> tuple[dict[str, Tensor], dict[str, Tensor], list[float]]:
    """Return the sums of examples' gradients over their norms, of all but the first, and the norms.

    Each gradient is as large as the network, so none is kept.
    """
    directions: dict[str, Tensor] = {}
    rest: dict[str, Tensor] = {}
    norms: list[float] = []
    for i in range(len(inputs)):
        own = _alone(model, losses, inputs[i : i + 1], labels[i : i + 1])
        norm = math.hypot(*(float(g.norm()) for g in own.values()))
        if norm == 0:
            raise BadInput("model: has no gradient on random inputs, so it cannot be tried")
        norms.append(norm)
        _add(directions, own, 1 / norm)
        if i:
            _add(rest, own, min(1.0, UNBOUND / norm))
    return directions, rest, norms


def _add(to: dict[str, Tensor], gradient: dict[str, Tensor], weight: float) -> None:
    """Add a weighted gradient to a sum, which may be empty."""
    for name, g in gradient.items():
        to[name] = g * weight if name not in to else to[name].add_(g, alpha=weight)


def _alone(
    model: nn.Module, losses: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor
) -> dict[str, Tensor]:
    """Return the gradient of one example by plain autograd."""
    weights = {k: p for k, p in model.named_parameters() if p.requires_grad}
    found = torch.autograd.grad(losses(x, y).sum(), list(weights.values()), allow_unused=True)
    for name, g in zip(weights, found, strict=True):
        if g is None:
            raise BadInput(
                f"model: parameter {name!r} has no effect on the output; remove or freeze it"
            )
    return dict(zip(weights, found, strict=True))


def _compare(
    model: nn.Module,
    sums: dict[nn.Parameter, Tensor],
    wanted: dict[str, Tensor],
    unit: float,
    allowed: float,
) -> None:
    """Refuse a sum that is further than allowed from the wanted one, which is in some unit."""
    gaps = {}
    for name, p in model.named_parameters():
        if p.requires_grad:
            gaps[name] = float(sums[p].sub_(wanted[name], alpha=unit).norm())
    worst = max(gaps, key=lambda name: gaps[name])
    if not gaps[worst] <= allowed:
        raise Mixes(MIXES.format(f"an example's gradient of {worst!r}"))
