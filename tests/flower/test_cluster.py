"""Flower's own simulation runtime gives the same model.

It needs Ray (`pip install 'tacit[cluster]'`).
"""

import subprocess
import sys

import pytest

from tacit.cli.main import call

pytestmark = [pytest.mark.flower, pytest.mark.timeout(300)]
pytest.importorskip("ray")


def test_a_cluster_gives_the_same_model(tmp_path):
    file = tmp_path / "experiment.toml"
    file.write_text(
        'clients = 3\nsplit = "label:2"\nmodel = "mlp"\nworkers = 0\n[method]\nname = "scaffold"\nrounds = 2\n'
    )
    command = [
        sys.executable,
        "-m",
        "tacit.apps.cluster",
        str(file),
        "--out",
        str(tmp_path / "there"),
    ]
    subprocess.run(
        command, check=True, timeout=280, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    assert call(["run", str(file), "--out", str(tmp_path / "here")]) == 0
    models = [
        (tmp_path / folder / "model.safetensors").read_bytes() for folder in ("there", "here")
    ]
    assert models[0] == models[1]
