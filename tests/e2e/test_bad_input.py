"""Wrong input.

One line that names the field, the value and what is allowed, the right exit code, nothing lost.
"""

import os
import shutil
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import torch

import tacit
from tacit.cli.main import call
from tacit.data.files import FILES
from tacit.experiment.rundir import RunDir

Refused = Callable[..., str]
SERIAL = ["--workers", "0"]  # no processes: faster, and one less thing that can differ


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "data"))

    def offline(*args: object, **kwargs: object) -> None:
        raise URLError("no network")

    monkeypatch.setattr(urllib.request, "urlopen", offline)


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Refused:
    """Call the command line, and check everything that holds for every refusal; return its line."""

    def check(*args: str, code: int = 2, leaves: str = "") -> str:
        before = everything_below(tmp_path)
        capsys.readouterr()
        assert call(list(args)) == code
        out, err = capsys.readouterr()
        assert err.startswith("tacit: ")
        assert err.count("\n") == 1
        assert err.endswith("\n")
        assert "Traceback" not in out + err
        after = everything_below(tmp_path)
        changed = {f for f in before.keys() | after.keys() if before.get(f) != after.get(f)}
        assert {f for f in changed if not (leaves and f.startswith(leaves))} == set()
        return err.removeprefix("tacit: ").rstrip("\n")

    return check


def everything_below(folder: Path) -> dict[str, bytes]:
    """Return every file with its content, and every folder."""
    return {
        str(f.relative_to(folder)): f.read_bytes() if f.is_file() else b""
        for f in folder.rglob("*")
        if not (
            f.name == ".lock"
            or "__pycache__" in f.parts
            or "data" in f.relative_to(folder).parts[:1]
        )
    }


COMMAND_LINE = {
    "no such command": ("rum fedavg", ["command", "'rum'", "'run'", "compare"]),
    "no such flag": ("run fedavg --rond 3", ["--rond", "unknown option", "--rounds"]),
    "no such flag of a part": ("run fedavg --sgd.rate 3", ["--sgd.rate", "unknown option"]),
    "a flag of another method": ("run fedavg --mu 1", ["--mu", "unknown option"]),
    "a word too many": ("run fedavg extra-word", ["extra-word", "unknown"]),
    "no such method": ("run fedavgg", ["method", "'fedavgg'", "'fedavg'", "scaffold"]),
    "not a whole number": ("run fedavg --rounds x", ["--rounds", "'x'", "whole number"]),
    "half a round": ("run fedavg --rounds 1.5", ["--rounds", "'1.5'", "whole number"]),
    "not a number of workers": (
        "run fedavg --workers x",
        ["--workers", "'x'", "whole number", "auto"],
    ),
    "not a number": ("run fedavg --sgd.lr abc", ["--sgd.lr", "'abc'", "number"]),
    "no value": ("run fedavg --rounds", ["--rounds", "needs a value", "whole number"]),
    "no value in a part": ("run fedavg --sgd.lr", ["--sgd.lr", "needs a value", "number"]),
    "negative rounds": ("run fedavg --rounds -1", ["rounds", "-1", "at least 0"]),
    "step 0": ("run fedavg --sgd.lr 0", ["lr", "0.0", "above 0"]),
    "step nan": ("run fedavg --sgd.lr nan", ["lr", "nan", "above 0"]),
    "momentum 1": ("run fedavg --sgd.momentum 1", ["momentum", "1.0", "below 1"]),
    "no clients": ("run fedavg --clients 0", ["clients", "0", "at least 1"]),
    "delta 2": ("run fedavg --delta 2", ["delta", "2.0", "below 1"]),
    "negative mu": ("run fedprox --mu -1", ["mu", "-1.0", "at least 0"]),
    "never evaluated": ("run fedavg --eval-every 0", ["eval_every", "0", "at least 1"]),
    "negative seed": ("run fedavg --seed -1", ["seed", "-1", "at least 0"]),
    "negative workers": ("run fedavg --workers -1", ["workers", "-1", "at least 0"]),
    "sample above all": (
        "run fedavg --per-round 50 --clients 10",
        ["per_round", "50", "at most 10"],
    ),
    "no such device": ("run fedavg --device gpu", ["device", "'gpu'", "auto", "cpu", "cuda"]),
    "no such data": ("run fedavg --data mnits", ["data", "'mnits'", "'mnist'", "cifar10"]),
    "no such path": (
        "run fedavg --data ./no/such.npz",
        ["data", "'./no/such.npz'", "no such file", "mnist"],
    ),
    "no such split": ("run fedavg --split labels:1", ["split", "'labels'", "'label'", "dirichlet"]),
    "too many classes": (
        "run fedavg --split label:11",
        ["split", "'label:11'", "between 1 and 10"],
    ),
    "no class": ("run fedavg --split label:0", ["split", "'label:0'", "between 1 and 10"]),
    "x classes": ("run fedavg --split label:x", ["split", "'label:x'", "whole number"]),
    "negative beta": ("run fedavg --split dirichlet:-1", ["split", "'dirichlet:-1'", "above 0"]),
    "more clients than examples": (
        "run fedavg --clients 5000",
        ["clients", "5000", "at most 1437"],
    ),
    "no such network": ("run fedavg --model resnet", ["model", "'resnet'", "'resnet18'", "mlp"]),
    "network for larger images": (
        "run fedavg --model vgg16",
        ["model", "'vgg16'", "32x32", "1x8x8"],
    ),
    "network that is not there": (
        "run fedavg --model no_module:Net",
        ["model", "'no_module:Net'", "no_module"],
    ),
    "nothing compared": ("compare", ["methods", "at least one"]),
    "compared twice": ("compare fedavg fedavg", ["methods", "fedavg", "more than once"]),
    "compared: no such method": ("compare fedavgg", ["method", "'fedavgg'", "'fedavg'"]),
    "compared: no value": ("compare fedprox:mu", ["'fedprox:mu'", "key=value"]),
    "compared: no such key": ("compare fedprox:nu=1", ["'nu'", "mu", "rounds"]),
    "compared: wrong type": ("compare fedprox:mu=x", ["method.mu", "'x'", "number"]),
    "compared: no such nested key": ("compare fedprox:sgd.lrr=1", ["method.sgd", "'lrr'", "'lr'"]),
    "compared: part that is none": ("compare fedprox:rounds.x=1", ["method.rounds", "integer"]),
    "compared 0 times": ("compare fedavg --repeats 0", ["repeats", "0", "at least 1"]),
    "cost of no rounds": ("privacy ldp_fl --rounds 0", ["rounds", "0", "at least 1"]),
    "claims for no rounds": ("privacy ldp_fl --paper --rounds 0", ["rounds", "0", "at least 1"]),
    "compared over no rounds": ("compare fedavg --rounds 0", ["rounds", "0", "at least 1"]),
    "resume nothing": ("resume nowhere", ["nowhere", "not a run directory", "config.toml"]),
    "resume two": ("resume one two", ["two", "unknown option", "DIR"]),
    "no such data command": ("data gett", ["'gett'", "'get'", "check"]),
    "get what": ("data get", ["data get", "name a data set", "mnist"]),
    "get something unknown": ("data get mnits", ["'mnits'", "'mnist'"]),
    "methods of": ("methods fedavg", ["fedavg", "unknown option"]),
    "doctor of": ("doctor me", ["me", "unknown option"]),
    "join: nothing": ("join", ["--server, --name, --data: missing", "tacit join --help"]),
    "join: no data": ("join --server 127.0.0.1:9092 --name a", ["--data: missing", "explains it"]),
    "synth: a flag for what has none": (
        "synth --data digits",
        ["--data: unknown option", "stands by itself, without --data"],
    ),
    "synth for nothing": ("synth digits --epsilon 0", ["epsilon = 0.0: must be", "above 0"]),
    "synth: labels cost all": (
        "synth digits --generator gan --epsilon 0.5 --label-epsilon 0.5",
        ["label_epsilon = 0.5", "below 0.5"],
    ),
    "noise that costs more than it may": (
        "run fedavg --rounds 2 --sgd.clip 1 --sgd.z 1 --sgd.epsilon 4",
        ["sgd.z = 1", "costs eps", "sgd.epsilon = 4", "give one"],
    ),
    "noise that costs less than it may": (
        "run fedavg --rounds 2 --sgd.clip 1 --sgd.z 9 --sgd.epsilon 4",
        ["sgd.z = 9", "costs eps", "sgd.epsilon = 4", "give one"],
    ),
    "mu and epsilon": ("run cuag --mu 1 --epsilon 3", ["mu = 1", "epsilon = 3", "give one"]),
    "epsilon and epsilons": ("run ldp_fl --epsilons 1 4 --epsilon 3", ["epsilon = 3", "epsilons"]),
    "relation of another mode": (
        "run ldp_fl --mode paper --relation replace",
        ["relation", "'paper'", "'gradient'"],
    ),
    "clients beside sizes": (
        "run fedavg --split sizes:4x100 --clients 20",
        ["clients = 20", "must be 4", "sizes:4x100"],
    ),
    "split: clients beside sizes": (
        "split --split sizes:4x100 --clients 20",
        ["clients = 20", "must be 4"],
    ),
    "split: no such scheme": ("split --split foo", ["split", "'foo'", "iid"]),
    "split: no name": ("split --out .", ["out", "'.'", "split.png"]),
}


@pytest.mark.parametrize("case", COMMAND_LINE)
def test_command_line(case: str, refused: Refused) -> None:
    line, words = COMMAND_LINE[case]
    said = refused(*line.split())
    assert [w for w in words if w not in said] == []
    assert "pool_epsilon" not in said


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_no_cuda_here(refused: Refused) -> None:
    assert refused("run", "fedavg", "--device", "cuda") == (
        "device = 'cuda': there is no CUDA device here; allowed: auto, cpu"
    )


# ---- data
# --------------------------------------------------------------------------------------------------


def test_npz_cut_short(tmp_path: Path, refused: Refused) -> None:
    np.savez(tmp_path / "own.npz", x=np.zeros((40, 3), np.float32), y=np.arange(40) % 2)
    whole = (tmp_path / "own.npz").read_bytes()
    for size in (0, 10, len(whole) // 2, len(whole) - 1):
        (tmp_path / "own.npz").write_bytes(whole[:size])
        assert "own.npz: cannot be read as .npz" in refused("run", "fedavg", "--data", "own.npz")


def test_nan_in_csv(tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "own.csv").write_text("a,b,label\n1,2,0\n3,nan,1\n")
    assert refused("run", "fedavg", "--data", "own.csv").startswith(
        "own.csv line 3: b = 'nan': must be a finite number"
    )


@pytest.mark.parametrize(
    "command", ["run fedavg --data mnist", "split --data mnist", "data get mnist"]
)
def test_official_file_missing_and_no_network(
    command: str, tmp_path: Path, refused: Refused
) -> None:
    said = refused(*command.split())
    assert "train-images-idx3-ubyte.gz" in said
    assert "put train-images-idx3-ubyte.gz (from https://" in said
    assert f"in {tmp_path / 'data' / 'MNIST' / 'raw'}" in said
    assert not list((tmp_path / "data").rglob("*.part"))


def test_check_of_a_missing_file(tmp_path: Path, refused: Refused) -> None:
    said = refused("data", "check", "mnist")
    assert said.startswith(f"{tmp_path / 'data' / FILES['mnist'][0].path}: missing")


def test_official_file_cut_short_or_changed(tmp_path: Path, refused: Refused) -> None:
    for file in FILES["mnist"]:
        path = tmp_path / "data" / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as f:
            f.truncate(file.size)  # of the right size, but all zeros
    first, size = FILES["mnist"][0], FILES["mnist"][0].size
    path = tmp_path / "data" / first.path
    for command in ("run fedavg --data mnist", "data check mnist"):
        said = refused(*command.split())
        assert said.startswith(f"{path}: not the official file: md5 ")
        assert first.digest in said
        assert "delete it" in said
    os.truncate(path, 1000)
    said = refused("run", "fedavg", "--data", "mnist")
    assert said.startswith(f"{path}: cut short: 1,000 bytes where the official file has {size:,}")
    assert path.stat().st_size == 1000  # the user's file is left alone


# ---- experiment files
# ------------------------------------------------------------------------------------------------

TOML = {
    "unknown key": ('clinets = 5\nmethod.name = "fedavg"', ["'clinets'", "'clients'"]),
    "unknown key of the method": (
        '[method]\nname = "fedprox"\nmuu = 1',
        ["method", "'muu'", "'mu'"],
    ),
    "unknown nested key": (
        '[method]\nname = "fedavg"\n[method.sgd]\nepoch = 1',
        ["method.sgd", "'epoch'", "'epochs'"],
    ),
    "wrong type": ('clients = "5"\nmethod.name = "fedavg"', ["clients", "'5'", "integer"]),
    "wrong type in the method": (
        '[method]\nname = "fedavg"\nrounds = 1.5',
        ["method.rounds", "1.5", "integer"],
    ),
    "a date": (
        'clients = 2020-01-01\nmethod.name = "fedavg"',
        ["clients", "'2020-01-01'", "integer"],
    ),
    "wrong type of a part": ('[method]\nname = "fedavg"\nsgd = 5', ["method.sgd", "5", "object"]),
    "out of range": (
        '[method]\nname = "fedavg"\n[method.sgd]\nlr = -1.0',
        ["lr", "-1.0", "above 0"],
    ),
    "nan": ('delta = nan\nmethod.name = "fedavg"', ["delta", "nan", "above 0"]),
    "not TOML": ("clients: 5", ["not TOML", "line 1"]),
    "no method": ("clients = 5", ["method: missing", "fedavg"]),
    "no name": ("[method]\nrounds = 5", ["method.name: missing", "fedavg"]),
    "unknown method": ('method = "fedavgg"', ["method", "'fedavgg'", "'fedavg'"]),
    "method of no kind": ("method = 5", ["method", "5", "name"]),
    "unknown device": ('device = "gpu"\nmethod.name = "fedavg"', ["device", "'gpu'", "'cpu'"]),
}


@pytest.mark.parametrize("case", TOML)
def test_experiment_file(case: str, tmp_path: Path, refused: Refused) -> None:
    text, words = TOML[case]
    (tmp_path / "e.toml").write_text(text + "\n")
    said = refused("run", "e.toml")
    assert [w for w in ["e.toml", *words] if w not in said] == []


def test_experiment_file_that_cannot_be_read(tmp_path: Path, refused: Refused) -> None:
    assert refused("run", "no.toml") == "no.toml: cannot be read (No such file or directory)"
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    assert "bytes.toml: not TOML" in refused("run", "bytes.toml")
    (tmp_path / "folder.toml").mkdir()
    assert "folder.toml: cannot be read" in refused("run", "folder.toml")


# ---- networks of the user's own
# --------------------------------------------------------------------------------------

OWN_NETWORKS = {
    "other classes": (
        "class Net(nn.Linear):\n    def __init__(self):\n        super().__init__(8, 7)",
        "10 classes",
    ),
    "no module": ("class Net:\n    pass", "must make a torch.nn.Module"),
    "no such class": ("class Other(nn.Module):\n    pass", "cannot be loaded"),
    "not Python": ("class class", "SyntaxError"),
    "fails on import": ("raise RuntimeError('one\\ntwo')", "RuntimeError: one two"),
    "fails when made": (
        "class Net(nn.Module):\n    def __init__(self):\n        {}['key']",
        "KeyError: 'key'",
    ),
    "no forward": ("class Net(nn.Module):\n    pass", "does not take inputs"),
    "silent failure": (
        "class Net(nn.Module):\n    def forward(self, x):\n        assert False",
        "AssertionError",
    ),
    "gives a pair": (
        "class Net(nn.Module):\n    def forward(self, x):\n        return x, x",
        "AttributeError",
    ),
    "batch norm": (
        (
            "class Net(nn.Sequential):\n    def __init__(self):\n        "
            "super().__init__(nn.BatchNorm2d(1))"
        ),
        "Group",
    ),
}


@pytest.mark.parametrize("case", OWN_NETWORKS)
def test_own_network(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    code, words = OWN_NETWORKS[case]
    module = f"own_{case.replace(' ', '_')}"
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / f"{module}.py").write_text(f"from torch import nn\n{code}\n")
    said = refused("run", "fedavg", "--model", f"{module}:Net")
    assert said.startswith(f"model = '{module}:Net': ")
    assert words in said


# ---- run directories
# -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a finished run of two rounds. Copy it before damaging it."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    assert call(["run", "scaffold", "--rounds", "2", *SERIAL, "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def rewrite(run: Path, text: str) -> None:
    """Replace a run's config.toml, as its owner may."""
    RunDir.open(run).put("config.toml", text.encode())


def states(run: Path) -> list[Path]:
    return sorted((run / "checkpoint").glob("state-*.safetensors"))


def test_resume_of_a_run_with_sites(run: Path, refused: Refused) -> None:
    config = run / "config.toml"
    rewrite(run, config.read_text().replace('"iid"', '"sites"').replace('"digits"', '"sites"'))
    assert refused("resume", "run") == "'run': a run with sites; `tacit serve run` continues it"


def test_resume_of_a_run_whose_data_only_a_program_has(tmp_path: Path, refused: Refused) -> None:
    own = replace(tacit.data.load("digits"), name="own")
    tacit.run("fedavg:rounds=1", data=own, workers=0, out=tmp_path / "run")
    tacit.compare(["fedavg:rounds=1"], data=own, workers=0, out=tmp_path / "compare")
    said = refused("resume", "run")
    assert said.startswith("data = 'own': neither a known data set nor a file here")
    assert "tacit.resume(folder, dataset=...)" in said
    assert tacit.resume(tmp_path / "run", dataset=own).final["round"] == 1
    assert "resume_comparison(folder, dataset=...)" in refused("resume", "compare")


def test_resume_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "own.npz", x=np.eye(40, 3, dtype=np.float32), y=np.arange(40) % 2)
    (tmp_path / "own.csv").write_text("a,b,kind\n" + "1,2,0\n3,4,1\n" * 20)
    few = ["--clients", "2", "--rounds", "1", *SERIAL]
    assert call(["run", "fedavg", "--data", "own.npz", *few, "--out", "run"]) == 0
    assert call(["run", "fedavg", "--data", "./own.csv:kind", *few, "--out", "table"]) == 0
    assert call(["compare", "fedavg", "--data", "own.npz", *few, "--out", "compare"]) == 0
    assert (
        call(
            ["sweep", "fedavg", "--over", "sgd.lr=0.1", "--data", "own.npz", *few, "--out", "sweep"]
        )
        == 0
    )
    assert RunDir.open(tmp_path / "run").experiment().setting.data == str(tmp_path / "own.npz")
    assert (
        RunDir.open(tmp_path / "table").experiment().setting.data == f"{tmp_path / 'own.csv'}:kind"
    )
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for folder in ("run", "table", "compare", "sweep"):
        assert call(["resume", f"../{folder}"]) == 0


def test_out_onto_a_run(run: Path, refused: Refused) -> None:
    for command in ("run fedavg --out run", "compare fedavg --out run"):
        said = refused(*command.split())
        assert said.startswith("out = 'run': there is a run")
        assert "tacit resume run" in said
    (run / "config.toml").unlink()  # still full of another run's rounds
    assert refused("run", "fedavg", "--out", "run").startswith(
        "out = 'run': there is a run already"
    )


def test_out_cannot_be_written(tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "file").write_text("not a folder")
    for command in ("run fedavg", "compare fedavg"):
        assert refused(*command.split(), "--out", "file/below").startswith(
            "out = 'file/below': cannot be written"
        )
        assert refused(*command.split(), "--out", "file").startswith(
            "out = 'file': cannot be written"
        )
    assert "file" in refused("split", "--out", "file/below.png")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_out_is_read_only(tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    assert "Permission denied" in refused("run", "fedavg", "--out", "closed/run")


def test_resume_of_something_else(tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "other").mkdir()
    assert refused("resume", "other").startswith("'other': not a run directory")
    (tmp_path / "other" / "comparison.json").write_text("{")
    assert "comparison.json': not a comparison" in refused("resume", "other")
    for text in (
        '{"methods": [1]}',
        '{"methods": ["fedavg"], "repeats": 1.5}',
        "[]",
        '{"setting": {}}',
    ):
        (tmp_path / "other" / "comparison.json").write_text(text)
        assert "comparison.json': not a comparison" in refused("resume", "other")


@pytest.mark.parametrize("text", ["", "method = ", 'method = "scaffold"\nround = 1\n'])
def test_config_damaged(run: Path, refused: Refused, text: str) -> None:
    (run / "config.toml").write_text(text)
    assert refused("resume", "run").startswith("run/config.toml: ")


def test_config_of_another_experiment(run: Path, refused: Refused) -> None:
    config = (run / "config.toml").read_text()
    for change in (('"scaffold"', '"fedavg"'), ('"mlp"', '"logistic"')):
        rewrite(run, config.replace(*change).replace("server_lr", "# server_lr"))
        said = refused("resume", "run")
        assert said == "'run': its checkpoint is not of the method and network in config.toml"


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_checkpoint_cut_short(run: Path, refused: Refused, keep: int) -> None:
    for state in states(run):
        state.write_bytes(state.read_bytes()[:keep])
    said = refused("resume", "run")
    assert said.startswith("run/checkpoint/state-000002.safetensors: ")
    assert said.endswith("; there is no other checkpoint to go back to")


def test_checkpoint_replaced(run: Path, refused: Refused) -> None:
    kept = next((run / "checkpoint" / "clients").rglob("*.safetensors"))
    for other in (run / "model.safetensors", kept):
        for state in states(run):
            shutil.copy(other, state)
        assert "run/checkpoint/state-000002.safetensors" in refused("resume", "run")


@pytest.mark.parametrize("damage", ["cut", "gone", "the one before"])
def test_a_damaged_checkpoint_is_left_out_with_a_word(
    run: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run goes on from the one before, and ends where it ended."""
    model = (run / "model.safetensors").read_bytes()
    first, last = states(run)
    if damage == "gone":
        last.unlink()
    else:
        last.write_bytes(first.read_bytes() if "before" in damage else last.read_bytes()[:-1])
    capsys.readouterr()
    assert call(["resume", "run"]) == 0
    said = capsys.readouterr().err
    assert "tacit: checkpoint of round 2 left out: run/checkpoint/state-000002" in said
    assert "tacit: going on from the checkpoint of round 1\n" in said
    assert (run / "model.safetensors").read_bytes() == model
    assert [line["round"] for line in RunDir.open(run).metrics()] == [1, 2]
    assert len(states(run)) == 2


@pytest.mark.parametrize("damage", [b"{\n", b"\xff\xfe\n", b"5\n", b'{"round": 1}\n'])
def test_metrics_damaged(run: Path, refused: Refused, damage: bytes) -> None:
    metrics = run / "metrics.jsonl"
    metrics.write_bytes(damage + metrics.read_bytes())
    assert refused("resume", "run").startswith("run/metrics.jsonl: ")


@pytest.mark.parametrize("damage", [b"{\n", b"5\n"])
def test_ledger_damaged(run: Path, refused: Refused, damage: bytes) -> None:
    ledger = run / "ledger.jsonl"
    ledger.write_bytes(damage + ledger.read_bytes())
    assert refused("resume", "run").startswith("run/ledger.jsonl: not as it was written; ")


# ---- training that goes wrong
# ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", ["0", "2"])
def test_divergence_at_once(workers: str, refused: Refused, tmp_path: Path) -> None:
    said = refused(
        *(
            "run",
            "fedavg",
            "--sgd.lr",
            "1e30",
            "--rounds",
            "2",
            "--workers",
            workers,
            "--out",
            "run",
        ),
        leaves="run",
    )
    assert "round 1, client " in said
    assert "not finite" in said
    assert RunDir.open(tmp_path / "run").metrics() == []


@pytest.mark.parametrize(("method", "flag"), [("fedavg", "sgd.lr"), ("pfldyn", "local.lr")])
def test_divergence_names_the_learning_rate(method: str, flag: str, refused: Refused) -> None:
    said = refused(
        "run", method, f"--{flag}", "1e38", "--rounds", "1", *SERIAL, "--out", "run", leaves="run"
    )
    assert flag in said.partition("may help")[2]


def test_divergence_later_keeps_the_rounds_before(run: Path, refused: Refused) -> None:
    config = (run / "config.toml").read_text()
    rewrite(run, config.replace("rounds = 2", "rounds = 5").replace("\nlr = 0.05", "\nlr = 1e30"))
    last = "checkpoint/state-000002.safetensors"
    before = {f: (run / f).read_bytes() for f in ("metrics.jsonl", "model.safetensors", last)}
    assert "round 3, client " in refused("resume", "run", leaves="run/")
    assert {f: (run / f).read_bytes() for f in before} == before
    rewrite(run, config.replace("rounds = 2", "rounds = 3"))
    assert call(["resume", "run"]) == 0  # with a step that works it goes on
    assert [line["round"] for line in RunDir.open(run).metrics()] == [1, 2, 3]


def test_network_that_fails_in_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_training.py").write_text(
        "from torch import nn\nclass Net(nn.Module):\n    def __init__(self):\n        "
        "super().__init__()\n        self.last = nn.Linear(64, 10)\n    def forward(self, x):\n"
        "        if self.training:\n            raise RuntimeError('one\\ntwo')\n        return "
        "self.last(x.flatten(1))\n"
    )
    said = refused(
        "run",
        "fedavg",
        "--model",
        "own_training:Net",
        "--workers",
        "1",
        "--out",
        "run",
        code=4,
        leaves="run",
    )
    assert "round 1: 0 of 10 clients replied" in said
    assert "RuntimeError: one two" in said
