"""Over real sites everything is as in a simulation, and nobody else gets in: the short version."""

import os
import shutil
import ssl
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest
from hospitals import alive, free_port, wait_for

from tacit import data
from tacit.apps import keys
from tacit.apps.coordinator import read_sample_seed
from tacit.cli.main import call
from tacit.codec import same
from tacit.core import Poisson
from tacit.data.federated import federate
from tacit.engines.flower import SIZES
from tacit.engines.server import sample_rng
from tacit.experiment.rundir import RunDir
from tacit.methods import METHODS

EXAMPLE = Path(__file__).parents[2] / "examples" / "hospitals"
MORE = {"fedavg", "ldp_fl", "dafl", "moments", "cuag", "dp_scaffold", "fedmix"}
SAME = ("scaffold",)


@pytest.mark.parametrize("method", SAME)
@pytest.mark.timeout(120)
def test_sites_give_the_same_model_as_a_simulation(open_hospitals, method):
    same_as_a_simulation(open_hospitals, method)


def same_as_a_simulation(at, method, setting="", more="", **flags):
    experiment = at.experiment(method, 2, setting, more)
    assert at.serve(experiment, out=method, **flags).wait(timeout=100) == 0, at.log(method)
    assert call(["run", str(experiment), "--out", str(at.folder / f"{method}-here")]) == 0
    there, here = (at.folder / folder for folder in (method, f"{method}-here"))
    assert (there / "model.safetensors").read_bytes() == (here / "model.safetensors").read_bytes()
    # The same state, too: control variates and the like.
    a, b = (RunDir.open(folder).checkpoint() for folder in (there, here))
    assert {i: ask for i, ask in a[1].items() if not i.startswith(SIZES)} == b[1]
    assert [line["round"] for line in at.metrics(method)] == [
        line["round"] for line in RunDir.open(here).metrics()
    ]
    # The ledger has what the simulation has, and what the sites report about how good a model is.
    lines = {repr(line) for line in RunDir.open(there).ledger() if line.what != "metrics"}
    assert lines == {repr(line) for line in RunDir.open(here).ledger()}
    tested = {line.owner for line in RunDir.open(there).ledger() if line.owner.startswith("test:")}
    assert tested == {"test:0", "test:1", "test:2"}


@pytest.mark.flower
@pytest.mark.timeout(300)
def test_a_method_of_ones_own_runs_at_sites_that_named_it(hospitals):
    at = hospitals
    mine = at.folder / "mine.py"
    shutil.copy(EXAMPLE.parent / "02_own_method.py", mine)
    experiment = at.folder / "experiment.toml"
    experiment.write_text(
        'clients = 3\nsplit = "label:2"\nnoise = "seeded"\nmodel = "mlp"\nengine = "serial"\n'
        f'[method]\nname = "{mine}:FedAdam"\nrounds = 2\n'
    )
    at.join_all(method="mine.py:FedAdam")
    assert at.serve(experiment, out="there").wait(timeout=250) == 0, at.log("there")
    assert call(["run", str(experiment), "--out", str(at.folder / "here")]) == 0
    models = [(at.folder / run / "model.safetensors").read_bytes() for run in ("there", "here")]
    assert models[0] == models[1]


@pytest.mark.timeout(120)
def test_sites_are_not_told_who_is_sampled(open_hospitals):
    at = open_hospitals
    experiment = at.experiment("dp_fedavg", 3, more="q = 0.5")
    assert at.serve(experiment, out="secret").wait(timeout=100) == 0, at.log("secret")
    secret = read_sample_seed(at.folder / "secret")
    ledger = [
        line
        for line in RunDir.open(at.folder / "secret").ledger()
        if line.what == "dp_fedavg.train"
    ]
    took_part = [
        {i.owner for i in ledger if any(a <= t <= b for a, b in i.rounds)} for t in range(3)
    ]
    assert took_part == [set(Poisson(0.5).pick("012", sample_rng(secret, t))) for t in range(3)]
    files = [
        file
        for file in at.folder.rglob("*")
        if file.is_file() and str(secret).encode() in file.read_bytes()
    ]
    assert [file.name for file in files] == ["samples.secret"]


@pytest.mark.timeout(120)
def test_only_registered_sites_reach_only_the_fleet(forked_hospitals):
    at = forked_hospitals
    server = at.serve(at.experiment("fedavg", 1), patience=60)
    wait_for(lambda: "listening" in at.log("run"), 30, "listening")
    # Somebody with a key that nobody has registered.
    keys.make_site_key(at.folder / "stranger", "stranger")
    stranger = at.join("stranger")
    # Somebody who trusts another authority.
    keys.make_authority(at.folder / "other", [])
    careful = at.join("hospital-a", ca=at.folder / "other" / "ca.crt")
    # Somebody without a key or TLS.
    plain = at.join("hospital-b", "--insecure", key=None, ca=None, patience=3)
    assert stranger.wait(timeout=40) == 1
    assert "refuses this site's key" in at.log("stranger")
    assert careful.wait(timeout=40) == 1
    assert "its certificate is not of the authority" in at.log("hospital-a")
    assert plain.wait(timeout=40) == 1
    assert "no connection" in at.log("hospital-b")
    # The control and runtime APIs are not there, with or without a known key; nor is
    # self-registration.
    trusted = ssl.create_default_context(cafile=str(at.keys / "ca.crt"))
    with httpx.Client(
        base_url=f"https://127.0.0.1:{at.port}", verify=trusted, trust_env=False
    ) as client:
        for path in (
            "control/start-run",
            "control/register-node",
            "runtime/acquire-task",
            "fleet/register-node",
        ):
            assert client.post(f"/v1/{path}").status_code == 404, path
        assert client.get("/docs").status_code == 404
        assert client.post("/v1/fleet/../control/list-runs").status_code == 404
        assert client.post("/v1/fleet/pull-messages").status_code == 403
    assert server.poll() is None
    assert "has joined" not in at.log("run")


def test_insecure_stays_on_loopback(capsys):
    assert call(["serve", "x.toml", "--insecure", "--host", "0.0.0.0"]) == 2
    assert (
        call(
            ["join", "--server", "192.0.2.1:9092", "--name", "a", "--data", "digits", "--insecure"]
        )
        == 2
    )
    assert call(["join", "--server", "127.0.0.1:9092", "--name", "a", "--data", "digits"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert [("only on loopback" in e, "--key and --ca: needed" in e) for e in errors] == [
        (True, False),
        (True, False),
        (False, True),
    ]


@pytest.mark.flower
@pytest.mark.timeout(200)
@pytest.mark.parametrize("method", sorted(MORE & set(METHODS)))
def test_more_methods_give_the_same_model(open_hospitals, method):
    test_sites_give_the_same_model_as_a_simulation(open_hospitals, method)


@pytest.mark.flower
@pytest.mark.timeout(200)
def test_compressed_updates_give_the_same_model(open_hospitals):
    same_as_a_simulation(open_hospitals, "fednova", 'compress = "binary:0.3"')


@pytest.mark.flower
@pytest.mark.timeout(200)
def test_a_rehearsal_samples_the_same_clients(open_hospitals):
    same_as_a_simulation(open_hospitals, "fedprox", more="per_round = 2", samples="seeded")


@pytest.mark.flower
@pytest.mark.timeout(300)
@pytest.mark.parametrize("front", ["hog", "encoder"])
def test_gaussians_of_public_features_are_shared_over_sites(hospitals, front):
    """Each site computes the features of its own records, by an encoder's file if it has one."""
    at, setting = hospitals, 'features = "hog"'
    flags = {}
    if front == "encoder":
        file = at.folder / "public.safetensors"
        assert call(["encode", "--data", "digits", "--epochs", "1", "--out", str(file)]) == 0
        setting, flags = f'features = "{file}"', {"features": file}
    at.join_all(split="acid:3", **flags)
    experiment = at.experiment("cuag", 1, setting, "epsilon = 8.0")
    text = experiment.read_text().replace("label:2", "acid:3").replace('model = "mlp"\n', "")
    experiment.write_text(text)
    assert at.serve(experiment).wait(timeout=180) == 0, at.log("run")
    assert call(["run", str(experiment), "--out", str(at.folder / "here")]) == 0
    (there, _), (here, _) = (RunDir.open(at.folder / f).checkpoint() for f in ("run", "here"))
    assert here.x  # what all clients together know of the classes
    assert same(there.x, here.x)
    lines = [RunDir.open(at.folder / f).ledger() for f in ("run", "here")]
    told = [{repr(line) for line in each if line.what != "metrics"} for each in lines]
    assert told[0] == told[1]
    assert RunDir.open(at.folder / "here").metrics()[-1]["spent"] == pytest.approx(8.0, rel=1e-3)


@pytest.mark.flower
@pytest.mark.timeout(200)
def test_a_public_set_at_the_coordinator(hospitals):
    at, split = hospitals, "sizes:1x600,2x300,public=100"
    public = federate(data.load("digits"), split, clients=3, seed=0).public()
    x, y = public.x.numpy(), public.y.numpy()
    np.savez(at.folder / "public.npz", x_train=x[:, 0], y_train=y, x_test=x[:, 0], y_test=y)
    experiment = at.experiment("kd_dpfl", 2, more="per_round = 3\nm = 1")
    experiment.write_text(experiment.read_text().replace("label:2", split))
    at.join_all(split=split)
    assert at.serve(experiment, public=at.folder / "public.npz").wait(timeout=180) == 0, at.log(
        "run"
    )
    assert call(["run", str(experiment), "--out", str(at.folder / "here")]) == 0
    models = [(at.folder / folder / "model.safetensors").read_bytes() for folder in ("run", "here")]
    assert models[0] == models[1]


@pytest.mark.flower
@pytest.mark.timeout(200)
def test_the_example(tmp_path):
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(
        [EXAMPLE / "start.sh", tmp_path / "work", str(free_port())], env=env, check=True, timeout=60
    )
    pids = [int(pid) for pid in (tmp_path / "work" / "pids").read_text().split()]
    try:
        wait_for(lambda: not alive(pids[-1]), 150, "the end of the run")
        assert "accuracy" in (tmp_path / "work" / "serve.log").read_text()
    finally:
        subprocess.run([EXAMPLE / "stop.sh", tmp_path / "work"], env=env, check=True, timeout=60)
    assert not any(map(alive, pids))
    assert len(RunDir.open(tmp_path / "work" / "run").metrics()) == 5
