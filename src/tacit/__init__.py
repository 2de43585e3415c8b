"""Tacit: private federated learning on data that does not look alike, with a privacy figure you can trust."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacit.run.compare import compare
    from tacit.run.conduct import Run, resume, run

__version__ = "0.1.0"
__all__ = ["Run", "compare", "resume", "run"]


def __getattr__(name: str) -> Any:
    """Import the public functions when they are first used, so that ``tacit --help`` need not wait for torch."""
    if name == "compare":
        from tacit.run import compare as module
    elif name in ("Run", "resume", "run"):
        from tacit.run import conduct as module  # type: ignore[no-redef]
    else:
        raise AttributeError(f"module 'tacit' has no attribute {name!r}")
    return getattr(module, name)
