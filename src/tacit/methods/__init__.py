"""One file per published method. May import core, privacy, local, data; never engines."""

from __future__ import annotations

from typing import Any

from tacit.methods.centralised import Centralised
from tacit.methods.fedavg import FedAvg
from tacit.methods.fedmix import FedMix
from tacit.methods.fednova import FedNova
from tacit.methods.fedprox import FedProx
from tacit.methods.local import Local
from tacit.methods.scaffold import Scaffold

METHODS: dict[str, type[Any]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "scaffold": Scaffold,
    "fednova": FedNova,
    "fedmix": FedMix,
    "centralised": Centralised,
    "local": Local,
}


def name_of(method: object) -> str:
    """Return a method's name in the registry."""
    return next(name for name, cls in METHODS.items() if cls is type(method))
