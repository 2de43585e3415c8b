"""--track writes the curves of a run, epsilon among them, on this machine."""

import sys

import pytest

from tacit.cli import tracking
from tacit.cli.main import call
from tacit.cli.tracking import numbers

LINE = {"round": 2, "accuracy": 0.5, "loss": None, "spent": float("inf"), "personal": False,
        "epsilon": {"example/server": 3.0, "client/server": float("inf")}}  # fmt: skip


def test_only_what_can_be_drawn_is_written():
    assert numbers(LINE) == {"accuracy": 0.5, "epsilon/example/server": 3.0}


class Kept:
    def __init__(self):
        Kept.said = []

    def begin(self, name):
        self.said.append(name)

    def log(self, numbers, round):
        self.said.append((round, set(numbers)))

    def close(self):
        self.said.append("closed")


def test_a_run_and_a_comparison_are_followed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(tracking.TRACKERS, "tensorboard", Kept)
    quick = ["--engine", "serial", "--clients", "2", "--rounds", "1", "--track", "tensorboard"]
    assert call(["run", "local", *quick, "--out", "a"]) == 0
    name, (round, names), end = Kept.said
    assert (name, round, end) == ("local", 1, "closed")
    assert {"accuracy", "spent", "epsilon/example/server"} <= names
    more = ["--rounds", "2", "--track", "tensorboard"]
    assert call(["resume", "a", *more]) == 0
    assert [Kept.said[0], *(said[0] for said in Kept.said[1:-1])] == ["local", 2]
    assert call(["compare", "local", "fedavg", *quick, "--out", "b"]) == 0
    assert [said for said in Kept.said if isinstance(said, str)] == [
        "local-rounds=1-s0", "fedavg-rounds=1-s0", "closed"]  # fmt: skip


@pytest.mark.parametrize("name", ["tensorboard", "mlflow"])
def test_one_that_is_not_installed_is_named_before_anything_runs(
    tmp_path, monkeypatch, capsys, name
):
    monkeypatch.chdir(tmp_path)
    module = {"tensorboard": "torch.utils.tensorboard", "mlflow": "mlflow"}[name]
    monkeypatch.setitem(sys.modules, module, None)
    assert call(["run", "local", "--track", name]) == 2
    assert f"pip install 'tacit[{name}]'" in capsys.readouterr().err
    assert not list(tmp_path.glob("runs/local*"))
