"""The examples of docs/data.md about tables are run as they stand."""

import re
import shlex
import tomllib
from pathlib import Path

import numpy as np
import pytest
import wards

from tacit.cli.main import call
from tacit.data import Schema, read_table

PAGE = (Path(__file__).parents[2] / "docs/data.md").read_text(encoding="utf-8")
OUTCOME = {"name": "outcome", "kind": "category", "categories": ["well", "ill"]}
A_SITE = [
    "--server",
    "127.0.0.1:9",
    "--name",
    "a",
    "--insecure",
    "--accept",
    "anything",
]


def blocks(heading):
    """Return the code of a section, by its language."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"^```(\w+)\n(.*?)^```", section, flags=re.M | re.S))


TABLES = blocks("Tables as they are")


@pytest.fixture
def clinic(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wards.ward(tmp_path)
    columns = [c for c in wards.COLUMNS if c != "outcome"]
    wards.ward(tmp_path, wards.patients(5, seed=1), columns, name="new.csv")
    return tmp_path


def test_commands_about_tables(clinic, capsys):
    draft, run, join = TABLES["sh"].splitlines()
    words, _, file = draft.partition("#")[0].partition(" > ")
    assert call(words.split()[1:]) == 0
    Path(file.strip()).write_text(capsys.readouterr().out)
    assert call([*run.split()[1:], "--rounds", "1", "--engine", "serial"]) == 0
    capsys.readouterr()
    given = join.partition("#")[0].replace("...", "").split()
    assert call([*given[1:], *A_SITE]) == 2
    assert "draft" in capsys.readouterr().err  # as the page says


def test_python_about_tables(clinic):
    wards.schema(clinic)
    known = {}
    exec(compile(TABLES["python"], "data.md", "exec"), known)
    width = len(known["schema"].features)
    assert known["made"].x.shape == (60, width)
    assert known["new"].shape == (5, width)
    assert known["schema"].classes == tuple(OUTCOME["categories"])


def test_the_schema_of_the_page_means_what_it_says(tmp_path):
    raw = tomllib.loads(TABLES["toml"])
    schema = Schema.from_dict({**raw, "column": [*raw["column"], OUTCOME]})
    (tmp_path / "t.csv").write_text("weight [kg],outcome\n300,ill\n75,well\nUnknown,ill\n999,ill\n")
    x = schema.encode(read_table(tmp_path / "t.csv")).x
    assert x.tolist() == [[1, 0], [-0.5, 0], [0, 1], [1, 0]]  # the second is: missing
    (tmp_path / "t.csv").write_text("weight [lb],outcome\n300,ill\n")
    with pytest.raises(Exception, match="weight"):
        schema.encode(read_table(tmp_path / "t.csv"))


@pytest.mark.parametrize("task", ["regression", "multilabel"])
def test_plain_tables_of_numbers_and_labels(clinic, task):
    flags = re.search(rf"`(--task {task} .*?)`", PAGE.replace("\n", " "))[1]
    rng = np.random.default_rng(0)
    lines = [f"{a:.3f},{a / 2:.3f},{a > 0:d},{a > 1:d}" for a in rng.normal(size=60)]
    (clinic / "t.csv").write_text("size,price,ill,old\n" + "\n".join(lines))
    drop = {"regression": "ill,old", "multilabel": "price"}[task]
    more = f"--data t.csv --drop {drop} --clients 2 --rounds 1 --engine serial --out run"
    assert call(["run", "fedavg", *shlex.split(flags), *more.split()]) == 0
    assert call(["predict", "run", "t.csv", "--out", "answers.csv"]) == 0
    head = {"regression": "row,price", "multilabel": "row,ill,old,p(ill),p(old)"}[task]
    assert Path("answers.csv").read_text().splitlines()[0] == head


@pytest.mark.slow  # three methods on all digits
def test_commands_about_features(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for line in blocks("Features")["sh"].splitlines():
        words = line.partition("#")[0].split()[1:]
        assert call([*words, "--rounds", "1", "--engine", "serial"]) == 0, line
