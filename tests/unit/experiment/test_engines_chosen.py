"""Which engine a setting asks for, and what is refused before anything starts."""

import importlib.util

import pytest

import tacit
from tacit.core import BadInput
from tacit.engines.serial import Serial
from tacit.engines.workers import Workers
from tacit.experiment.config import Experiment, Setting
from tacit.experiment.plan import Plan
from tacit.experiment.rundir import RunDir
from tacit.methods.fedavg import FedAvg


@pytest.mark.parametrize(
    ("how", "kind"),
    [({"engine": "serial"}, Serial), ({"workers": 0}, Serial), ({"workers": 1}, Workers)],
)
def test_the_setting_chooses_where_clients_run(tmp_path, how, kind):
    plan = Plan.of(Experiment(FedAvg(rounds=1), Setting(clients=2, model="logistic", **how)))
    directory = RunDir.create(tmp_path / "run", plan.experiment)
    engine = plan.engine(directory, plan.config(directory))
    try:
        assert type(engine) is kind
    finally:
        engine.close()


def test_an_address_without_a_cluster_is_refused():
    with pytest.raises(
        BadInput, match=r"address = 'auto': is of a Ray cluster; add engine = 'ray'"
    ):
        Setting(address="auto")


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is here")
def test_a_cluster_without_ray_is_one_line_and_leaves_nothing(tmp_path, monkeypatch):
    pytest.importorskip("flwr")
    (tmp_path / "ray").mkdir()  # a folder of that name is no Ray
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BadInput, match=r"Ray is not installed; pip install 'tacit\[cluster\]'"):
        tacit.run("fedavg:rounds=1", engine="ray", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_unknown_engine_names_those_that_there_are():
    with pytest.raises(BadInput, match=r"engine = 'spark'.*'workers', 'serial' or 'ray'"):
        tacit.run("fedavg:rounds=1", engine="spark")
