"""Numbers, and yes or no for several labels: trained, privately too, and measured."""

import csv
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import wards
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import tacit
from tacit.apps.site import Site
from tacit.cli.main import call
from tacit.core import BadInput
from tacit.data import Reading, load, read_schema, read_table
from tacit.data.federated import federate
from tacit.experiment.config import Experiment, Setting
from tacit.experiment.evaluate import of_numbers
from tacit.experiment.model_file import read_file, to_bytes
from tacit.experiment.plan import Plan
from tacit.experiment.result import Run
from tacit.experiment.scoring import Scored
from tacit.methods.spec import method_from_spec
from tacit.privacy import check_network
from tacit.privacy.losses import LOSSES
from tacit.privacy.perexample import HAIR, clipped_sum
from tacit.report.page import write_report

LABELS = {
    "regression": ('label = "age"', 'task = "classes"\nlabel = "outcome"'),
    "multilabel": ('label = ["outcome", "sex"]', 'task = "classes"\nlabel = "outcome"'),
}


def hospital(folder, goal, n=150):
    """Write a table with a schema for a goal; return both paths."""
    new, old = LABELS[goal]
    text = wards.SCHEMA.replace(old, f'task = "{goal}"\n{new}').replace('"f", "m", "x"', '"f", "m"')
    rows = [row | {"sex": row["sex"].replace("x", "f")} for row in wards.patients(n)]
    return str(wards.ward(folder, rows)), str(wards.schema(folder, text))


def run(folder, goal, more="", **setting):
    data, schema = hospital(folder, goal)
    method = f"fedavg:rounds=5,sgd.lr=0.3,sgd.epochs=5{more}"
    setting = {"clients": 2, "workers": 0, "noise": "seeded"} | setting
    return tacit.run(method, data=data, schema=schema, out=folder / "run", **setting)


def test_numbers_are_learnt_and_measured_in_their_own_unit(tmp_path):
    final = run(tmp_path, "regression").final
    assert final["accuracy"] is None
    assert final["mae"].keys() == {"age"}
    assert 0 < final["mse"] == final["loss"] < 0.1  # of ages from 0 to 120, scaled to -1..1
    model = tacit.load(tmp_path / "run")
    assert model(torch.zeros(2, *model.description.shape)).shape == (2, 1)
    with pytest.raises(BadInput, match="task = 'regression': numbers have no probabilities"):
        model.predict_proba(torch.zeros(2, *model.description.shape))
    test = load(
        str(tmp_path / "patients.csv"), reading=Reading(schema=str(tmp_path / "schema.toml"))
    )
    years = model.predict(test.test.x)[:, 0]
    off = (years - (test.test.y[:, 0] + 1) * 60).abs().mean()  # ages from 0 to 120
    assert float(off) == pytest.approx(final["mae"]["age"], rel=1e-5)
    assert final["mae"]["age"] < 15  # years; the ill and the well are 35 apart


def test_several_labels_are_learnt_each_for_itself(tmp_path):
    final = run(tmp_path, "multilabel").final
    assert final["per_label"]["outcome"] > 0.85
    assert final["accuracy"] == pytest.approx(np.mean(list(final["per_label"].values())), abs=1e-5)


@pytest.mark.parametrize("goal", LABELS)
def test_private_training_of_other_goals(tmp_path, goal):
    done = run(tmp_path, goal, ",rounds=2,sgd.clip=1,sgd.z=0.5")
    assert 0 < done.spent < math.inf
    assert done.final["loss"] < {"regression": 0.15, "multilabel": 0.69}[goal]


@pytest.mark.parametrize("goal", LOSSES)
@settings(max_examples=15, deadline=None)
@given(
    clip=st.sampled_from([1e-4, 0.1, 10.0]),
    scale=st.sampled_from([1e-3, 1.0, 1e4]),
    outputs=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_no_example_counts_for_more_than_the_clip(goal, clip, scale, outputs, seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, outputs))
    x, y = scale * torch.randn(6, 4), scale * torch.randn(6, outputs)
    y = {"classes": torch.randint(0, outputs, (6,)), "multilabel": (y > 0).float()}.get(goal, y)
    loss = LOSSES[goal]
    every, norms = clipped_sum(model, loss, x, y, clip)
    others, _ = clipped_sum(model, loss, x[1:], y[1:], clip)
    # by the example alone, clipped by hand
    alone = torch.autograd.grad(loss(model, x[:1], y[:1]).sum(), list(model.parameters()))
    norm = math.hypot(*(float(g.double().norm()) for g in alone))
    assert float(norms[0]) == pytest.approx(norm, rel=1e-4, abs=1e-9)
    share = min(1.0, clip * (1 - HAIR) / norm) if norm else 0.0
    for p, g in zip(model.parameters(), alone, strict=True):
        torch.testing.assert_close(every[p] - others[p], share * g, rtol=1e-3, atol=1e-4 * clip)
    moved = math.hypot(*(float((every[p] - others[p]).double().norm()) for p in every))
    assert moved <= clip * (1 + 1e-4)


def test_a_network_with_one_number_can_be_tried():
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
    assert "can train privately" in check_network(model, (4,), 1, "regression")
    mixing = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 1))
    with pytest.raises(BadInput):
        check_network(mixing, (4,), 1, "regression")


def test_errors_by_hand(tmp_path):
    data, schema = hospital(tmp_path, "regression")
    dataset = load(data, reading=Reading(schema=schema))
    off = Scored(dataset.test.y + 0.5, 0.25 * len(dataset.test))
    line = of_numbers({"a": off}, dataset).line()
    assert line["mse"] == pytest.approx(0.25)
    assert line["mae"]["age"] == pytest.approx(30, rel=1e-5)  # a quarter of 120 years


@pytest.mark.parametrize(("method", "words"), [("moments", "fedavg"), ("local", "scaffold")])
def test_methods_that_predict_classes_alone_are_refused(tmp_path, method, words):
    data, schema = hospital(tmp_path, "regression")
    setting = Setting(data=data, schema=schema, clients=2)
    with pytest.raises(BadInput, match=f"task = 'regression': {method} predicts .*{words}"):
        Plan.of(Experiment(method_from_spec(method), setting))


@pytest.mark.parametrize("goal", LABELS)
def test_a_report_of_such_a_run_can_be_written(tmp_path, goal):
    done = run(tmp_path, goal, ",rounds=1")
    page = write_report([done.folder], tmp_path / "report.html")
    assert "fedavg" in page.read_text(encoding="utf-8")


def test_sites_predict_classes(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data, schema = hospital(tmp_path, "regression")
    flags = ["--server", "127.0.0.1:9", "--name", "a", "--insecure", "--accept", "anything"]
    assert call(["join", *flags, "--data", data, "--schema", schema]) == 2
    assert "site a: task = 'regression': must be classes" in capsys.readouterr().err
    with pytest.raises(BadInput, match="sites predict classes"):
        Site("a", load(data, reading=Reading(schema=schema)), tmp_path / "store")


@pytest.mark.parametrize("split", ["label:1", "dirichlet:1"])
def test_splits_by_class_are_refused(tmp_path, split):
    data, schema = hospital(tmp_path, "regression")
    dataset = load(data, reading=Reading(schema=schema))
    with pytest.raises(BadInput, match=r"divides by class; for regression: iid"):
        federate(dataset, split, clients=2, seed=0)
    assert federate(dataset, "iid", clients=2, seed=0).counts().sum() == len(dataset.train)


def test_one_record_moves_no_other(tmp_path):
    data, schema = hospital(tmp_path, "regression", n=40)
    whole = load(data, reading=Reading(schema=schema))
    rows = wards.patients(40)
    rows[0] = rows[0] | {"age": "99"}
    wards.ward(tmp_path, [row | {"sex": row["sex"].replace("x", "f")} for row in rows])
    other = load(data, reading=Reading(schema=schema))
    mine, theirs = ({tuple(x.tolist()) for x in d.test.x} for d in (whole, other))
    assert len(mine ^ theirs) <= 2


def test_a_plain_table_of_numbers(tmp_path, capsys):
    lines = [f"{i / 50 - 1},{i % 2},{i / 25 - 2},{i % 2}" for i in range(100)]
    (tmp_path / "t.csv").write_text("a,b,price,sold\n" + "\n".join(lines))
    path = str(tmp_path / "t.csv")
    dataset = load(path, reading=Reading("price", drop="sold", task="regression"))
    assert (dataset.shape, dataset.classes, dataset.goal) == ((2,), ("price",), "regression")
    both = load(path, reading=Reading("b,sold", task="multilabel"))
    assert both.train.y.shape[1] == 2
    with pytest.raises(BadInput, match=r"line 2: price = -2: must be 0 or 1"):
        load(path, reading=Reading("price", task="multilabel"))
    flags = ["--data", path, "--label", "price", "--task", "regression", "--drop", "sold"]
    more = ["--clients", "2", "--workers", "0", "--rounds", "2", "--out", str(tmp_path / "run")]
    assert call(["run", "fedavg", *flags, *more]) == 0
    assert "mean absolute error: price" in capsys.readouterr().out


@pytest.mark.parametrize("goal", LABELS)
def test_what_is_predicted_stands_in_a_table_and_is_exported(tmp_path, goal, capsys):
    run(tmp_path, goal)
    data, out = tmp_path / "patients.csv", tmp_path / "out.csv"
    assert call(["predict", str(tmp_path / "run"), str(data), "--out", str(out)]) == 0
    with out.open() as opened:
        rows = list(csv.DictReader(opened))
    model = tacit.load(tmp_path / "run")
    x = read_schema(tmp_path / "schema.toml").encode(read_table(data), labelled=False).x
    given = model.predict(x)
    if goal == "regression":
        assert list(rows[0]) == ["row", "age"]
        assert [float(r["age"]) for r in rows] == pytest.approx(given[:, 0].tolist(), rel=1e-4)
        assert 20 < given.min() < given.max() < 110
    else:
        assert list(rows[0]) == ["row", "outcome", "sex", "p(outcome)", "p(sex)"]
        assert [r["sex"] for r in rows] == ["fm"[i] for i in given[:, 1].tolist()]
        assert all((float(r["p(sex)"]) > 0.5) == (r["sex"] == "m") for r in rows)
    file = tmp_path / "model.safetensors"
    assert call(["export", str(tmp_path / "run"), "--to", "safetensors", "--out", str(file)]) == 0
    said = {"regression": "1 numbers, in the labels' own", "multilabel": "2 scores, above 0"}[goal]
    assert said in capsys.readouterr().out
    assert torch.equal(tacit.load(file).predict(x), given)
    program = Run(tmp_path / "run").export(tmp_path / "model.pt2")
    scores = torch.export.load(program).module()(torch.from_numpy(x))
    made = scores if goal == "regression" else (scores > 0).long()
    torch.testing.assert_close(made, given, rtol=1e-5, atol=1e-5)


def test_a_description_whose_schema_predicts_something_else_is_refused(tmp_path):
    run(tmp_path, "regression", ",rounds=1")
    file = Run(tmp_path / "run").export(tmp_path / "model.safetensors")
    about, numbers = read_file(file)
    file.write_bytes(to_bytes(replace(about, classes=("weight",)), numbers))
    with pytest.raises(BadInput, match="its schema predicts something else"):
        tacit.load(file)


@pytest.mark.parametrize(
    ("goal", "columns"),
    [("regression", {"mse", "mae age"}), ("multilabel", {"accuracy %", "outcome %", "sex %"})],
)
def test_tables_of_several_runs_show_errors_or_each_label(tmp_path, goal, columns, capsys):
    data, schema = hospital(tmp_path, goal)
    flags = ["--data", data, "--schema", schema, "--clients", "2", "--workers", "0"]
    flags += ["--rounds", "1", "--repeats", "2", "--format", "csv"]
    assert call(["compare", "fedavg", "fednova", *flags, "--out", str(tmp_path / "both")]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.count(",") > 4]
    rows = list(csv.DictReader(lines))
    assert [row["method"] for row in rows] == ["fedavg", "fednova"]
    assert columns <= rows[0].keys()
    finals = [Run(folder).final for folder in sorted((tmp_path / "both").glob("fedavg*"))]
    assert len(finals) == 2
    mean, _, deviation = rows[0]["mae age" if goal == "regression" else "sex %"].partition(" ± ")
    found = [
        f["mae"]["age"] if goal == "regression" else 100 * f["per_label"]["sex"] for f in finals
    ]
    assert float(mean) == pytest.approx(np.mean(found), rel=1e-3)
    assert float(deviation) == pytest.approx(np.std(found, ddof=1), rel=0.1, abs=0.06)
    picture = {"regression": "mse.png", "multilabel": "accuracy.png"}[goal]
    assert (tmp_path / "both" / picture).exists()


def test_a_sweep_of_numbers(tmp_path, capsys):
    data, schema = hospital(tmp_path, "regression")
    flags = ["--data", data, "--schema", schema, "--clients", "2", "--workers", "0"]
    flags += ["--rounds", "1", "--over", "sgd.lr=0.01,0.1", "--out", str(tmp_path / "both")]
    assert call(["sweep", "fedavg", *flags]) == 0
    head = next(x for x in capsys.readouterr().out.splitlines() if x.startswith("method"))
    assert head.split()[:5] == ["method", "sgd.lr", "mse", "mae", "age"]
    from tacit.experiment.sweep import resume_sweep

    again = resume_sweep(tmp_path / "both")
    assert "mae age" in again._repr_html_()
    assert "mean squared error" in again.runs[0][1][0]._repr_html_()
    assert again.plot().axes[0].get_ylabel() == "test mse"
