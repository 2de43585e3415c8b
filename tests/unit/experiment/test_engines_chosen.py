"""Which engine a setting asks for, and what is refused before anything starts."""

import importlib.util
import sys

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


@pytest.fixture
def broken_ray(tmp_path, monkeypatch):
    """A Ray that is there, and whose own parts are not."""
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").write_text("import parts_of_ray\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "ray", raising=False)


def test_a_ray_that_cannot_be_imported_is_one_line(broken_ray, tmp_path):
    pytest.importorskip("flwr")
    with pytest.raises(BadInput, match=r"'ray': Ray cannot be imported \(ModuleNotFound.*parts_of"):
        tacit.run("fedavg:rounds=1", engine="ray", out=tmp_path / "run")


@pytest.mark.parametrize(
    ("ends", "said"), [(lambda: None, "Flower has ended it"), (sys.exit, "SystemExit")]
)
def test_a_simulation_that_ends_without_a_word_is_said(monkeypatch, ends, said):
    pytest.importorskip("flwr")
    from flwr import simulation

    from tacit.experiment import cluster

    monkeypatch.setattr(simulation, "run_simulation", lambda *args, **how: ends())
    plan = Plan.of(Experiment(FedAvg(rounds=1), Setting(clients=2, model="logistic")))
    with pytest.raises(BadInput, match=said), cluster._grid(plan):
        pass


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
