"""The documentation can be read in a terminal, and says what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


def prose(text: str) -> list[str]:
    """Return a page's lines outside of tables and code blocks."""
    outside = re.sub(r"^ *```.*?^ *```", "", text, flags=re.M | re.S)
    lines = outside.splitlines()
    return [line for line in lines if not (line.startswith("    ") or line.lstrip()[:1] == "|")]


@pytest.mark.parametrize("name", NAMES)
def test_lines_of_prose_have_100_columns_at_most(name: str) -> None:
    lines = prose((ROOT / name).read_text(encoding="utf-8"))
    assert [line for line in lines if len(line) > 100] == []


def test_prose_is_what_is_outside_of_tables_and_code() -> None:
    text = "one\n```\ncode\n```\ntwo\n\n    code, too\n| a | table |\n- three\n  ```sh\n  more\n  ```\n"
    assert [line for line in prose(text) if line] == ["one", "two", "- three"]


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    page = ROOT / name
    text = "\n".join(prose(page.read_text(encoding="utf-8")))
    links = re.findall(r"\]\((?!https?:|mailto:|#)([^)#\s]+)", text)
    assert [link for link in links if not (page.parent / link).exists()] == []
