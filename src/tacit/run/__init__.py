"""From an experiment to a run directory, and several of them side by side.

May import everything below.

The room and the function of the same name are one: ``tacit.run("fedavg")`` calls
:func:`tacit.run.conduct.run`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(
        self,
        method: Any,
        *,
        data: Any = "digits",
        out: Any = None,
        watch: Any = None,
        **setting: Any,
    ) -> Any:
        """Run a method, such as ``"fedprox:mu=0.1"``; all keywords.

        ``help(tacit.run.conduct.run)``.
        """
        from tacit.run.conduct import run

        return run(method, data=data, out=out, watch=watch, **setting)


sys.modules[__name__].__class__ = _Callable
