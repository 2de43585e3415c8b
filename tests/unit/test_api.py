"""The public names, as the quickstart uses them."""

import inspect
import subprocess
import sys
from dataclasses import fields, replace

import numpy as np
import pytest

import tacit
from tacit.core import BadInput
from tacit.experiment.config import Setting
from tacit.methods import METHODS
from tacit.methods.fedavg import FedAvg
from tacit.methods.spec import method_from_spec, spec_of


def test_the_room_and_the_function_have_one_name(tmp_path):
    for k in range(2):  # the second call finds the module imported
        assert (
            0
            <= tacit.run("fedavg:rounds=1", clients=3, workers=0, out=tmp_path / str(k)).accuracy
            <= 1
        )
    assert tacit.resume(tmp_path / "0").metrics[0]["round"] == 1
    both = tacit.compare(
        ["fedavg:rounds=1", "local:rounds=1"], clients=3, workers=0, out=tmp_path / "both"
    )
    assert [row.method for row in both.rows] == ["fedavg:rounds=1", "local:rounds=1"]


def test_names_are_found_in_a_fresh_interpreter_without_importing_torch_first():
    code = (
        "import sys, tacit; assert 'torch' not in sys.modules; assert "
        "abs(tacit.privacy.gdp_epsilon(2.0, 1e-5) - 10) < 0.01; assert 'torch' not in "
        "sys.modules; assert callable(tacit.run) and tacit.data.load('digits').shape == (1, 8, 8)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"rounds": 1}, ["rounds = 1", "method settings go in the word: fedavg:rounds=1"]),
        (
            {"sgd": {"lr": 0.1}},
            ["sgd = {'lr': 0.1}", "method settings go in the word: fedavg:sgd."],
        ),
        ({"splitt": "iid"}, ["keyword = 'splitt'", "did you mean 'split'", "clients"]),
        ({"augment": "dafl"}, ["keyword = 'augment'", "data, classes, split, clients"]),
        ({"clients": "ten"}, ["clients = 'ten'", "integer"]),
        ({"clients": 2.5}, ["clients = 2.5", "integer"]),
        ({"split": 5}, ["split = 5", "string"]),
        ({"data": 5}, ["data = 5", "string"]),
        ({"noise": "none"}, ["noise = 'none'", "'os'"]),
    ],
)
def test_a_keyword_that_cannot_be_used_is_refused_in_one_line(keywords, words):
    calls = [lambda: tacit.run("fedavg", **keywords), lambda: tacit.run(FedAvg(), **keywords)]
    calls += [lambda: tacit.compare(["fedavg"], **keywords)]
    calls += [lambda: tacit.sweep("fedavg", {"sgd.lr": [0.1]}, **keywords)]
    for refused in calls:
        with pytest.raises(BadInput) as said:
            refused()
        assert "\n" not in str(said.value)
        assert [w for w in words if w not in str(said.value)] == []


@pytest.mark.parametrize("methods", ["fedavg", [FedAvg()]])
def test_a_comparison_is_of_a_list_of_words(methods):
    with pytest.raises(BadInput, match="must be a list of words, such as"):
        tacit.compare(methods)


def test_what_is_no_method_and_what_is_no_number_is_refused():
    with pytest.raises(BadInput, match="method = 5: must be a word such as 'fedavg:rounds=5'"):
        tacit.run(5)
    with pytest.raises(BadInput, match="repeats = 'two': must be a number"):
        tacit.compare(["fedavg"], repeats="two")
    with pytest.raises(BadInput, match="rounds = 'x': must be a number"):
        FedAvg(rounds="x")


def test_numbers_of_numpy_are_numbers(tmp_path):
    run = tacit.run(
        "fedavg:rounds=1",
        clients=np.int64(3),
        delta=np.float32(1e-6),
        workers=0,
        out=tmp_path / "run",
    )
    assert run.experiment.setting.clients == 3


def test_the_public_functions_say_what_they_take():
    settings = [f.name for f in fields(Setting) if f.name != "data"]
    for function, own in (
        (tacit.run, ["method", "data", "out", "watch"]),
        (tacit.compare, ["methods", "common", "repeats", "data", "out", "watch"]),
        (tacit.sweep, ["methods", "over", "repeats", "data", "out", "watch", "validate"]),
    ):
        shown = inspect.signature(function).parameters
        assert list(shown) == own + settings
        assert shown["clients"].default == Setting.clients
    assert "repeats" in (tacit.compare.__doc__ or "")


def test_a_word_changes_what_it_names_and_leaves_the_rest_of_the_methods_own_defaults():
    """`ldp_fl:sgd.lr=0.1` used to set the batch back from ldp_fl's 64 to the usual 32."""
    for name, cls in METHODS.items():
        usual = cls()
        if "sgd" not in {f.name for f in fields(usual)}:
            continue
        method = method_from_spec(f"{name}:sgd.lr=0.123")
        assert method == replace(usual, sgd=replace(usual.sgd, lr=0.123))
        assert method_from_spec(spec_of(method)) == method
