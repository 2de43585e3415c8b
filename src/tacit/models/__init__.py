"""Small networks that privacy can train. May import core."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from tacit.core import BadInput, check, pairs_of, plain_value, seed_for
from tacit.core.own_code import arguments, bare
from tacit.models.architecture import MODELS, Architecture

__all__ = ["MODELS", "Architecture", "build", "choose", "skeleton"]


def choose(name: str, shape: tuple[int, ...]) -> str:
    """Return what ``auto`` stands for: DA-FL's CNN for images from 16x16 on, else a small MLP."""
    if name != "auto":
        return name
    return "dafl-cnn" if len(shape) == 3 and min(shape[1:]) >= 16 else "mlp"


def build(name: str, shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """Return a freshly initialised network, the same for the same seed.

    ``module:Class`` is the user's own; arguments follow the name, as in ``net.py:Net:width=64``.
    """
    name = choose(name, shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(seed, "model"))
        ours = bare(name) in MODELS
        model = _ours(name, shape, classes) if ours else _own(name, shape, classes)
        _check_buffers(name, model)
        # lazy layers are made here, so within the same seed
        _check_output(name, model, shape, classes)
    _check_trainable(name, model, shape)
    return model


def skeleton(name: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return a network of this package without its numbers, for a name that nobody vouches for.

    No code of anybody's is run, and no memory is taken, however large it would be.
    """
    if bare(name) not in MODELS:
        check.choice("model", name, MODELS)
    with torch.device("meta"):
        return _ours(name, shape, classes)


def given_to(name: str) -> dict[str, Any]:
    """Return the arguments that a word gives to a network.

    >>> given_to("net.py:Net:width=64,act=tanh")
    {'width': 64, 'act': 'tanh'}
    """
    parts = [pair.partition("=") for pair in pairs_of(arguments(name))]
    return {key: plain_value(value) for key, _, value in parts}


def _check_arguments(name: str, make: Callable[..., object], given: Mapping[str, object]) -> None:
    """Refuse arguments that a network does not take."""
    wanted = inspect.signature(make).parameters
    if any(p.kind is p.VAR_KEYWORD for p in wanted.values()):
        return
    free = [key for key in wanted if key not in ("shape", "classes")]
    for key in given:
        if key not in free:
            raise BadInput(
                f"model.{key}: {bare(name)} takes {', '.join(free) if free else 'no arguments'}"
            )


def _ours(name: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    made, given = MODELS[bare(name)], given_to(name)
    least = made.least
    if least and (len(shape) != 3 or min(shape[1:]) < least):
        what = "x".join(map(str, shape))
        raise BadInput(
            f"model = {name!r}: needs images of at least {least}x{least}; these inputs are {what}"
        )
    _check_arguments(name, made.make, given)
    try:
        return made.make(shape, classes, **given)
    except (TypeError, ValueError, RuntimeError) as e:
        why = " ".join(str(e).split())
        raise BadInput(f"model = {name!r}: cannot be made ({type(e).__name__}: {why})") from None


def _own(name: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return a network of the user's own class, from a file or a module.

    It may take ``shape`` and ``classes``, and arguments of its own.
    """
    make, given = MODELS.own(name), given_to(name)
    try:
        wanted = inspect.signature(make).parameters
        facts = {"shape": shape, "classes": classes}
        _check_arguments(name, make, given)
        model = make(**{k: v for k, v in facts.items() if k in wanted}, **given)
    except BadInput:
        raise
    except Exception as e:  # it is the user's code: anything can happen
        raise BadInput(
            f"model = {name!r}: cannot be made ({type(e).__name__}: {' '.join(str(e).split())})"
        ) from None
    if not isinstance(model, nn.Module):
        raise BadInput(
            f"model = {name!r}: must make a torch.nn.Module, not a {type(model).__name__}"
        )
    return model


def _check_buffers(name: str, model: nn.Module) -> None:
    """Refuse batch norm, which mixes examples, and running statistics, which nobody averages."""
    for part, module in model.named_modules():
        running = isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats
        if running or isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise BadInput(
                f"model = {name!r}: layer {part!r} is a {type(module).__name__}, which mixes "
                "examples or keeps running statistics; use nn.GroupNorm"
            )


def _check_trainable(name: str, model: nn.Module, shape: tuple[int, ...]) -> None:
    """Refuse a network with nothing to train, or with parameters that do not act on its output."""
    weights = {k: p for k, p in model.named_parameters() if p.requires_grad}
    if not weights:
        raise BadInput(f"model = {name!r}: has no trainable parameters")
    scores = model(torch.zeros(1, *shape)).sum()
    for part, g in zip(
        weights, torch.autograd.grad(scores, list(weights.values()), allow_unused=True), strict=True
    ):
        if g is None:
            raise BadInput(
                f"model = {name!r}: parameter {part!r} has no effect on the output; "
                "remove or freeze it"
            )


def _check_output(name: str, model: nn.Module, shape: tuple[int, ...], classes: int) -> None:
    try:
        with torch.no_grad():
            got = tuple(model.eval()(torch.zeros(2, *shape)).shape)
    except Exception as e:  # the network may be the user's own: anything can happen
        why = f"{type(e).__name__}: {e}".splitlines()[0]
        raise BadInput(f"model = {name!r}: does not take inputs of shape {shape} ({why})") from None
    if got != (2, classes):
        raise BadInput(
            f"model = {name!r}: gives scores of shape {got} for 2 inputs; "
            f"{classes} classes need (2, {classes})"
        )
