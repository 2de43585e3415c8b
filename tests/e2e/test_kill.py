"""A run that is killed in the middle of a round goes on as if nothing had happened."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from forked import Forked

from tacit.cli.main import call
from tacit.experiment.rundir import RunDir

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

ROUNDS = 12
RUN = [
    "run",
    "scaffold",
    "--rounds",
    str(ROUNDS),
    "--sgd.epochs",
    "3",
    "--split",
    "label:2",
    "--workers",
    "2",
]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., Forked]]:
    """Start `tacit` as a process of its own; whatever happens, it does not outlive the test."""
    processes: list[Forked] = []

    def start(*args: str) -> Forked:
        processes.append(Forked(args, tmp_path / "log", tmp_path))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()


def wait_for(condition: Callable[[], object], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def finished_rounds(folder: Path) -> int:
    metrics = folder / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def test_killed_run_ends_as_an_undisturbed_one(
    tmp_path: Path,
    started: Callable[..., Forked],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    killed, whole = tmp_path / "A", tmp_path / "B"
    process = started(*RUN, "--out", "A")
    assert wait_for(lambda: finished_rounds(killed) >= 3, 60)
    workers = children(process.pid)
    assert len(workers) == 2

    # While it runs, nobody else may.
    os.kill(process.pid, signal.SIGSTOP)
    capsys.readouterr()
    assert call(["resume", "A"]) == 2
    assert capsys.readouterr().err == "tacit: 'A': another process is running it\n"
    os.kill(process.pid, signal.SIGCONT)

    seen = finished_rounds(killed)
    assert wait_for(lambda: finished_rounds(killed) > seen, 30)
    time.sleep(0.03)  # into the next round
    assert process.kill() == -signal.SIGKILL
    assert finished_rounds(killed) < ROUNDS
    assert wait_for(lambda: not any(map(alive, workers)), 10), "workers outlive the run"

    assert call(["resume", "A"]) == 0
    assert call([*RUN, "--out", "B"]) == 0
    assert (killed / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    a, b = RunDir.open(killed).metrics(), RunDir.open(whole).metrics()
    assert [line["round"] for line in a] == list(range(1, ROUNDS + 1))
    measured = ("accuracy", "loss", "per_class", "own_data", "epsilon")
    assert [[line[k] for k in measured] for line in a] == [
        [line[k] for k in measured] for line in b
    ]
    ledgers = [sorted((run / "ledger.jsonl").read_text().splitlines()) for run in (killed, whole)]
    assert ledgers[0] == ledgers[1]  # nothing is missing, and nothing counts twice
