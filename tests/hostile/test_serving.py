"""A coordinator that is started twice, has nothing left to do, or is told nothing."""

import json
import os
import stat
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from liars import run

import tacit
from tacit.apps.coordinator import ROLL, SECRET, Roll, Terms, go_on, serve
from tacit.apps.policy import read_policy
from tacit.cli.main import call
from tacit.cli.runs import conclude
from tacit.core import BadInput, Damaged, params_of
from tacit.core.files import write_atomically
from tacit.experiment.config import read_experiment
from tacit.experiment.result import Run
from tacit.experiment.rundir import Busy, RunDir
from tacit.experiment.scoring import Tally, noise_in
from tacit.experiment.watch import Nobody
from tacit.methods.fedavg import FedAvg
from tacit.models import build

HOSPITALS = Path(__file__).parents[2] / "examples" / "hospitals"
NOWHERE = Terms("192.0.2.1", 1, None, 0, 0.1, 0.1, 1, None)  # whoever listens there fails


@pytest.fixture
def at_sites(tmp_path):
    """The folder of a finished run, as if it had been one with sites."""
    folder = tmp_path / "run"
    tacit.run("local:rounds=1", out=folder, clients=2, workers=0, model="logistic")
    directory = RunDir.open(folder)
    directory.put(SECRET, b"7")
    roll = Roll("0" * 16, {"0": "a", "1": "b"}, {})
    directory.put(ROLL, json.dumps(asdict(roll)).encode())
    return directory


def test_a_second_coordinator_is_refused_before_it_touches_anything(at_sites):
    base = at_sites.folder / "flower" / "superlink.db"
    base.parent.mkdir()
    base.write_text("alive")
    experiment = at_sites.experiment()
    at_sites.lock()
    try:
        at_sites._commit(states=())  # as if there was something left to do
        with pytest.raises(Busy, match="another process is running it"):
            go_on(at_sites.folder, NOWHERE, Nobody(), print)
        (at_sites.folder / "config.toml").unlink()
        with pytest.raises(Busy, match="another process is running it"):
            serve(experiment, at_sites.folder, NOWHERE, Nobody(), print)
    finally:
        at_sites.unlock()
    assert base.read_text() == "alive"


def test_a_finished_run_does_not_wait_for_sites(at_sites):
    said = []
    done = go_on(at_sites.folder, NOWHERE, Nobody(), said.append)
    assert done == Run(at_sites.folder)
    assert said == [f"{at_sites.folder}: all rounds are done"]


@pytest.mark.parametrize("text", ["[]", "{", "3"])
def test_a_roll_that_is_none_is_refused_in_one_line(at_sites, text, capsys):
    (at_sites.folder / ROLL).write_text(text)
    with pytest.raises(Damaged, match=r"sites\.json: not as it was written"):
        go_on(at_sites.folder, NOWHERE, Nobody(), print)
    at_sites.put(ROLL, text.encode())
    with pytest.raises(BadInput) as e:
        go_on(at_sites.folder, NOWHERE, Nobody(), print)
    assert "sites.json" in str(e.value)
    assert "\n" not in str(e.value)


def test_sites_that_report_nothing_are_not_failures(tmp_path, capsys):
    directory, _ = run(tmp_path, FedAvg(rounds=2), metrics=0.0)
    assert [line["accuracy"] for line in directory.metrics()] == [None, None]
    assert not any("failed" in line for line in directory.metrics())
    conclude(Run(directory.folder))
    first, second, _ = capsys.readouterr().out.splitlines()
    assert first == "fedavg: 2 rounds; no accuracy, as nobody reported any"
    assert second.startswith("eps inf for one example against the server")


def test_noisy_accuracy_is_called_so_and_has_its_spread(tmp_path, capsys):
    directory, _ = run(tmp_path, FedAvg(rounds=1), metrics=0.5)
    (line,) = directory.metrics()
    assert line["noise"] > 0
    conclude(Run(directory.folder))
    said = capsys.readouterr().out
    assert f"% ± {100 * line['noise']:.2f} by the noise of reports after round 1" in said


def test_the_spread_of_noisy_accuracy_is_that_of_many_draws():
    """Counts so large that nothing is cut at 0."""
    true, epsilon = Tally([300, 500, 400], [100, 50, 150], None), 0.1
    rng = np.random.default_rng(0)
    p = 1 - np.exp(-epsilon)

    def noisy(counts):
        return (counts + rng.geometric(p, 3) - rng.geometric(p, 3)).tolist()

    draws = [Tally(noisy(true.right), noisy(true.wrong), None).accuracy for _ in range(4000)]
    assert noise_in({"0": true}, {"0": epsilon}) == pytest.approx(np.std(draws), rel=0.05)


def test_parts_that_a_kill_left_are_removed_and_never_lend_their_mode(tmp_path):
    left = tmp_path / f"key.{os.getpid()}.part"
    left.write_text("half")
    left.chmod(0o644)
    write_atomically(tmp_path / "key", b"secret", private=True)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    directory = RunDir(tmp_path)
    (tmp_path / "state.4711.part").write_text("half")
    directory.lock()
    directory.unlock()
    assert sorted(f.name for f in tmp_path.iterdir()) == [".lock", "key"]


def test_the_policy_of_the_example_fits_its_experiment():
    experiment = read_experiment(HOSPITALS / "experiment.toml")
    x = params_of(build("mlp", (1, 8, 8), 10, 0))
    policy = read_policy(HOSPITALS / "policy.toml", x)
    assert experiment.method.rounds <= policy.rounds
    assert "scaffold" in policy.words()
    policy.allows_network(experiment.setting.model)


def test_the_example_is_not_started_twice(tmp_path):
    (tmp_path / "pids").write_text(f"{os.getpid()}\n")
    done = subprocess.run(
        [str(HOSPITALS / "start.sh"), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "has been started already" in done.stderr
    assert (tmp_path / "pids").read_text() == f"{os.getpid()}\n"


def test_keys_need_neither_torch_nor_flower(tmp_path, capsys):
    """The example makes seven calls before anything starts."""
    assert call(["keys", "init", str(tmp_path / "keys"), "ünï.example"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    code = "import sys, tacit.cli.keys, tacit.apps.keys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
