"""Tacit.

Private federated learning on non-IID data, with a privacy figure you can trust.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacit import data, privacy
    from tacit.core import (
        BadInput,
        Client,
        Cohort,
        Everyone,
        Fixed,
        Method,
        Params,
        Poisson,
        Release,
        Reply,
        check_number,
        mean,
        public,
        some,
        task,
    )
    from tacit.experiment.compare import compare
    from tacit.experiment.result import Run
    from tacit.experiment.start import resume, run
    from tacit.experiment.sweep import sweep
    from tacit.local.sgd import SGD, Trains
    from tacit.privacy.rules import Rule

__version__ = "0.1.0"
__all__ = [
    "SGD",
    "BadInput",
    "Client",
    "Cohort",
    "Everyone",
    "Fixed",
    "Method",
    "Params",
    "Poisson",
    "Release",
    "Reply",
    "Rule",
    "Run",
    "Trains",
    "check_number",
    "compare",
    "data",
    "mean",
    "privacy",
    "public",
    "resume",
    "run",
    "some",
    "sweep",
    "task",
    "testing",
]

_WHERE = {
    "tacit.experiment.result": "Run",
    "tacit.experiment.start": "resume run",
    "tacit.experiment.compare": "compare",
    "tacit.experiment.sweep": "sweep",
    "tacit.local.sgd": "SGD Trains",
    "tacit.privacy.rules": "Rule",
    "tacit.core": (
        "BadInput Client Cohort Everyone Fixed Method Params Poisson Release Reply check_number "
        "mean public some task"
    ),
}
_MODULES = {name: module for module, names in _WHERE.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Import what is public when it is first used: ``tacit --help`` need not wait for torch."""
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    if name in __all__:
        return importlib.import_module(f"tacit.{name}")
    raise AttributeError(f"module 'tacit' has no attribute {name!r}")
