"""Runs show themselves in a notebook, and their models answer."""

import sys

import numpy as np
import pytest
import torch

import tacit
from tacit.cli.progress import Bar, Lines, watcher
from tacit.core import BadInput
from tacit.data import load

HOW = {"clients": 3, "engine": "serial", "model": "logistic"}


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return tacit.run("fedavg:rounds=2", out=tmp_path_factory.mktemp("n") / "<b>run", **HOW)


@pytest.fixture(scope="module")
def digits():
    return load("digits")


def test_the_model_answers_as_it_was_scored(shared, digits):
    answers = shared.predict(digits.test.x)
    assert answers.dtype == torch.int64
    accuracy = (answers == digits.test.y).double().mean().item()
    assert accuracy == pytest.approx(shared.accuracy, abs=0.01)
    assert shared.predict(digits.test.x[:0]).shape == (0,)
    scores = shared.model()(digits.test.x[:7])
    assert scores.shape == (7, 10)


@pytest.mark.parametrize("method", ["moments:epsilon=3", "local:rounds=1"])
def test_models_that_are_more_than_a_network_answer_too(tmp_path, digits, method):
    run = tacit.run(method, out=tmp_path / "run", **HOW)
    client = "0" if method.startswith("local") else None
    answers = run.predict(digits.test.x, client=client)
    right = (answers == digits.test.y).double().mean().item()
    if client is None:
        assert right == pytest.approx(run.accuracy, abs=1e-9)
        with pytest.raises(BadInput, match="there is one model for all"):
            run.model(client="0")
    else:
        assert right > 0.5
        with pytest.raises(BadInput, match="each client has a model of its own"):
            run.model()
        with pytest.raises(BadInput, match="client = '9': allowed: 0 to 2"):
            run.model(client="9")


@pytest.mark.slow  # what torch needs to write ONNX takes seconds to import
def test_an_exported_model_says_the_same_elsewhere(shared, digits, tmp_path):
    onnx = pytest.importorskip("onnx", reason="needs tacit[onnx]")
    pytest.importorskip("onnxscript", reason="needs tacit[onnx]")
    from onnx.reference import ReferenceEvaluator

    file = shared.export(tmp_path / "model.onnx")
    onnx.checker.check_model(str(file))
    x = digits.test.x[:5].float()
    (scores,) = ReferenceEvaluator(str(file)).run(None, {"inputs": x.numpy()})
    assert np.allclose(scores, shared.model()(x).detach().numpy(), atol=1e-4)
    with pytest.raises(BadInput, match=r"must end with .onnx"):
        shared.export(tmp_path / "model.pt")


def test_history_is_lists_without_pandas_and_a_frame_with_it(shared, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    lists = shared.history
    assert lists["round"] == [1, 2]
    assert lists["accuracy"] == [line["accuracy"] for line in shared.metrics]
    assert lists["epsilon example/server"] == [float("inf")] * 2
    monkeypatch.undo()
    pytest.importorskip("pandas")
    frame = shared.history
    assert frame["accuracy"].tolist() == lists["accuracy"]


def test_runs_comparisons_and_sweeps_show_themselves(shared, tmp_path):
    assert "&lt;b&gt;run" in shared._repr_html_()
    assert "<b>" not in shared._repr_html_()
    compared = tacit.compare(["fedavg:rounds=1", "local:rounds=1"], out=tmp_path / "c", **HOW)
    swept = tacit.sweep("fedavg:rounds=1", {"sgd.lr": [0.1, 0.2]}, out=tmp_path / "s", **HOW)
    assert compared._repr_html_().count("<tr>") == 3
    assert swept._repr_html_().count("<tr>") == 3
    for shown, lines in ((shared, 1), (compared, 2), (swept, 2)):
        (axes,) = shown.plot().axes
        assert len(axes.lines) == lines
    assert list(axes.lines[0].get_ydata()) == [pytest.approx(100 * swept.rows[0][1].accuracy[0])]
    assert list(compared.history) == ["fedavg:rounds=1", "local:rounds=1"]
    assert len(swept.history) == 2
    with pytest.raises(BadInput, match="metric = 'f2'"):
        shared.plot("f2")


def test_a_notebook_has_a_bar(monkeypatch):
    assert isinstance(watcher("run"), Lines)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert isinstance(watcher("run"), Bar)
