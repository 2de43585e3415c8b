"""Code of the user's own: named as ``module:Name`` or ``file.py:Name``, and found again.

What the owner of a process has named is trusted there, and nothing else is: a message or a file may
mention a class of it, and never makes anybody import or run anything.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from tacit.core.errors import BadInput

PREFIX = "tacit_own_"  # of the name of a module that is a single file
_ARGUMENTS = re.compile(r":[A-Za-z_]\w*=.*$", re.DOTALL)  # of what a word names, behind its name
_files: dict[str, Path] = {}  # such modules, and where they are
_sources: dict[str, bytes] = {}  # what they were when they were loaded
_packages: set[str] = set()  # top-level packages that were named


def bare(word: str) -> str:
    """Return a word without the arguments that may follow the name.

    >>> bare("net.py:Net:width=64,depth=2"), bare("net.py:Net"), bare("label:1")
    ('net.py:Net', 'net.py:Net', 'label:1')
    """
    return _ARGUMENTS.sub("", word)


def arguments(word: str) -> str:
    """Return the arguments that follow a name, as they are written.

    >>> arguments("net.py:Net:width=64,depth=2"), arguments("net.py:Net")
    ('width=64,depth=2', '')
    """
    return word[len(bare(word)) + 1 :]


def is_code(word: str) -> bool:
    """Tell whether a word names code: ``package.module:Name`` or ``file.py:Name``.

    >>> is_code("mine.py:FedAdam"), is_code("fedprox"), is_code("fedprox:mu=0.1")
    (True, False, False)
    >>> is_code("net.py:Net:width=64")
    True
    """
    where, _, name = bare(word).rpartition(":")
    return bool(where) and re.fullmatch(r"[A-Za-z_][\w.]*", name) is not None


def load(word: str, field: str) -> Any:
    """Return what a word names, and trust the module it is in from now on.

    Args:
        word: ``package.module:Name`` or ``file.py:Name``; arguments behind it are not looked at
        field: what the word was given for, to name in an error
    """
    where, _, name = bare(word).rpartition(":")
    try:
        found: Any = _module(where)
        for part in name.split("."):
            found = getattr(found, part)
    except BadInput as e:
        raise BadInput(f"{field} = {word!r}: {e}") from None
    except Exception as e:  # it is the user's code: anything can happen
        why = f"{type(e).__name__}: {' '.join(str(e).split())}"
        raise BadInput(f"{field} = {word!r}: cannot be loaded ({why})") from None
    return found


def anywhere(word: str) -> str:
    """Return a word that names code so that it holds in every folder; others as they are.

    >>> anywhere("label:1"), anywhere("/some/net.py:Net")
    ('label:1', '/some/net.py:Net')
    """
    where, _, name = bare(word).rpartition(":")
    if not is_code(word) or not where.endswith(".py"):
        return word
    return f"{Path(where).expanduser().resolve()}:{name}{word[len(bare(word)) :]}"


def trust(cls: type) -> None:
    """Trust the module of a class that the owner of this process has handed over."""
    module = cls.__module__
    if module == "__main__" and (file := _main_file()):
        _files.setdefault(_file_name(file), file)
    elif module not in _files:
        _packages.add(module.partition(".")[0])


def word_of(cls: type) -> str:
    """Return the word by which a class is found again, in any folder."""
    module = wire_name(cls.__module__)
    where = str(_files[module]) if module in _files else module
    return f"{where}:{cls.__qualname__}"


def wire_name(module: str) -> str:
    """Return a module's name in messages and files: a script has its file's, not ``__main__``."""
    file = _main_file() if module == "__main__" else None
    return _file_name(file) if file else module


def stem(module: str) -> str:
    """Return what a module is called however it was found: as a file, imported, or as a script.

    >>> stem("tacit_own_mine"), stem("mine"), stem("package.mine")
    ('mine', 'mine', 'mine')
    """
    return module.rpartition(".")[2].removeprefix(PREFIX)


def trusted(name: str) -> ModuleType | None:
    """Return a module of this package or one that was named here; others are never looked at."""
    package = name.partition(".")[0]
    if package == "tacit":  # as most are
        return sys.modules.get(name)
    if package in _packages or name in _files:
        main = sys.modules["__main__"] if name == wire_name("__main__") else None
        return main or sys.modules.get(name)
    return None


def named() -> list[str]:
    """Return what was named in this process, for :func:`load_again` in another one."""
    return [*(str(file) for file in _files.values()), *_imported()]


def load_again(names: Iterable[str]) -> None:
    """Load in this process what was named in the one that started it.

    What is not there any more, or fails this time, is left out: whoever needs it says so.
    """
    for name in names:
        with contextlib.suppress(Exception):
            _module(name)


def _imported() -> list[str]:
    ours = [name for name in sys.modules if name.partition(".")[0] in _packages - {"__main__"}]
    return sorted(ours)


def _module(where: str) -> ModuleType:
    """Return a module by its name or its file."""
    if where.endswith(".py"):
        return _from_file(Path(where))
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    module = importlib.import_module(where)
    _packages.add(where.partition(".")[0])
    return module


def _from_file(path: Path) -> ModuleType:
    file = path.expanduser().resolve()
    name = _file_name(file)
    if not file.is_file():
        raise BadInput(f"there is no file {path}")
    if _files.setdefault(name, file) != file and not _same_source(name, file):
        raise BadInput(f"{_files[name]} has the same name; rename one of the two")
    if (known := trusted(name)) is not None:
        return known
    return _execute(name, file)


def _same_source(name: str, file: Path) -> bool:
    """Tell whether a file is a copy, named after its contents, of one that was loaded."""
    copy = re.search(r"-[0-9a-f]{8}$", file.stem) is not None
    return copy and trusted(name) is not None and _sources.get(name) == file.read_bytes()


def _execute(name: str, file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    _sources[name] = file.read_bytes()
    if (folder := str(file.parent)) not in sys.path:
        sys.path.append(folder)  # for what it imports from beside it
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        del _files[name]
        raise
    return module


def _file_name(file: Path) -> str:
    return PREFIX + re.sub(r"\W", "_", file.stem)


def _main_file() -> Path | None:
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return _resolved(file) if file else None


@cache  # every message asks, and to resolve a path asks the file system
def _resolved(file: str) -> Path:
    return Path(file).resolve()
