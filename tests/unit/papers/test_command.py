"""`tacit reproduce` as a user types it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tacit.cli.main import call
from tacit.cli.reproductions import _hours
from tacit.experiment.config import read_experiment
from tacit.experiment.reproduce import Reproduction, experiments_of
from tacit.papers.published import paper


def test_cells_are_listed_with_what_is_published(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["reproduce", "ldp_fl/table3", "--only", "mnist/150", "--cells"]) == 0
    out = capsys.readouterr().out
    assert "LDP-FL, table3: Performance loss" in out
    assert "mnist/150/cl_fl        1.85" in out


def test_a_table_by_formula_is_made_at_once(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Published, measured and difference; the results and the page are written."""
    out = tmp_path / "out"
    args = ["ldp_fl/table3", "--only", "mnist/150/ldp_fl", "--scale", "full", "--out", str(out)]
    assert call(["reproduce", *args]) == 0
    said = capsys.readouterr().out
    assert "mnist/150/ldp_fl       1.72     20.03      +18.31" in said
    assert "not measured: the performance loss of LDP-FL is below" in said
    assert (out / "results" / "ldp_fl-table3-full.jsonl").read_text().count("\n") == 1
    assert "| mnist/150/ldp_fl | 1.72 | 20.03 |" in (out / "ldp_fl-table3-full/page.md").read_text()


def test_ctrl_c_names_the_command_that_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Which is not `tacit resume`: the folder is that of many runs."""

    def pressed(work: Reproduction, watch: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Reproduction, "conduct", pressed)
    args = ["kd_dpfl/figure4", "--only", "mnist", "--out", str(tmp_path)]
    assert call(["reproduce", *args]) == 130
    said = "tacit: stopped; the same command goes on where it was"
    assert capsys.readouterr().err.splitlines()[-1] == said


def test_cells_become_experiment_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    args = ["dafl/table3", "--only", "mnist/dir/dafl-0.05", "--scale", "full"]
    assert call(["reproduce", *args, "--files", str(tmp_path / "e")]) == 0
    (file,) = (tmp_path / "e").iterdir()
    assert capsys.readouterr().out == f"{file}\n"
    assert file.name == "dafl-mnist-dir-dafl-0.05.toml"
    item = paper("dafl").items["table3"]
    assert [read_experiment(file)] == experiments_of(
        paper("dafl"), item.cells["mnist/dir/dafl-0.05"]
    )


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["nobody"], "paper = 'nobody': allowed: cuag, dafl"),
        (["dafl/table9"], "item of DA-FL = 'table9'"),
        (["dafl/table3", "--only", "mars"], "only = mars: no such cell; there are mnist/1-label"),
        (["dafl/table3", "--repeats", "0"], "repeats = 0: must be at least 1"),
        (["dafl/table3", "--scale", "long"], "--scale = 'long': allowed: full, short"),
    ],
)
def test_what_is_not_there_is_refused_in_one_line(
    args: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["reproduce", *args]) == 2
    err = capsys.readouterr().err
    assert why in err
    assert err.count("\n") == 1


def test_help_names_what_one_can_ask_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["reproduce", "--help"]) == 0
    assert "tacit reproduce PAPER/ITEM [options]" in capsys.readouterr().out


def test_an_experiment_of_two_cells_is_estimated_once() -> None:
    table, figure = paper("cuag").items["table2"], paper("cuag").items["figure5"]
    mine = [table.cells["accuracy/fedavg"], table.cells["uplink/fedavg"]]
    assert _hours(paper("cuag"), mine, "full") == _hours(paper("cuag"), mine[:1], "full")
    assert _hours(paper("cuag"), [figure.cells["acid3/fedavg"]], "short") != "-"
    assert _hours(paper("cuag"), list(paper("cuag").items["figure3"].cells.values()), "full") == "-"
