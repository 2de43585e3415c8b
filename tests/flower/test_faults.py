"""Sites that die, dawdle or lie, and a coordinator that dies: the run goes on, nothing is lost."""

import json
import os
import signal
import time

import pytest
import torch
from hospitals import NAMES, check_ledgers, wait_for

from tacit.apps.coordinator import read_sample_seed
from tacit.cli.main import call
from tacit.core import Fixed, mean
from tacit.engines.server import sample_rng
from tacit.engines.store import ClientStore
from tacit.experiment.rundir import RunDir

pytestmark = [pytest.mark.flower, pytest.mark.timeout(400)]


def rounds(at, out="run"):
    return len(at.metrics(out))


def same_as_a_simulation(at, experiment):
    assert call(["run", str(experiment), "--out", str(at.folder / "here")]) == 0
    return (at.folder / "run" / "model.safetensors").read_bytes() == (
        at.folder / "here" / "model.safetensors"
    ).read_bytes()


def check_scaffold(at):
    """c is the mean of what the sites keep: no reply was taken without its state, or vice versa."""
    state, accepted = RunDir.open(at.folder / "run").checkpoint()
    run = json.loads((at.folder / "run" / "sites.json").read_text())["run"]
    kept = [
        ClientStore(at.folder / "stores" / name / run / str(i)).kept(accepted[str(i)])["c"]
        for i, name in enumerate(NAMES)
    ]
    for k, v in mean(kept).items():
        assert torch.allclose(v, state.c[k], atol=1e-5), k


def test_a_site_is_killed_in_a_round_and_comes_back(hospitals):
    at = hospitals
    sites = at.join_all()
    server = at.serve(at.experiment("scaffold", 14), deadline=15)
    wait_for(lambda: rounds(at) >= 2, 90, "two rounds")
    at.end(sites[1])
    time.sleep(1)
    at.join(NAMES[1])
    assert server.wait(timeout=300) == 0, at.log("run")
    failed = [set(line.get("failed", {})) for line in at.metrics()]
    assert {"1"} in failed
    assert failed[-1] == set(), "it did not come back"
    check_scaffold(at)
    check_ledgers(at)


def test_the_coordinator_is_killed_and_resumed(hospitals):
    at = hospitals
    at.join_all()
    experiment = at.experiment("scaffold", 6)
    server = at.serve(experiment)
    wait_for(lambda: rounds(at) >= 2, 90, "two rounds")
    time.sleep(0.5)
    link = at.superlink()
    at.end(server)
    wait_for(lambda: not os.path.exists(f"/proc/{link}"), 10, "the end of Flower's server")
    assert rounds(at) < 6
    assert at.serve(at.folder / "run").wait(timeout=200) == 0, at.log("run")
    assert [line["round"] for line in at.metrics()] == [1, 2, 3, 4, 5, 6]
    assert same_as_a_simulation(at, experiment)
    check_scaffold(at)
    check_ledgers(at)


def test_a_resumed_coordinator_samples_as_it_would_have(hospitals):
    at = hospitals
    at.join_all()
    server = at.serve(at.experiment("fedavg", 6, more="per_round = 1"))
    wait_for(lambda: rounds(at) >= 2, 90, "two rounds")
    at.end(server)
    secret = read_sample_seed(at.folder / "run")
    assert at.serve(at.folder / "run").wait(timeout=200) == 0, at.log("run")
    assert read_sample_seed(at.folder / "run") == secret
    took_part = {
        (line.owner, t) for line in RunDir.open(at.folder / "run").ledger() for t in rounds_of(line)
    }
    assert {i for i in took_part if not i[0].startswith("test:")} == {
        (i, t) for t in range(6) for i in Fixed(1).pick("012", sample_rng(secret, t))
    }


def rounds_of(line):
    return [t for first, last in line.rounds for t in range(first, last + 1)]


def test_flowers_server_is_killed_and_started_again(hospitals):
    at = hospitals
    at.join_all()
    experiment = at.experiment("scaffold", 5)
    server = at.serve(experiment)
    wait_for(lambda: rounds(at) >= 2, 90, "two rounds")
    link = at.superlink()
    os.kill(link, signal.SIGKILL)
    assert server.wait(timeout=200) == 0, at.log("run")
    assert at.superlink() != link
    assert not any(line.get("failed") for line in at.metrics())
    assert same_as_a_simulation(at, experiment)
    check_ledgers(at)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("nan", "not finite"),
        ("shape", "has shape"),
        ("stale", "but was asked"),
        ("garbage", "damaged"),
        ("huge", ""),
    ],
)
def test_a_bad_reply_is_dropped_by_name(hospitals, kind, why):
    at = hospitals
    at.join_all(*NAMES[:2])
    at.join(NAMES[2], rogue=kind)
    assert (
        at.serve(at.experiment("fedavg", 2), deadline=20, max_message=16).wait(timeout=200) == 0
    ), at.log("run")
    for line in at.metrics():
        assert set(line["failed"]) == {"2"}
        assert line["failed"]["2"].startswith("hospital-c: ")
        assert why in line["failed"]["2"]
    assert at.metrics()[-1]["accuracy"] > 0.5


def test_a_slow_site_is_left_behind(hospitals):
    at = hospitals
    at.join_all(*NAMES[:2])
    at.join(NAMES[2], rogue="slow")
    assert at.serve(at.experiment("fedavg", 2), deadline=10).wait(timeout=200) == 0, at.log("run")
    assert "no answer within 10 s" in at.metrics()[0]["failed"]["2"]


def test_a_spent_budget(hospitals):
    at = hospitals
    at.join_all(*NAMES[:2])
    at.join(NAMES[2], budget=0.001)
    private = at.experiment("fedavg", 2, more="[method.sgd]\nclip = 1.0\nz = 2.0\nbatch = 32")
    assert at.serve(private).wait(timeout=200) == 0, at.log("run")
    assert all("budget" in line["failed"]["2"] for line in at.metrics())
    assert "refused" in at.log(NAMES[2])
    assert not list(at.folder.glob("stores/hospital-c/*/*/ledger.jsonl"))


def test_too_few_sites_are_left(hospitals):
    at = hospitals
    at.join_all(budget=0.001)
    assert at.serve(at.experiment("fedavg", 2)).wait(timeout=200) == 4
    assert "0 of 3 clients replied, too few to go on" in at.log("run")


def test_a_large_model(hospitals):
    at = hospitals
    (at.folder / "wide.py").write_text(
        "from torch import nn\n\n\n"
        "def Wide(shape, classes):\n"
        "    layers = nn.Linear(64, 850_000), nn.ReLU(), nn.Linear(850_000, classes)\n"
        "    return nn.Sequential(nn.Flatten(), *layers)\n"
    )
    at.join_all(model="wide:Wide")
    experiment = at.experiment("fedavg", 1, more="[method.sgd]\nbatch = 300\nepochs = 1")
    experiment.write_text(experiment.read_text().replace('"mlp"', '"wide:Wide"'))
    assert at.serve(experiment, deadline=250, patience=200).wait(timeout=390) == 0, at.log("run")
    assert (at.folder / "run" / "model.safetensors").stat().st_size > 250e6
    (wire,) = (line for line in at.log("run").splitlines() if line.startswith("on the wire: "))
    wire_down, down, wire_up, up = (int(w) for w in wire.replace(",", "").split() if w.isdigit())
    assert wire_down < 1.03 * down
    assert wire_up < 1.03 * up
