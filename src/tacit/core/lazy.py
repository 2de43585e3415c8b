"""Names that a package exports, each written once and imported when it is first used."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any


def lazily(package: str, file: str) -> tuple[Callable[[str], Any], list[str]]:
    """Return ``__getattr__`` and ``__all__`` of a package, from its imports ``if TYPE_CHECKING``.

    A type checker reads these imports and never runs them; at run time they are the table of what
    there is and where, so that no other list has to agree with them.

    Args:
        package: its ``__name__``
        file: its ``__file__``
    """
    where = _imports(Path(file).read_text(encoding="utf-8"))

    def find(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if where[name] == package:  # a module of its own
            return importlib.import_module(f"{package}.{name}")
        return getattr(importlib.import_module(where[name]), name)

    return find, sorted(where)


def _imports(source: str) -> dict[str, str]:
    """Return the module of each name that is imported under the first ``if`` of a file."""
    block = next(part for part in ast.parse(source).body if isinstance(part, ast.If))
    imports = [line for line in block.body if isinstance(line, ast.ImportFrom)]
    return {name.name: str(line.module) for line in imports for name in line.names}
