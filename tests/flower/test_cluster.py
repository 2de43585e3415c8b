"""Flower's own simulation runtime gives the same model.

It needs Ray (`pip install 'tacit[cluster]'`).
"""

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.flower,
    pytest.mark.timeout(300),
    pytest.mark.skipif(find_spec("ray") is None, reason="needs tacit[cluster]"),
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "02_own_method.py"
SMALL = [
    "--rounds",
    "2",
    "--clients",
    "3",
    "--split",
    "label:4",
    "--model",
    "mlp",
    "--noise",
    "seeded",
]


def tacit(*args, cwd, ends_with=0):
    """Run a command to its end, in a process of its own."""
    command = [sys.executable, "-c", "from tacit.cli.main import main; main()", *args]
    done = subprocess.run(command, cwd=cwd, timeout=280, capture_output=True, text=True)
    assert done.returncode == ends_with, done.stderr[-2000:]
    return done.stdout


def model(folder):
    return (folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize("word", ["scaffold", "mine.py:FedAdam"])
def test_a_cluster_gives_the_same_model(tmp_path, word):
    shutil.copy(EXAMPLE, tmp_path / "mine.py")
    said = tacit("run", word, *SMALL, "--engine", "ray", "--out", "there", cwd=tmp_path)
    assert "after round 2" in said
    tacit("run", word, *SMALL, "--engine", "serial", "--out", "here", cwd=tmp_path)
    assert model(tmp_path / "there") == model(tmp_path / "here")


def test_a_budget_stops_a_run_on_a_cluster(tmp_path):
    private = [
        "--sgd.clip",
        "1",
        "--sgd.z",
        "1",
        "--budget",
        "0.1",
        "--engine",
        "ray",
        "--out",
        "run",
    ]
    said = tacit("run", "fedavg", *SMALL, *private, cwd=tmp_path, ends_with=3)
    assert "stopped after 0 of 2 rounds" in said
