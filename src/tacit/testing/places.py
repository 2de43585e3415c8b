"""Where in a method's code something is written to: the line to mend."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

CHANGING = ("append", "extend", "insert", "add", "update", "setdefault", "pop", "remove", "clear")


def written_at(name: str, modules: Iterable[ModuleType]) -> str:
    """Return the first line inside a function that writes to a name, as `` (mine.py:12)``.

    Nothing where there is none to be found: the name may be made up at run time.
    """
    for module in modules:
        lines = [node.lineno for node in _in_functions(module) if _writes(node, name)]
        if lines:
            return f" ({Path(str(module.__file__)).name}:{min(lines)})"
    return ""


def _in_functions(module: ModuleType) -> Iterator[ast.expr]:
    """Yield all expressions of all functions of a module."""
    try:
        tree = ast.parse(inspect.getsource(module))
    except (OSError, TypeError, SyntaxError):  # typed in at a prompt, or not there any more
        return
    functions = (f for f in ast.walk(tree) if isinstance(f, ast.FunctionDef))
    for function in functions:
        yield from (node for node in ast.walk(function) if isinstance(node, ast.expr))


def _writes(node: ast.expr, name: str) -> bool:
    """Tell whether an expression assigns to a name, to something in it, or changes it."""
    if isinstance(node, ast.Call):
        return _calls(node, name)
    if isinstance(node, ast.Subscript):
        stores = isinstance(node.ctx, ast.Store | ast.Del)
        return stores and (_named(node.value) == name or _text(node.slice) == name)
    if isinstance(node, ast.Name | ast.Attribute):
        return isinstance(node.ctx, ast.Store | ast.Del) and _named(node) == name
    return False


def _calls(node: ast.Call, name: str) -> bool:
    """Tell whether a call is ``setattr`` of a name, or a method that changes what it stands for."""
    if (_named(node.func) or "").endswith(("setattr", "__setattr__")):
        return any(_text(arg) == name for arg in node.args)
    method = node.func if isinstance(node.func, ast.Attribute) else None
    return method is not None and method.attr in CHANGING and _named(method.value) == name


def _named(node: ast.expr) -> str | None:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _text(node: ast.expr) -> object:
    return node.value if isinstance(node, ast.Constant) else None
