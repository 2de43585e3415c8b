"""The examples do what they say, at toy size."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tacit.cli.main import call
from tacit.privacy import check_network

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


def test_lora_adapters_alone_are_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    module = example("05_lora")
    torch.manual_seed(0)
    untrained = module.Transformer()
    monkeypatch.setattr(module, "base", lambda: untrained)
    network = module.Adapted(2)
    trained = {name for name, p in network.named_parameters() if p.requires_grad}
    assert {name.split(".")[-2] for name in trained} == {"a", "b", "last"}
    text, _ = module.notes(5, seed=3)
    assert torch.equal(network.read(text), untrained(text))  # adapters change nothing at first
    assert "slow" not in check_network(network, (module.LENGTH,), 2)


@pytest.mark.slow
def test_lora_on_a_frozen_transformer(capsys: pytest.CaptureFixture[str]) -> None:
    module = example("05_lora")
    module.main(n=600, rounds=2, epsilon=8.0, noise="seeded")
    out = capsys.readouterr().out
    assert "578 of 18,786 numbers are trained" in out
    [(accuracy, eps)] = figures(out)
    assert eps == pytest.approx(8, abs=0.1)
    assert accuracy > 65, "twice as many are right as wrong"
    text, urgent = module.notes(50, seed=3)
    told = [{module.WORDS[word] for word in note} & set(module.URGENT) for note in text.tolist()]
    assert [bool(words) for words in told] == urgent.bool().tolist()


def test_own_data(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    example("03_own_data").main(records=1500, rounds=3)
    [(accuracy, eps)] = figures(capsys.readouterr().out)
    assert accuracy > 90
    assert eps == pytest.approx(4, abs=0.05)
    assert list(tmp_path.iterdir()) == [], "all of it was in a temporary folder"


@pytest.mark.parametrize("name", ["01_run", "03_own_data"])
def test_examples_fit_on_a_page(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 40


def shown_by(cell: str, here: dict[str, Any]) -> Any:
    """Run a cell and return what a notebook would show below it."""
    tree = ast.parse(cell)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "04_notebook.ipynb", "exec"), here)
    assert last is None or isinstance(last, ast.Expr)
    return last and eval(compile(ast.Expression(last.value), "04_notebook.ipynb", "eval"), here)


def test_the_notebook(capsys: pytest.CaptureFixture[str]) -> None:
    cells = json.loads((EXAMPLES / "04_notebook.ipynb").read_text(encoding="utf-8"))["cells"]
    sources = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
    here: dict[str, Any] = {"__name__": "notebook"}
    shown = {source.split()[0]: shown_by(source, here) for source in sources}
    out = capsys.readouterr().out
    assert re.search(r"fedavg:rounds=3 \['[\d.]+%'\] eps inf", out)
    [(_, eps)] = figures(out)
    assert eps == pytest.approx(8, abs=0.05)
    assert all(not c["outputs"] for c in cells if c["cell_type"] == "code"), "kept without outputs"
    table = shown["both"]._repr_html_()
    assert re.findall(r"<tr><td>(\w+):rounds=3</td>", table) == ["fedavg", "scaffold"]
    [axes] = shown["both.plot()"].axes
    assert [list(line.get_xdata()) for line in axes.get_lines()] == [[1, 2, 3]] * 2
    assert shown["both.plot()"]._repr_png_().startswith(b"\x89PNG"), "without pyplot"
    assert list(shown["private.history"]["round"]) == [1, 2, 3]
    assert list(shown["private.history"]["spent"])[-1] == pytest.approx(8, abs=0.05)
