"""From an experiment to a run directory, and several of them side by side. May import everything below.

The room and the function of the same name are one: ``tacit.run("fedavg")`` calls :func:`tacit.run.conduct.run`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from tacit.run.conduct import run

        return run(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
