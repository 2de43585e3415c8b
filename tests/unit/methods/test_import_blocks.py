"""A method reads like its paper: it takes few names from the rest of the house, and is short."""

import ast
from pathlib import Path

import pytest

import tacit.methods

NAMES = 14  # from other files of the package; about a dozen
LINES = 150
FILES = sorted(Path(tacit.methods.__file__).parent.glob("[!_]*.py"))


def names_taken(source: str) -> list[str]:
    """Return what a file takes from the package; Python's own, numpy and torch do not count."""
    taken = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.ImportFrom | ast.Import)]
    return [
        name.name
        for line in taken
        for name in line.names
        if "tacit" in ((line.module if isinstance(line, ast.ImportFrom) else name.name) or "")
    ]


def test_names_are_counted_wherever_they_are_imported():
    source = "import math\nimport tacit.core\nfrom tacit import a, b as c\n"
    assert names_taken(source + "def f():\n    from tacit.x import (d, e)\n") == [
        "tacit.core",
        "a",
        "b",
        "d",
        "e",
    ]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_import_block_is_short(file):
    names = names_taken(file.read_text(encoding="utf-8"))
    assert len(names) <= NAMES, f"{file.name} imports {len(names)} names: {', '.join(names)}"


@pytest.mark.parametrize("name", tacit.methods.METHODS)
def test_a_method_fits_on_two_pages(name):
    own = [f for f in FILES if f.stem == name or f.stem.startswith(f"{name}_")]
    lines = {f.name: len(f.read_text(encoding="utf-8").splitlines()) for f in own}
    assert own
    assert all(n <= LINES for n in lines.values()), lines
