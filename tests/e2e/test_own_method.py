"""A method in a file of its own, alone in a folder: run, compared, killed, resumed, refused."""

import json
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from forked import Forked

import tacit
from tacit.cli.main import call
from tacit.codec import pack, same, unpack
from tacit.core import BadInput, own_code
from tacit.experiment.rundir import RunDir
from tacit.methods.spec import as_method, method_class
from tacit.testing import findings
from tacit.testing.checks import run_to_end

EXAMPLE = Path(__file__).parents[2] / "examples" / "02_own_method.py"
SMALL = ["--clients", "3", "--split", "label:4", "--noise", "seeded"]
ROUNDS = 12


@pytest.fixture
def alone(tmp_path):
    """A folder with nothing in it but the example."""
    folder = tmp_path / "alone"
    folder.mkdir()
    shutil.copy(EXAMPLE, folder / "mine.py")
    return folder


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Forget at the end what a test names in this process."""
    monkeypatch.setattr(own_code, "_files", dict(own_code._files))
    monkeypatch.setattr(own_code, "_packages", set(own_code._packages))
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith((own_code.PREFIX, "fake_")):
            del sys.modules[name]


@pytest.mark.parametrize("name", ["features", "seed", "out", "track"])
def test_a_setting_with_the_name_of_an_option_is_refused_in_one_line(own, capsys, name):
    (own / "mine.py").write_text(EXAMPLE.read_text().replace("server_lr", name))
    assert call(["run", f"{own}/mine.py:FedAdam", "--rounds", "1"]) == 2
    said = capsys.readouterr().err
    assert f"its setting {name!r} has the name of an option" in said
    assert said.count("\n") == 1


def test_check_method_finds_a_setting_with_the_name_of_an_option(own):
    (own / "mine.py").write_text(EXAMPLE.read_text().replace("server_lr", "seed"))
    said = findings(f"{own}/mine.py:FedAdam")
    assert any("its setting 'seed' has the name of an option" in line for line in said)


def finished(*args, cwd):
    """Run `tacit` as a process of its own and return what it printed."""
    log = cwd / "log"
    log.unlink(missing_ok=True)
    assert Forked(args, log, cwd, errors=cwd / "errors").wait(250) == 0, (
        cwd / "errors"
    ).read_text()
    return log.read_text()


def model(folder):
    return (folder / "model.safetensors").read_bytes()


def test_the_command_line_python_and_a_comparison_agree(alone):
    finished("run", "mine.py:FedAdam", "--rounds", "2", *SMALL, "--out", "A", cwd=alone)
    script = alone / "script.py"
    script.write_text(
        "import tacit\n"
        "from mine import FedAdam\n"
        "how = dict(clients=3, split='label:4', noise='seeded', workers=0)\n"
        "if __name__ == '__main__':\n"
        "    tacit.run('mine.py:FedAdam:rounds=2', out='B', **how)\n"
        "    tacit.run(FedAdam(rounds=2), out='C', **how)\n"
    )
    subprocess.run([sys.executable, "script.py"], cwd=alone, check=True, timeout=250)
    both = ["compare", "fedavg", "mine.py:FedAdam", "--rounds", "2", *SMALL, "--out", "both"]
    table = finished(*both, cwd=alone)
    assert model(alone / "A") == model(alone / "B") == model(alone / "C")
    assert [row.split()[0] for row in table.splitlines() if row.startswith(("fed", "Fed"))] == [
        "fedavg",
        "FedAdam",
    ]
    compared = list((alone / "both").glob("FedAdam*/**/model.safetensors"))
    assert [file.read_bytes() for file in compared] == [model(alone / "A")]
    for run in "ABC":
        epsilon = RunDir(alone / run).metrics()[-1]["epsilon"]["example/server"]
        assert epsilon == float("inf")


def rounds_done(folder):
    file = folder / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


@pytest.mark.skipif(sys.platform != "linux", reason="kills processes")
def test_a_killed_run_goes_on_from_another_folder_to_the_same_bits(alone, tmp_path):
    args = ["run", "mine.py:FedAdam", "--rounds", str(ROUNDS), "--sgd.epochs", "3", *SMALL]
    process = Forked([*args, "--out", "killed"], alone / "log", alone)
    try:
        end = time.monotonic() + 120
        while rounds_done(alone / "killed") < 2 and time.monotonic() < end:
            time.sleep(0.005)
    finally:
        process.kill()
    assert 2 <= rounds_done(alone / "killed") < ROUNDS
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    finished("resume", str(alone / "killed"), cwd=elsewhere)
    finished(*args, "--out", "whole", cwd=alone)
    assert rounds_done(alone / "killed") == ROUNDS
    assert model(alone / "killed") == model(alone / "whole")
    ledgers = [RunDir(alone / name).ledger() for name in ("killed", "whole")]
    assert ledgers[0] == ledgers[1]


def test_spawned_workers_find_it(own, sandbox, monkeypatch):
    shutil.copy(EXAMPLE, own / "own_spawned.py")
    method = method_class(f"{own}/own_spawned.py:FedAdam")(rounds=2, per_round=4)
    want = run_to_end(method, sandbox.serial(method), sandbox)
    monkeypatch.setattr("sys.platform", "elsewhere")
    workers = sandbox.workers(method, count=1)  # a new interpreter takes seconds
    assert not workers.fork
    assert same(want, run_to_end(method, workers, sandbox))


def test_what_fails_when_it_is_loaded_again_is_left_out(own):
    (own / "fails.py").write_text("raise ValueError('there is no second screen')\n")
    (own / "own_works.py").write_text("HERE = 1\n")
    own_code.load_again([str(own / "fails.py"), str(own / "gone.py"), str(own / "own_works.py")])
    assert own_code.trusted("tacit_own_own_works").HERE == 1


def test_an_installed_method_is_found_by_its_entry_point(own):
    shutil.copy(EXAMPLE, own / "fake_fedadam.py")
    info = own / "fake_fedadam-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-fedadam\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tacit.methods]\nfakeadam = fake_fedadam:FedAdam\n")
    with pytest.raises(BadInput, match="method = 'fakeadam'"):
        method_class("fakeadam")
    sys.path.insert(0, str(own))
    cls = method_class("fakeadam")
    assert (cls.__module__, cls.__name__) == ("fake_fedadam", "FedAdam")
    assert as_method("fakeadam:rounds=7").rounds == 7


def test_two_files_of_one_name_are_refused(own):
    for folder in ("a", "b"):
        (own / folder).mkdir()
        shutil.copy(EXAMPLE, own / folder / "own_twice.py")
    method_class(f"{own}/a/own_twice.py:FedAdam")
    with pytest.raises(BadInput) as said:
        method_class(f"{own}/b/own_twice.py:FedAdam")
    assert "a/own_twice.py has the same name; rename one of the two" in str(said.value)
    assert "\n" not in str(said.value)


def test_a_file_that_fails_on_import_is_one_line(own, capsys):
    (own / "own_broken.py").write_text("raise OSError('no\\nluck')\n")
    assert call(["run", f"{own}/own_broken.py:Mine"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "cannot be loaded (OSError: no luck)" in said
    assert "own_broken" not in " ".join(own_code._files)  # it can be mended and named again


def test_a_message_cannot_name_a_class_of_code_that_nobody_named(own):
    """The same class is built once its module was named, and never before."""
    shutil.copy(EXAMPLE, own / "fake_foreign.py")
    sys.path.insert(0, str(own))
    import fake_foreign

    blob = pack({"a": 1})
    kind = "fake_foreign:Update"
    forged = {"$": kind, "items": {"dx": {"$": "dict", "items": {}}, "n": 1}}
    blob = _with_skeleton(blob, forged)
    with pytest.raises(BadInput, match="refusing to build 'fake_foreign:Update'"):
        unpack(blob)
    with pytest.raises(TypeError, match="cannot send a Update"):
        pack(fake_foreign.Update(dx={}, n=1))
    method_class("fake_foreign:FedAdam")
    assert isinstance(unpack(blob), fake_foreign.Update)


def _with_skeleton(blob, skeleton):
    """Return a message without tensors that asks for something else."""
    size = int.from_bytes(blob[:8], "little")
    header = json.loads(blob[8 : 8 + size])
    header["__metadata__"]["json"] = json.dumps(skeleton)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + blob[8 + size :]


def test_a_message_never_imports_anything(own):
    (own / "fake_trap.py").write_text("raise SystemExit('imported')\n")
    sys.path.insert(0, str(own))
    forged = _with_skeleton(pack({"a": 1}), {"$": "fake_trap:Update", "items": {}})
    with pytest.raises(BadInput, match="refusing"):
        unpack(forged)
    assert "fake_trap" not in sys.modules


def test_what_is_no_method_is_refused_in_one_line(own):
    (own / "own_other.py").write_text("class Mine:\n    pass\n")
    with pytest.raises(BadInput, match=r"must be a subclass of tacit\.Method with @dataclass"):
        method_class(f"{own}/own_other.py:Mine")

    @dataclass(frozen=True)
    class Plain:
        pass

    with pytest.raises(BadInput, match="must be a word such as"):
        tacit.run(Plain())
