"""The examples do what they say, at toy size."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

from tacit.cli.main import call

EXAMPLES = Path(__file__).parents[2] / "examples"
LINE = re.compile(r"accuracy (?P<accuracy>[\d.]+)%, eps (?P<eps>[\d.]+|inf)")


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def figures(text: str) -> list[tuple[float, float]]:
    return [(float(m["accuracy"]), float(m["eps"])) for m in LINE.finditer(text)]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_run_from_python(capsys: pytest.CaptureFixture[str]) -> None:
    methods = ["fedavg:rounds=1", "fedavg:rounds=1,sgd.clip=1,sgd.epsilon=8", "moments:epsilon=8"]
    example("01_run").main(methods, workers=0)
    open_, dp_sgd, moments = figures(capsys.readouterr().out)
    assert open_[1] == float("inf")
    assert dp_sgd[1] == pytest.approx(8, abs=0.05)
    assert moments[1] == 8
    assert moments[0] > 90


def test_own_method(capsys: pytest.CaptureFixture[str]) -> None:
    word = f"{EXAMPLES / '02_own_method.py'}:FedAdam"
    args = "--rounds 4 --split iid --workers 0 --sgd.clip 1 --sgd.z 1"
    assert call(["run", word, *args.split()]) == 0
    out = capsys.readouterr().out
    assert re.search(r"FedAdam: accuracy [\d.]+% after round 4", out)
    assert re.search(r"eps \d", out), "clients train by DP-SGD"


def test_own_data(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    example("03_own_data").main(records=1500, rounds=3)
    [(accuracy, eps)] = figures(capsys.readouterr().out)
    assert accuracy > 90
    assert eps == pytest.approx(4, abs=0.05)
    assert list(tmp_path.iterdir()) == [], "all of it was in a temporary folder"


@pytest.mark.parametrize("name", ["01_run", "03_own_data"])
def test_examples_fit_on_a_page(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 40


def test_the_notebook(capsys: pytest.CaptureFixture[str]) -> None:
    cells = json.loads((EXAMPLES / "04_notebook.ipynb").read_text(encoding="utf-8"))["cells"]
    source = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code")
    here: dict[str, object] = {"__name__": "notebook"}
    exec(compile(source, "04_notebook.ipynb", "exec"), here)
    out = capsys.readouterr().out
    assert re.search(r"fedavg:rounds=3 \['[\d.]+%'\] eps inf", out)
    [(_, eps)] = figures(out)
    assert eps == pytest.approx(8, abs=0.05)
    assert all(not c["outputs"] for c in cells if c["cell_type"] == "code"), "kept without outputs"
