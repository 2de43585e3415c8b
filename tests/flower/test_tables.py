"""Three hospitals whose tables differ in all that does not matter, by one schema file."""

import pytest
import torch
import wards
from hospitals import NAMES

import tacit
from tacit.data.new_inputs import read_new
from tacit.data.schema import read_schema
from tacit.experiment.rundir import RunDir

ORDERS = (
    wards.COLUMNS,
    wards.COLUMNS[::-1],
    tuple(c for c in sorted(wards.COLUMNS) if c != "patient_id"),
)
SEPARATORS = (",", ";", "\t")


@pytest.mark.flower
@pytest.mark.timeout(200)
def test_three_sites_train_from_the_schema_file_alone(hospitals):
    at = hospitals
    schema = wards.schema(at.folder)
    for i, name in enumerate(NAMES):
        rows = wards.patients(150, seed=i)
        data = wards.ward(at.folder / name, rows, ORDERS[i], SEPARATORS[i])
        out = at.folder / f"{name}.safetensors"
        at.join(name, data=data, schema=schema, split=None, part=None, model_out=out)
    experiment = at.experiment("fedavg", 3, more="[method.sgd]\nlr = 0.5\nepochs = 5")
    assert at.serve(experiment).wait(timeout=150) == 0, at.log("run")
    assert at.metrics()[-1]["accuracy"] > 0.9
    assert RunDir.open(at.folder / "run").schema() == read_schema(schema)
    new = wards.patients(30, seed=9)
    tables = [wards.ward(at.folder, new, ORDERS[i], SEPARATORS[i], f"{i}.csv") for i in range(3)]
    model = tacit.load(at.folder / "run")
    read = [read_new(table, model.description.wanted).x for table in tables]
    first, *others = [model.predict_proba(x) for x in read]
    assert first.shape == (30, 2)
    assert all(torch.equal(first, other) for other in others)
    # the model of the last round is at every site, and predicts there what it does here
    for i, name in enumerate(NAMES):
        there = tacit.load(at.folder / f"{name}.safetensors")
        theirs = read_new(tables[i], there.description.wanted).x
        assert torch.equal(there.predict_proba(theirs), first)


@pytest.mark.flower
@pytest.mark.timeout(200)
def test_a_site_with_another_schema_ends_the_run_by_its_name(hospitals):
    at = hospitals
    for i, name in enumerate(NAMES):
        text = wards.SCHEMA.replace("high = 300", "high = 660") if i == 2 else wards.SCHEMA
        data = wards.ward(at.folder / name, wards.patients(60, seed=i))
        at.join(name, data=data, schema=wards.schema(at.folder / name, text), split=None, part=None)
    assert at.serve(at.experiment("fedavg", 1)).wait(timeout=150) == 2
    said = "schema: column 'weight' of hospital-c is not as that of hospital-a"
    assert said in at.log("run")
