"""A network as it was in the beginning: no task meets what another one left."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn


class Pristine:
    """A network's first parameters and buffers, and where in it they belong."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._first = {name: t.detach().clone() for name, t in _tensors(model)}
        self._modules = list(model.modules())
        # what a network consists of, so that a look tells whether anything was exchanged
        self._parts = [(part, list(part.items())) for m in self._modules for part in _parts(m)]
        self._there = [t for _, t in _tensors(model)]
        self._usual = all(type(m).train is nn.Module.train for m in self._modules)

    def restore(self) -> nn.Module:
        """Return the network as it was, ready to be trained."""
        there, first = self._there, list(self._first.values())
        if not self._whole():
            now = dict(_tensors(self.model))
            there, first = list(now.values()), [self._first[name] for name in now]
        if there:
            with torch.no_grad():
                torch._foreach_copy_(there, first)
        ready = self._usual and self._whole() and all(m.training for m in self._modules)
        return self.model if ready else self.model.train()

    def _whole(self) -> bool:
        """Tell whether the network consists of the same objects as in the beginning."""
        return all(
            len(part) == len(items) and all(part.get(name) is thing for name, thing in items)
            for part, items in self._parts
        )


def _parts(m: nn.Module) -> Iterator[dict[str, Any]]:
    yield from (m._modules, m._parameters, m._buffers)


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()
