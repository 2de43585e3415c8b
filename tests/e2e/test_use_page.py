"""Every example of docs/use.md is run as it stands."""

import re
from pathlib import Path

import numpy as np
import pytest

from tacit.cli.main import call
from tacit.data import load

PAGE = (Path(__file__).parents[2] / "docs/use.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(sh|python)\n(.*?)^```", PAGE, flags=re.M | re.S)
NET = """
import math
from torch import nn

class Net(nn.Sequential):
    def __init__(self, shape, classes, width=8):
        inputs = nn.Linear(math.prod(shape), width)
        super().__init__(nn.Flatten(), inputs, nn.ReLU(), nn.Linear(width, classes))
"""


# to write a program of torch or ONNX takes seconds of imports
@pytest.mark.parametrize("programs", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_example_of_the_page_runs(programs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    x = load("digits").test.x.numpy()
    np.savez("new.npz", x=x[:30])
    Path("net.py").write_text(NET)
    assert len(BLOCKS) == 5
    for kind, text in BLOCKS:
        if kind == "python":
            exec(compile(text, "use.md", "exec"), {})
            continue
        for line in text.splitlines():
            if programs or not re.search("--to (onnx|torch)", line):
                assert call([*line.split()[1:], *few(line)]) == 0, line
    said = capsys.readouterr().out
    assert "eps inf: this file may reveal training examples (fedavg.train sends dx" in said
    assert len(Path("predictions.csv").read_text().splitlines()) == 31
    assert Path("runs/own/code").is_dir()


def few(line):
    """Keep a run to this process."""
    return ["--engine", "serial"] if line.startswith("tacit run") else []


@pytest.mark.parametrize("word", ["--trust-code", "predict_proba", "--client"])
def test_the_page_names_what_there_is(word):
    assert word in PAGE
