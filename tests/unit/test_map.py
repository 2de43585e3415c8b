"""The map of the rooms is that of the files."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("docs_map", ROOT / "docs" / "map.py")
docs_map = importlib.util.module_from_spec(spec)
spec.loader.exec_module(docs_map)


def test_every_file_says_what_it_is_for():
    silent = [f for f in docs_map.PACKAGE.rglob("*.py") if len(docs_map.purpose(f)) < 10]
    assert [str(f) for f in silent] == []


def test_the_map_is_that_of_the_files():
    written = docs_map.PAGE.read_text(encoding="utf-8")
    assert written == docs_map.page(), "the map is out of date: make map"


def test_every_room_is_in_the_table_of_contributors():
    rooms = {p.parent.name for p in docs_map.PACKAGE.glob("*/__init__.py")} | {"codec"}
    table = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert [room for room in sorted(rooms) if f"| `{room}` |" not in table] == []
