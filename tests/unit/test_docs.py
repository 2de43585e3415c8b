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
    text = (
        "one\n```\ncode\n```\ntwo\n\n    code, "
        "too\n| a | table |\n- three\n  ```sh\n  more\n  ```\n"
    )
    assert [line for line in prose(text) if line] == ["one", "two", "- three"]


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    page = ROOT / name
    text = "\n".join(prose(page.read_text(encoding="utf-8")))
    links = re.findall(r"\]\((?!https?:|mailto:|#)([^)#\s]+)", text)
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_tests_that_sharp_edges_name_are_there() -> None:
    text = (ROOT / "docs/sharp-edges.md").read_text(encoding="utf-8")
    edges = re.split(r"^### ", text, flags=re.M)[1:]
    assert all(re.search(r"^\*(Fatal|Serious|Loss)\b", edge.split("\n")[2]) for edge in edges)
    assert all(re.search(r"`tests/|\]\(", edge) for edge in edges), "each names a page or a test"
    named = re.findall(r"`(tests/[^`]*)`", text)
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_promises_about_sites_name_tests_that_are_there() -> None:
    text = (ROOT / "docs/sites.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (.*?)$(.*?)(?=^## |\Z)", text, flags=re.M | re.S))
    assert [title for title, said in sections.items() if "`tests/" not in said] == []
    events = [row for row in sections["When something fails"].splitlines() if row[:2] == "| "]
    assert all("`tests/" in row for row in events[1:])
    for path, test in re.findall(r"`(tests/[^`:]*)(?:::([^`]*))?`", text):
        assert (ROOT / path).exists(), path
        assert f"def {test}(" in (ROOT / path).read_text(encoding="utf-8") or not test, test


@pytest.mark.parametrize("name", NAMES)
def test_links_to_headings_lead_to_one(name: str) -> None:
    page = ROOT / name
    text = "\n".join(prose(page.read_text(encoding="utf-8")))
    for path, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)", text):
        there = (page.parent / path if path else page).read_text(encoding="utf-8")
        assert anchor in map(anchor_of, re.findall(r"^#+ (.*)$", there, flags=re.M))


def anchor_of(heading: str) -> str:
    """Return the name that a heading has in links."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def test_the_anchor_of_a_heading() -> None:
    found = anchor_of("Client level: replaced, or `zeroed out`")
    assert found == "client-level-replaced-or-zeroed-out"


SOURCE = ROOT / "src" / "tacit"
MODULES = [str(file.relative_to(SOURCE)) for file in sorted(SOURCE.rglob("*.py"))]


def rooms_of_the_map() -> dict[str, list[str]]:
    """Return each room in CONTRIBUTING's table with the files to begin with."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \d+ \| `(\w+)` \|.*\| (.*) \|$", text, flags=re.M)
    return {room: re.findall(r"`([\w.]+)`", files) for room, files in rows}


def test_the_map_has_every_room_and_no_other() -> None:
    rooms = {Path(name).parts[0].removesuffix(".py") for name in MODULES}
    rooms -= {"__init__", "__main__"}
    assert rooms <= set(rooms_of_the_map())
    assert set(rooms_of_the_map()) <= rooms


def test_files_that_the_map_names_are_there() -> None:
    for room, files in rooms_of_the_map().items():
        folder = SOURCE / room if (SOURCE / room).is_dir() else SOURCE
        assert [file for file in files if not (folder / file).exists()] == []


@pytest.mark.parametrize("name", MODULES)
def test_every_file_says_in_its_first_line_what_it_is_for(name: str) -> None:
    first = (SOURCE / name).read_text(encoding="utf-8").partition("\n")[0]
    assert re.match(r'"""\S.{4,}', first)
