"""Tacit.

Private federated learning on data that does not look alike, with a privacy figure you can trust.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacit import data, privacy
    from tacit.run.compare import compare
    from tacit.run.conduct import Run, resume, run
    from tacit.run.sweep import sweep

__version__ = "0.1.0"
__all__ = ["Run", "compare", "data", "privacy", "resume", "run", "sweep"]

_WHERE = {
    "Run": "tacit.run.conduct",
    "resume": "tacit.run.conduct",
    "compare": "tacit.run.compare",
    "sweep": "tacit.run.sweep",
}


def __getattr__(name: str) -> Any:
    """Import what is public when it is first used, so that ``tacit --help`` need not wait for torch."""
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    if name in __all__:
        return importlib.import_module(f"tacit.{name}")
    raise AttributeError(f"module 'tacit' has no attribute {name!r}")
