"""The version is said in one place, which costs nothing to read."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import tacit

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_the_package_takes_its_version_from_the_module() -> None:
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))
    assert "version" not in project["project"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "tacit.__version__"}


def test_the_changelog_has_a_section_for_it() -> None:
    changes = (PROJECT.parent / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\n## [{tacit.__version__}]" in changes


def test_the_command_tells_it_without_torch() -> None:
    code = (
        "import sys; from tacit.cli.main import call; call(['--version']);"
        "print([m for m in ('torch', 'numpy', 'tyro') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"tacit {tacit.__version__}", "[]"]


def test_plain_help_comes_without_torch() -> None:
    code = (
        "import sys; from tacit.cli.main import call;"
        "[call([name, '--help']) for name in ('methods', 'doctor')];"
        "print([m for m in ('torch', 'numpy', 'tyro') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("usage: ")] == [
        "usage: tacit methods",
        "usage: tacit doctor",
    ]
    assert lines[-1] == "[]"
