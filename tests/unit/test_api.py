"""The public names, as the quickstart uses them."""

import subprocess
import sys

import tacit


def test_the_room_and_the_function_have_one_name(tmp_path):
    for k in range(2):  # the second call finds the module imported
        assert 0 <= tacit.run("fedavg:rounds=1", clients=3, workers=0, out=tmp_path / str(k)).accuracy <= 1
    assert tacit.resume(tmp_path / "0").metrics[0]["round"] == 1
    both = tacit.compare(["fedavg:rounds=1", "local:rounds=1"], clients=3, workers=0, out=tmp_path / "both")
    assert [row.method for row in both.rows] == ["fedavg:rounds=1", "local:rounds=1"]


def test_names_are_found_in_a_fresh_interpreter_without_importing_torch_first():
    code = (
        "import sys, tacit; assert 'torch' not in sys.modules; "
        "assert abs(tacit.privacy.gdp_epsilon(2.0, 1e-5) - 10) < 0.01; assert 'torch' not in sys.modules; "
        "assert callable(tacit.run) and tacit.data.load('digits').shape == (1, 8, 8)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
