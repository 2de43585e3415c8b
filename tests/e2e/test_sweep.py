"""`tacit sweep`: table and picture; killed half-way it goes on.

Two processes share it and no point is done twice.
"""

import json
import re
import time
from pathlib import Path

import pytest
from forked import Forked

from tacit.cli.main import call

SWEEP = [
    "sweep",
    "scaffold",
    "--over",
    "sgd.lr=0.02,0.05,0.1",
    "--rounds",
    "6",
    "--sgd.epochs",
    "3",
    "--workers",
    "0",
]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def start():
    """Start `tacit`; nothing outlives the test."""
    processes = []

    def start(*args):
        name = f"process-{len(processes)}"
        processes.append(Forked(args, f"{name}.out", errors=f"{name}.err"))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()


def metrics(folder):
    return {
        f.parent.name: f.read_text().splitlines()
        for f in sorted(Path(folder).glob("*/metrics.jsonl"))
    }


def models(folder):
    return {f.parent.name: f.read_bytes() for f in sorted(Path(folder).glob("*/model.safetensors"))}


def wait_for(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_several_methods_on_a_grid(capsys):
    args = (
        "sweep fedavg fedprox:mu=0.1 --over sgd.lr=0.01,1 --over clients=3,5 --rounds 1 --repeats "
        "2 --workers 0"
    )
    assert call([*args.split(), "--out", "grid"]) == 0
    said = capsys.readouterr().out
    rows = [line for line in said.splitlines() if re.match(r"(fedavg|fedprox:mu=0.1) ", line)]
    assert len(rows) == 8
    assert all(re.search(r"\d+\.\d ± \d+\.\d +inf +example/server", line) for line in rows)
    assert (Path("grid") / "sweep.png").stat().st_size > 1000
    assert (Path("grid") / "sweep.svg").stat().st_size > 1000
    assert call(["resume", "grid"]) == 0
    assert capsys.readouterr().out == said


@pytest.mark.slow
def test_a_sweep_killed_half_way_goes_on_without_repeating_anything(capsys, start):
    process = start(*SWEEP, "--out", "killed")
    wait_for(
        lambda: any(len(lines) >= 3 for name, lines in metrics("killed").items() if "0.05" in name)
    )
    process.kill()
    before = metrics("killed")
    assert len(before["scaffold-sgd.lr=0.02-s0"]) == 6
    assert 3 <= len(before["scaffold-sgd.lr=0.05-s0"]) < 6
    assert "scaffold-sgd.lr=0.1-s0" not in before
    assert call(["resume", "killed"]) == 0
    after = metrics("killed")
    # seconds and all: not run again
    assert after["scaffold-sgd.lr=0.02-s0"] == before["scaffold-sgd.lr=0.02-s0"]
    saved = before["scaffold-sgd.lr=0.05-s0"][:-1]  # the last line may have lacked its checkpoint
    assert after["scaffold-sgd.lr=0.05-s0"][: len(saved)] == saved
    assert [json.loads(line)["round"] for line in after["scaffold-sgd.lr=0.05-s0"]] == list(
        range(1, 7)
    )
    assert call([*SWEEP, "--out", "whole"]) == 0
    assert models("killed") == models("whole")


def test_two_processes_share_a_sweep(start):
    first = start(*SWEEP, "--repeats", "2", "--out", "shared")
    wait_for(lambda: metrics("shared"))
    second = start("resume", "shared")
    codes = [process.wait(120) for process in (first, second)]
    said = [
        (Path(f"process-{n}.out").read_text(), Path(f"process-{n}.err").read_text()) for n in (0, 1)
    ]
    assert codes == [0, 0], said
    tables = [out.partition("\n\n")[2] for out, _ in said]
    assert tables[0] == tables[1]
    finished = [set(re.findall(r"^(\S+): round 6/6", err, re.MULTILINE)) for _, err in said]
    assert finished[0] & finished[1] == set()  # no point twice
    assert len(finished[0] | finished[1]) == 6
    assert all(finished)
    assert all(
        [json.loads(line)["round"] for line in lines] == list(range(1, 7))
        for lines in metrics("shared").values()
    )


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("sweep", []),
        ("sweep fedavg --over sgd.lrr=1", ["sgd.lrr", "did you mean 'sgd.lr'?"]),
        ("sweep fedavg fedprox --over mu=1", ["over (fedavg)", "'mu'"]),
        ("sweep fedavg fedavg --over sgd.lr=1", ["fedavg", "more than once"]),
        ("sweep fedavgg --over sgd.lr=1", ["'fedavgg'", "'fedavg'"]),
        ("sweep --over sgd.lr=1", ["name a method first"]),
        ("sweep fedavg --over", ["--over", "needs a value"]),
        ("sweep fedavg --over sgd.lr=1 --repeats 0", ["repeats = 0", "at least 1"]),
    ],
)
def test_bad_input_is_one_line(args, words, capsys):
    code = call(args.split())
    out, err = capsys.readouterr()
    if args == "sweep":
        assert code == 0
        assert "usage: tacit sweep METHOD" in out
        return
    assert code == 2
    assert err.startswith("tacit: ")
    assert err.count("\n") == 1
    assert all(word in err for word in words), err
    assert not list(Path().iterdir())


def test_a_folder_that_is_no_sweep(capsys):
    Path("other").mkdir()
    Path("other/sweep.json").write_text("{}")
    assert call(["resume", "other"]) == 2
    assert "sweep.json': not a sweep" in capsys.readouterr().err
