"""Collapse is visible: one line says what is odd, and what to do."""

import numpy as np
import pytest
import torch

import tacit
from tacit.cli.main import call
from tacit.data import Dataset, Examples
from tacit.experiment.signs import by_class, of_answers, of_data


def data(x, y, classes=("cat", "dog")):
    both = Examples(torch.tensor(x), torch.tensor(y))
    return Dataset("mine", both, both, classes)


def test_data_of_one_class_and_unscaled_inputs_are_told():
    assert of_data(data([[0.5], [-1.0]], [0, 1])) == []
    (one,) = of_data(data([[0.5], [-1.0]], [1, 1]))
    assert one.startswith("all 2 training records are 'dog': there is nothing to tell apart")
    (far,) = of_data(data([[0.5], [-12345.0]], [0, 1]))
    assert far.startswith("inputs reach 1.23e+04, on which networks train badly: scale them")


def test_a_model_with_one_answer_is_told_and_others_are_not():
    classes = ("cat", "dog", "cow")
    line = {"per_class": [0.0, 1.0, 0.0], "personal": False}
    (said,) = of_answers(line, classes)
    assert said.startswith("the model answers 'dog' to everything")
    # one class is always right, and the others are taken for several
    table = [[0, 3, 1], [0, 4, 0], [2, 2, 0]]
    assert of_answers(line | {"confusion": table}, classes) == []
    assert of_answers(line | {"confusion": [[0, 4, 0], [0, 4, 0], [0, 4, 0]]}, classes)
    assert of_answers({"per_class": [0.0, 0.9, 0.0]}, classes) == []
    assert of_answers({"per_class": [None, 1.0, None]}, classes) == []  # nothing else was tested
    assert of_answers(line | {"personal": True}, classes) == []


def test_the_summary_names_balanced_accuracy_and_the_worst_class():
    line = {"per_class": [1.0, None, 0.25], "balanced_accuracy": 0.625}
    assert by_class(line, ("cat", "dog", "cow")) == (
        "balanced accuracy 62.50%, worst class 'cow' 25.00%"
    )
    assert by_class({"per_class": [1.0]}, ("cat",)) == ""


@pytest.fixture
def imbalanced(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3)).astype(np.float32) * 1000
    y = (np.arange(200) % 10 == 0).astype(int)
    np.savez(tmp_path / "x.npz", x_train=x, y_train=y, x_test=x[:50], y_test=y[:50])
    return str(tmp_path / "x.npz")


def test_a_run_says_that_it_has_collapsed(imbalanced, tmp_path, capsys):
    flags = ["--rounds", "1", "--clients", "2", "--engine", "serial", "--model", "logistic"]
    more = ["--sgd.lr", "1e-9", "--sgd.weight-decay", "0", "--classes", "2"]
    out = ["--out", str(tmp_path / "run")]
    assert call(["run", "fedavg", "--data", imbalanced, *flags, *more, *out]) == 0
    said = capsys.readouterr()
    assert "inputs reach" in said.err
    assert "balanced accuracy" in said.out
    assert "worst class" in said.out
    run = tacit.load(tmp_path / "run")
    answers = set(run.predict(np.load(imbalanced)["x_test"]).tolist())
    assert ("to everything" in said.err) == (len(answers) == 1)
