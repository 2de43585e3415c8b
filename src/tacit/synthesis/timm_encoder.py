"""Encoders of the package timm, trained by others on public images: ``--features timm:NAME``.

The package is an extra, and its weights are fetched by it from where it keeps them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.core import BadInput, Json

PREFIX = "timm:"
USUAL = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # mean and deviation of ImageNet's colours
SIDE = 224  # pixels that a network takes which does not say


class Pretrained(nn.Module):
    """A network of timm without its last layer: images in 0..1 to features."""

    def __init__(self, network: nn.Module, said: Json) -> None:
        super().__init__()
        self.network = network
        self.side = tuple(said.get("input_size", (3, SIDE, SIDE)))[1:]
        mean, std = said.get("mean", USUAL[0]), said.get("std", USUAL[1])
        self.mean, self.std = (torch.tensor(v).view(-1, 1, 1) for v in (mean, std))

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, k); grey images have three equal colours, and all get the network's size."""
        x = x.expand(-1, 3, -1, -1)
        x = F.interpolate(x, self.side, mode="bilinear", antialias=True)
        made: Tensor = self.network((x - self.mean) / self.std)
        return made.flatten(1)


def load(word: str, shape: tuple[int, ...]) -> Pretrained:
    """Return the encoder that ``timm:NAME`` means, or refuse it."""
    where = f"features = {word!r}"
    if len(shape) != 3 or shape[0] not in (1, 3):
        these = "x".join(map(str, shape))
        raise BadInput(f"{where}: needs images of 1 or 3 channels; these inputs are {these}")
    try:
        import timm
    except ImportError:
        raise BadInput(f"{where}: needs the package timm: tacit[timm]") from None
    name = word.removeprefix(PREFIX)
    if name not in timm.list_models(pretrained=True):
        raise BadInput(f"{where}: timm has no network of this name with weights")
    try:
        network = timm.create_model(name, pretrained=True, num_classes=0).eval()
    except Exception as e:  # weights that cannot be fetched, in words of another package
        why = " ".join(f"{type(e).__name__}: {e}".split())[:200]
        raise BadInput(f"{where}: cannot be loaded ({why})") from None
    return Pretrained(network, dict(network.pretrained_cfg)).eval().requires_grad_(False)
