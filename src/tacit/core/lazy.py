"""Names that a package exports, each written once and imported when it is first used."""

from __future__ import annotations

TYPE_CHECKING = False  # as that of typing, whose import takes its time
if TYPE_CHECKING:
    from collections.abc import Callable


def lazily(package: str, file: str) -> Callable[[str], object]:
    """Return ``__getattr__`` of a package, from its imports ``if TYPE_CHECKING``.

    A type checker reads these imports and never runs them; at run time they are the table of what
    there is and where, so that no other list has to agree with them. They are read when the first
    name is asked for: a command that has hardly begun can be interrupted without a traceback.

    Args:
        package: its ``__name__``
        file: its ``__file__``
    """
    where: dict[str, str] = {}

    def find(name: str) -> object:
        import importlib

        where.update(where or _imports(file))
        if name == "__all__":
            return sorted(where)
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if where[name] == package:  # a module of its own
            return importlib.import_module(f"{package}.{name}")
        return getattr(importlib.import_module(where[name]), name)

    return find


def _imports(file: str) -> dict[str, str]:
    """Return the module of each name that is imported under the first ``if`` of a file."""
    import ast

    with open(file, encoding="utf-8") as text:
        tree = ast.parse(text.read())
    block = next(part for part in tree.body if isinstance(part, ast.If))
    imports = [line for line in block.body if isinstance(line, ast.ImportFrom)]
    return {name.name: str(line.module) for line in imports for name in line.names}
