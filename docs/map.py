"""Write docs/map.md: what each file of the package is for, by the first line of its docstring."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "tacit"
PAGE = ROOT / "docs" / "map.md"
HEAD = """# The map, file by file

The first line of each file, by room. `make map` writes this page, and a test compares it with the
files.
"""


def purpose(file: Path) -> str:
    """Return the first line of a file's docstring."""
    said = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return said.partition("\n")[0].replace("|", "\\|")


def page() -> str:
    """Return the page: a table for each folder, outer folders first."""
    folders: dict[str, list[str]] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        folder = str(file.parent.relative_to(PACKAGE.parent))
        if file.name != "__init__.py":
            row = f"| `{file.name}` | {purpose(file)} |"
            folders.setdefault(folder, []).append(row)
    parts = [
        f"\n## {folder}\n\n{purpose(PACKAGE.parent / folder / '__init__.py')}\n\n"
        "| file | what it is for |\n|---|---|\n" + "\n".join(rows) + "\n"
        for folder, rows in sorted(folders.items())
    ]
    return HEAD + "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
