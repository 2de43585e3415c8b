"""In which precision a network computes: single, or bfloat16 where processors are made for it.

In bfloat16 a network's forward pass, and so its backward pass, rounds its factors to 8 significant
bits and adds their products in single precision. Weights, gradients, losses, steps and all that is
sent stay in single precision.
"""

from __future__ import annotations

import copy
import faulthandler
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tacit.core import BadInput
from tacit.core.processor import capabilities

Precision = Literal["f32", "bf16"]
KINDS = {"avx512_bf16": "AVX512-BF16", "amx_bf16": "AMX"}  # what torch calls them, and people
WORTH = 1.1  # times as fast as f32: less is not worth other results
TURNS, EXAMPLES = 5, 32  # of the trial, and in each of its steps
_GAINS: dict[tuple[str, str, str, tuple[int, ...]], float | None] = {}  # of what was tried
NOT_PRIVATELY = "each example's gradient is clipped in single precision only; allowed: f32, auto"


def made_for_bf16() -> list[str]:
    """Return what the processor says it has for bfloat16; [] if it has nothing."""
    has = capabilities()
    return [name for kind, name in KINDS.items() if has.get(kind)]


def chosen(
    wanted: str, model: nn.Module, shape: tuple[int, ...], *, clips: bool, device: str = "cpu"
) -> Precision:
    """Return what a run computes in.

    Args:
        wanted: f32, bf16, or auto: bf16 where it is faster and may be used
        model: the run's network
        shape: of its inputs
        clips: whether examples' gradients are clipped one by one
        device: where the run computes
    """
    if wanted == "f32" or (wanted == "auto" and clips):
        return "f32"
    if clips:
        raise BadInput(f"precision = 'bf16': {NOT_PRIVATELY}")
    faster = gain(model, shape) if device == "cpu" else _of_gpu()
    if wanted == "auto":
        return "bf16" if faster is not None and faster > WORTH else "f32"
    if faster is None:
        raise BadInput("precision = 'bf16': this machine cannot compute it; allowed: f32, auto")
    if faster < 1:
        times = f"{faster:.1f} times as fast as f32 for this network here"
        print(f"warning: precision = 'bf16' is {times}", file=sys.stderr)
    return "bf16"


def _of_gpu() -> float | None:
    """Return a gain where the GPU computes in bfloat16; which one is not tried."""
    return 2 * WORTH if torch.cuda.is_bf16_supported(including_emulation=False) else None


def gain(model: nn.Module, shape: tuple[int, ...]) -> float | None:
    """Return how much faster this processor trains a network in bfloat16, or None if it cannot.

    Networks that are alike are tried once: two trials of one may end on two sides of what it takes.
    """
    kind = type(model)
    alike = (kind.__module__, kind.__qualname__, repr(model), shape)
    if alike not in _GAINS:
        _GAINS[alike] = _tried(model, shape)
    return _GAINS[alike]


def _tried(model: nn.Module, shape: tuple[int, ...]) -> float | None:
    """Try it in a process of its own.

    A virtual machine may announce instructions that end a process which uses them.
    """
    if not hasattr(os, "fork"):  # not on this platform: nothing can be tried
        return None
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        faulthandler.disable()  # what ends it is no fault of the program
        try:
            os.write(theirs, repr(_trial(model, shape)).encode())
        finally:
            os._exit(0)
    os.close(theirs)
    with open(ours, "rb") as answer:
        said = answer.read()
    os.waitpid(child, 0)
    return float(said) if said else None


def _trial(model: nn.Module, shape: tuple[int, ...]) -> float:
    """Train a few steps in both precisions, in turns, and return the ratio of the fastest ones."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    plain, fast = copy.deepcopy(model), copy.deepcopy(model)
    compute_in("bf16", fast)
    inputs = torch.rand(EXAMPLES, *shape)
    if inputs.dim() == 4:
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    pairs = [(_step(plain, inputs), _step(fast, inputs)) for _ in range(TURNS)]
    return min(a for a, _ in pairs) / min(b for _, b in pairs)


def _step(model: nn.Module, inputs: Tensor) -> float:
    """Return the processor's seconds for a forward and a backward pass."""
    began = time.process_time()
    torch.autograd.backward(model(inputs).square().mean())
    return time.process_time() - began


@dataclass(frozen=True)
class InBf16:
    """The forward function of a network that computes in bfloat16 and answers in float32."""

    forward: Callable[..., Any]

    def __call__(self, *inputs: Tensor) -> Any:
        """Return what the network makes of its inputs."""
        with torch.autocast(inputs[0].device.type, torch.bfloat16):
            out = self.forward(*inputs)
        return out.float() if out.dtype == torch.bfloat16 else out


def compute_in(precision: Precision, model: nn.Module) -> None:
    """Let a network, and whatever copies are made of it, compute in a precision from now on."""
    if precision == "bf16" and not isinstance(model.forward, InBf16):
        model.forward = InBf16(model.forward)
