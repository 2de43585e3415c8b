"""What was trained can be used: predict and export, for every method and for own networks."""

import csv
import itertools
import json
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from sandbox import small

import tacit
from tacit.cli.main import call
from tacit.core import BadInput, PartOfTests, params_of
from tacit.data import Dataset
from tacit.experiment.model_file import put_together, read_file, to_bytes
from tacit.experiment.rundir import RunDir
from tacit.methods import METHODS
from tacit.models import build

HOW = {"clients": 4, "engine": "serial", "model": "logistic"}
PUBLIC = {"engine": "serial", "model": "logistic", "split": "sizes:2x30,4x10,public=20"}
NUMBERS = itertools.count()
NET = """
import math
from torch import nn

class Net(nn.Module):
    def __init__(self, shape, classes, width=8):
        super().__init__()
        self.fixed = nn.Linear(math.prod(shape), 16)
        self.fixed.requires_grad_(False)
        self.last = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, classes))

    def forward(self, x):
        return self.last(self.fixed(x.flatten(1)))
"""


@pytest.fixture(scope="module")
def few():
    """Digits, but not many, so that all methods run in a moment."""
    digits = tacit.data.load("digits")
    train, test = (
        part.take(torch.arange(n)) for part, n in ((digits.train, 150), (digits.test, 40))
    )
    return Dataset("few", train, test, digits.classes, digits.mean, digits.std, own=False)


@pytest.fixture(scope="module")
def trained(few, tmp_path_factory):
    """Return a run of each method, made when it is first asked for."""
    made = {}

    def of(name):
        if name not in made:
            method = small(name)
            how = PUBLIC if method.needs_public else HOW
            how = how | {"model": "mlp"} if name == "fedrep" else how  # it shares all but a layer
            out = tmp_path_factory.mktemp("use") / name
            made[name] = tacit.run(method, data=few, out=out, **how)
        return made[name]

    return of


def whose(name):
    return "1" if METHODS[name].answers == "personal" else None


@pytest.mark.parametrize("name", METHODS)
def test_every_method_answers_and_its_file_says_the_same(name, trained, few, tmp_path):
    run, client = trained(name), whose(name)
    model = tacit.load(run.folder, client=client, dataset=few)
    shares = model.predict_proba(few.test.x)
    assert shares.shape == (40, 10)
    assert torch.allclose(shares.sum(1), torch.ones(40))
    if client is None:
        right = (model.predict(few.test.x) == few.test.y).double().mean().item()
        assert right == pytest.approx(run.accuracy, abs=1e-9)
    file = run.export(tmp_path / "model.safetensors", client=client, dataset=few)
    again = tacit.load(file)
    assert torch.equal(again.predict_proba(few.test.x), shares)
    assert again.description.privacy.startswith("eps ")
    assert again.classes == few.classes


def test_a_model_of_a_run_needs_neither_data_nor_method(trained, few, monkeypatch):
    """What the folder says is enough: the data set of this run is known to this program alone."""
    for name in ("fedavg", "moments"):
        trained(name)
        monkeypatch.setattr(type(small(name)), "predictor", None)
        assert tacit.load(trained(name).folder).predict(few.test.x).shape == (40,)


def test_local_has_no_model_of_all_and_gives_that_of_a_client(trained, few):
    run = trained("local")
    assert not (run.folder / "model.safetensors").exists()
    RunDir.open(run.folder).verify()
    model = tacit.load(run.folder, client="2", dataset=few)
    start = params_of(build("logistic", few.shape, 10, 0))
    assert not torch.equal(model.answers.state_dict()["1.weight"], start["1.weight"])
    with pytest.raises(BadInput, match="each client has a model of its own"):
        tacit.load(run.folder)


def test_a_clients_answers_are_in_the_public_order_of_the_classes(few, tmp_path):
    """Under acid clients number the classes as they like; nobody else knows how."""
    run = tacit.run("local:rounds=3", data=few, split="acid:2", out=tmp_path / "run", **HOW)
    per_client = run.final["per_client"]
    from tacit.data.federated import federate

    parts = federate(few, "acid:2", clients=4, seed=0).split.test
    for client, rows in enumerate(parts):
        model = tacit.load(run.folder, client=str(client), dataset=few)
        own = few.test.take(torch.as_tensor(rows))
        right = (model.predict(own.x) == own.y).double().mean().item()
        assert right == pytest.approx(per_client[str(client)])


def test_an_exported_file_says_what_it_may_reveal(trained, few, tmp_path, capsys):
    assert (
        call(
            [
                "export",
                str(trained("fedavg").folder),
                "--to",
                "safetensors",
                "--out",
                str(tmp_path / "m.safetensors"),
            ]
        )
        == 0
    )
    assert "eps inf: this file may reveal training examples" in capsys.readouterr().out
    said = json.loads(read_file(tmp_path / "m.safetensors")[0].to_json())["privacy"]
    assert "may reveal training examples" in said
    run = trained("local")  # its ledger says 0: nothing has left a client, until somebody exports
    run.export(tmp_path / "own.safetensors", client="0", dataset=few)
    assert read_file(tmp_path / "own.safetensors")[0].privacy.startswith("eps inf")


@pytest.mark.slow  # torch needs a second for each, and for ONNX more
@pytest.mark.parametrize("name", METHODS)
def test_every_method_exports_to_torch_and_onnx(name, trained, few, tmp_path):
    pytest.importorskip("onnxscript", reason="needs tacit[onnx]")
    from onnx.reference import ReferenceEvaluator

    run, client = trained(name), whose(name)
    model = tacit.load(run.folder, client=client, dataset=few)
    x = torch.rand(1000, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        want = model(x)
    near = {"rtol": 1e-5, "atol": 1e-5}  # noise makes scores of thousands, in single precision
    program = torch.export.load(run.export(tmp_path / "m.pt2", client=client, dataset=few)).module()
    assert torch.allclose(program(x), want, **near)
    assert_shares_agree(program(x), want)
    file = run.export(tmp_path / "m.onnx", client=client, dataset=few)
    (scores,) = ReferenceEvaluator(str(file)).run(None, {"inputs": x.numpy()})
    assert torch.allclose(torch.tensor(scores), want, **near)
    assert_shares_agree(torch.tensor(scores), want)


def assert_shares_agree(given, want):
    """Probabilities agree within 1e-5 where scores are moderate."""
    rows = want.abs().amax(1) < 30
    torch.testing.assert_close(given[rows].softmax(1), want[rows].softmax(1), rtol=0, atol=1e-5)


ELSEWHERE = """
import sys
sys.modules["tacit"] = None  # as if it were not installed
import torch
from safetensors import safe_open
program = torch.export.load("model.pt2").module()
x = torch.load("x.pt", weights_only=True)
torch.save(program(x), "scores.pt")
with safe_open("model.safetensors", "pt") as file:
    assert '"shape"' in file.metadata()["tacit"]
    assert file.get_tensor("1.weight").shape == (10, 64)
assert not any(name.startswith("tacit.") for name in sys.modules)
"""


@pytest.mark.slow  # a process of its own
def test_exported_files_need_no_tacit(trained, few, tmp_path):
    for name in ("model.pt2", "model.safetensors"):
        trained("fedavg").export(tmp_path / name)
    x = torch.rand(5, 1, 8, 8)
    torch.save(x, tmp_path / "x.pt")
    subprocess.run([sys.executable, "-I", "-c", ELSEWHERE], cwd=tmp_path, check=True, timeout=200)
    scores = torch.load(tmp_path / "scores.pt", weights_only=True)
    want = tacit.load(trained("fedavg").folder)(x)
    assert torch.allclose(scores, want, atol=1e-5)


# ---- new data


def table(path, header, rows):
    with path.open("w", newline="", encoding="utf-8") as f:
        csv.writer(f).writerows([header, *rows])


@pytest.fixture(scope="module")
def of_a_table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 2))
    rows = [[f"{a:.3f}", f"{b:.3f}", "ill" if a > 0 else "well"] for a, b in x]
    table(folder / "old.csv", ["age", "dose", "label"], rows)
    tacit.run(
        "fedavg:rounds=10,sgd.lr=0.5",
        data=str(folder / "old.csv"),
        classes="ill,well",
        out=folder / "run",
        **HOW,
    )
    return folder


def test_predict_finds_the_columns_of_a_table_by_name(of_a_table, tmp_path, capsys):
    new = [["2.5", "x", "0.0"], ["-2.5", "y", "0.0"]]
    table(tmp_path / "new.csv", ["age", "name", "dose"], new)
    table(tmp_path / "other.csv", ["dose", "age"], [[r[2], r[0]] for r in new])
    run = str(of_a_table / "run")
    assert call(["predict", run, str(tmp_path / "new.csv"), "--out", str(tmp_path / "p.csv")]) == 0
    text = (tmp_path / "p.csv").read_text()
    assert capsys.readouterr().out == f"2 answers in {tmp_path / 'p.csv'}\n"
    answers = list(csv.DictReader(text.splitlines()))
    assert [a["label"] for a in answers] == ["ill", "well"]
    assert [a["row"] for a in answers] == ["0", "1"]
    assert float(answers[0]["p(ill)"]) + float(answers[0]["p(well)"]) == pytest.approx(1, abs=1e-5)
    assert call(["predict", run, str(tmp_path / "other.csv")]) == 0
    assert capsys.readouterr().out == text


SCHEMA = """
task = "classes"
label = ["state"]

[[column]]
name = "sex"
kind = "category"
categories = ["f", "m"]
missing = true

[[column]]
name = "age"
kind = "number"
low = 0
high = 100

[[column]]
name = "state"
kind = "category"
categories = ["ill", "well"]
"""


def test_a_schema_tells_what_cells_of_new_tables_are(tmp_path, capsys):
    (tmp_path / "schema.toml").write_text(SCHEMA)
    rows = [["m" if i % 3 else "", i, "ill" if i > 50 else "well"] for i in range(100)]
    table(tmp_path / "old.csv", ["sex", "age", "state"], rows)
    data, schema = str(tmp_path / "old.csv"), str(tmp_path / "schema.toml")
    out = tmp_path / "run"
    tacit.run("fedavg:rounds=9,sgd.lr=0.5", data=data, schema=schema, out=out, **HOW)
    (tmp_path / "schema.toml").unlink()
    table(tmp_path / "new.csv", ["age", "sex"], [[99, ""], [1, "m"]])
    assert call(["predict", str(out), str(tmp_path / "new.csv")]) == 0
    answers = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [a["label"] for a in answers] == ["ill", "well"]
    table(tmp_path / "new.csv", ["age", "sex"], [[99, "x"]])
    assert call(["predict", str(out), str(tmp_path / "new.csv")]) == 2
    assert "sex = 'x': must be one of f, m" in capsys.readouterr().err


def test_predict_takes_images_and_arrays(trained, few, tmp_path, capsys):
    (tmp_path / "images" / "some").mkdir(parents=True)
    for i in range(3):
        picture = Image.fromarray(few.test.x[i, 0].numpy())
        picture.save(tmp_path / "images" / "some" / f"{i}.png")
    np.savez(tmp_path / "x.npz", x=few.test.x[:3].numpy())
    run = str(trained("fedavg").folder)
    assert call(["predict", run, str(tmp_path / "images")]) == 0
    first = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert call(["predict", run, str(tmp_path / "x.npz")]) == 0
    second = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [a["file"] for a in first] == ["some/0.png", "some/1.png", "some/2.png"]
    assert [a["p(3)"] for a in first] == [a["p(3)"] for a in second]
    want = tacit.load(run).predict(few.test.x[:3]).tolist()
    assert [int(a["label"]) for a in second] == want


def test_arrays_may_have_channels_last_or_none_and_pixels_of_any_scale(trained, few):
    model = tacit.load(trained("fedavg").folder)
    x = few.test.x[:5]
    want = model.predict_proba(x)
    for same in (x[:, 0], x.permute(0, 2, 3, 1), x.long(), x.float() / 255, x.numpy(), x.tolist()):
        assert torch.allclose(model.predict_proba(same), want, atol=1e-6)


WRONG = {
    "table.csv": "column 'age' is missing: it has dose; the model was trained with age, dose",
    "gap.csv": "line 3: age = '': must be a finite number",
    "nan.npz": "x: (0, 1) = nan: must be a finite number",
    "shape.npz": "x: shape (2, 3): must be (n, 2)",
    "no_x.npz": "holds ['y']: must hold x",
    "none.csv": "no such file or folder",
    "text.txt": "must be a .npz with x, a .csv or .parquet table",
    "x.png": "this model takes inputs of shape (n, 2)",
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_inputs_are_refused_in_one_line(name, of_a_table, tmp_path, capsys):
    table(tmp_path / "table.csv", ["dose"], [["1"]])
    table(tmp_path / "gap.csv", ["dose", "age"], [["1", "1"], ["1", ""]])
    np.savez(tmp_path / "nan.npz", x=np.array([[1, np.nan]]))
    np.savez(tmp_path / "shape.npz", x=np.ones((2, 3)))
    np.savez(tmp_path / "no_x.npz", y=np.ones(3))
    (tmp_path / "text.txt").write_text("hello")
    Image.new("L", (4, 4)).save(tmp_path / "x.png")
    assert call(["predict", str(of_a_table / "run"), str(tmp_path / name)]) == 2
    said = capsys.readouterr().err
    assert WRONG[name] in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("file", ["model.safetensors", "model.json"])
def test_a_damaged_run_does_not_answer(file, few, tmp_path, capsys):
    run = tacit.run("fedavg:rounds=1", data=few, out=tmp_path / "run", **HOW)
    blob = bytearray((run.folder / file).read_bytes())
    blob[len(blob) // 2] ^= 1
    (run.folder / file).write_bytes(blob)
    np.savez(tmp_path / "x.npz", x=few.test.x.numpy())
    assert call(["predict", str(run.folder), str(tmp_path / "x.npz")]) == 2
    assert f"{file}: not as it was written" in capsys.readouterr().err


def test_files_that_are_no_model_are_refused(trained, few, tmp_path):
    (tmp_path / "junk.safetensors").write_bytes(b"junk")
    with pytest.raises(BadInput, match="not a safetensors file"):
        tacit.load(tmp_path / "junk.safetensors")
    with pytest.raises(BadInput, match="does not say what it is"):
        tacit.load(trained("fedavg").folder / "model.safetensors")
    about, numbers = read_file(trained("fedavg").export(tmp_path / "m.safetensors"))
    with pytest.raises(BadInput, match="numbers do not fit its description"):
        put_together(about, {k: v[:1] for k, v in numbers.items()})


# ---- networks of one's own


@pytest.fixture
def own(few, tmp_path):
    """A run with a network of one's own, with an argument, whose file is gone."""
    file = tmp_path / f"net{next(NUMBERS)}.py"  # a name that no other test has
    file.write_text(NET)
    out, word = tmp_path / "run", f"{file}:Net:width=5"
    run = tacit.run("fedavg:rounds=1", data=few, out=out, **HOW | {"model": word})
    file.unlink()
    return run, file


def test_own_networks_take_arguments_and_answer_without_their_file(own, few, tmp_path, capsys):
    own, _ = own
    model = tacit.load(own.folder)
    assert "runs the code" in capsys.readouterr().err
    assert model.answers.last[0].out_features == 5
    assert (model.predict(few.test.x) == few.test.y).double().mean() == pytest.approx(own.accuracy)
    weights = load_file(own.folder / "model.safetensors")
    assert weights["fixed.weight"].shape == (16, 64)  # those that were not trained, too
    file = own.export(tmp_path / "m.safetensors")
    with pytest.raises(BadInput, match="needs the code"):
        tacit.load(file)
    (tmp_path / "again.py").write_text(NET)
    named = tacit.load(file, model=f"{tmp_path / 'again.py'}:Net:width=5")
    assert torch.equal(named.predict_proba(few.test.x), model.predict_proba(few.test.x))


def test_a_run_goes_on_with_the_source_that_it_began_with(own, few, tmp_path, capsys):
    own, file = own
    file.write_text(NET.replace("nn.ReLU()", "nn.Tanh()"))
    longer = tacit.resume(own.folder, rounds=2, dataset=few)
    assert "runs the code" in capsys.readouterr().err
    file = tmp_path / "same.py"
    file.write_text(NET)
    word = f"{file}:Net:width=5"
    whole = tacit.run("fedavg:rounds=2", data=few, out=tmp_path / "w", **HOW | {"model": word})
    one, two = (load_file(run.folder / "model.safetensors") for run in (longer, whole))
    assert all(torch.equal(one[k], two[k]) for k in one)


def test_code_of_another_accounts_run_is_not_run_unasked(own, few, tmp_path, monkeypatch):
    own, _ = own
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "stranger"))
    for use in (lambda: tacit.load(own.folder), lambda: tacit.resume(own.folder, dataset=few)):
        with pytest.raises(BadInput, match=r"code/net\d-.*\.py, and this account has not started"):
            use()
    assert tacit.load(own.folder, trust_code=True).classes == few.classes


def test_another_source_in_the_folder_is_never_run(own, few):
    """Neither by itself nor with a manifest that vouches for it."""
    folder = own[0].folder
    (kept,) = (folder / "code").glob("*.py")
    kept.write_text("raise SystemExit('ran')")
    with pytest.raises(BadInput, match="not as it was written"):
        tacit.load(folder)
    RunDir.open(folder).put(f"code/{kept.name}", kept.read_bytes())
    with pytest.raises(BadInput, match="has not started the run"):
        tacit.load(folder)
    about = (folder / "model.json").read_text().replace(":Net:width=5", ":Net:width=6")
    RunDir.open(folder).put("model.json", about.encode())
    with pytest.raises(BadInput, match="is not kept with it"):
        tacit.load(folder)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--model", "mlp", "--model.hiden", "3"], "model.hiden: mlp takes hidden"),
        (["--model", "logistic", "--model.width", "3"], "model.width: logistic takes no arguments"),
        (["--model.hidden", "3"], "--model.hidden: is for a network: name it with --model"),
        (["--model", "mlp", "--model.hidden"], "--model.hidden: needs a value"),
        (["--model", "mlp", "--model.hidden", "x"], "cannot be made"),
    ],
)
def test_arguments_that_no_network_takes_are_refused(flags, said, capsys):
    assert call(["run", "fedavg", *flags]) == 2
    assert said in capsys.readouterr().err


def test_networks_of_the_package_take_arguments(few):
    assert build("mlp:hidden=7", few.shape, 10, 0)[1].out_features == 7


def test_a_part_of_the_tests_is_no_client(trained, few):
    with pytest.raises(BadInput, match="client = "):
        tacit.load(trained("local").folder, client=PartOfTests(0, 1).id, dataset=few)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"order": (99,) * 10}, "order = .* must have each class once"),
        ({"order": (0,)}, "order = .* must have each class once"),
        ({"order": (-1, *range(1, 10))}, "order = .* must have each class once"),
        ({"mean": ()}, "mean = .* must be a number for each channel"),
        ({"mean": (math.nan,)}, "mean = .* must be a number for each channel"),
        ({"std": (0.0,)}, "std = .* must be a number for each channel"),
        ({"std": (0.5, 0.5)}, "std = .* must be a number for each channel"),
        ({"schema": {"a": 1}}, "schema: must have"),
    ],
)
def test_a_file_of_a_stranger_that_contradicts_itself_is_refused(trained, change, said, tmp_path):
    file = trained("fedavg").export(tmp_path / "m.safetensors")
    about, numbers = read_file(file)
    file.write_bytes(to_bytes(replace(about, **change), numbers))
    with pytest.raises(BadInput, match=f"m.safetensors': {said}"):
        tacit.load(file)


def test_complex_numbers_are_refused(trained):
    model = tacit.load(trained("fedavg").folder)
    with pytest.raises(BadInput, match="complex numbers: must be real"):
        model.predict(np.zeros((2, 1, 8, 8), complex))
