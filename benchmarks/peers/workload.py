"""The work every peer does, and how it is measured.

N clients hold M random 1x28x28 images each. In every round every client trains a small CNN for one
epoch (batches of 32 in stored order, plain SGD, no evaluation) and the server averages the models.
Peers differ in nothing else, so what is left is the cost of the simulator.
"""

import argparse
import json
import os
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor, nn

SEED = 7
BATCH = 32
LEARNING_RATE = 0.01
CLASSES = 10
IMAGE_SHAPE = (1, 28, 28)
START_VARIABLE = "TACIT_BENCH_T0"


@dataclass(frozen=True)
class Workload:
    """How many clients, images per client and rounds."""

    clients: int
    images: int
    rounds: int


@dataclass(frozen=True)
class Timing:
    """What a peer measured.

    When its first client's first batch went in (`time.time()`), and how long rounds took.
    """

    first_start: float
    round_s: list[float]


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Return the parser with the arguments all peers share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--images", type=int, default=1024, help="images per client")
    parser.add_argument(
        "--rounds", type=int, default=5, help="at least 2: the first one is not counted as steady"
    )
    return parser


def read_workload(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> Workload:
    """Check the shared arguments and return them as a workload."""
    if arguments.rounds < 2 or arguments.clients < 1 or arguments.images < 1:
        parser.error("needs at least 2 rounds, 1 client and 1 image")
    return Workload(arguments.clients, arguments.images, arguments.rounds)


@cache
def client_data(client: int, images: int) -> tuple[Tensor, Tensor]:
    """Return one client's images and labels; the same in every process, made once per process."""
    generator = torch.Generator().manual_seed(SEED * 1_000_003 + client)
    inputs = torch.randn(images, *IMAGE_SHAPE, generator=generator)
    labels = torch.randint(0, CLASSES, (images,), generator=generator)
    return inputs, labels


def build_model() -> nn.Sequential:
    """Return the CNN with the same initial weights every time."""
    torch.manual_seed(SEED)
    return nn.Sequential(
        nn.Conv2d(1, 16, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 128),
        nn.ReLU(),
        nn.Linear(128, CLASSES),
    )


def train_one_epoch(model: nn.Module, inputs: Tensor, labels: Tensor) -> float:
    """Train `model` in place for one epoch, as a client does in one round.

    Return when its first batch went in.

    Making the first optimizer of a process imports much of torch, so starting the clock before it
    would hide that.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    started = time.time()
    for start in range(0, len(labels), BATCH):
        optimizer.zero_grad()
        outputs = model(inputs[start : start + BATCH])
        nn.functional.cross_entropy(outputs, labels[start : start + BATCH]).backward()
        optimizer.step()
    return started


def weight_norm(state: Mapping[str, Tensor]) -> float:
    """Return the norm of all weights together: peers that do the same work agree on it."""
    return float(torch.cat([tensor.flatten() for tensor in state.values()]).double().norm())


def process_start() -> float:
    """Return when this process started, as `time.time()`.

    A parent may say so in TACIT_BENCH_T0; otherwise it is read from /proc, good to about 0.02 s.
    """
    if START_VARIABLE in os.environ:
        return float(os.environ[START_VARIABLE])
    after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started = int(after_name[19]) / os.sysconf("SC_CLK_TCK")
    return time.time() - (float(Path("/proc/uptime").read_text().split()[0]) - started)


def process_tree(root: int) -> list[int]:
    """Return `root` and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    tree = [root]
    for pid in tree:
        tree.extend(children.get(pid, []))
    return tree


def process_memory(pid: int) -> int:
    """Return one process's memory in bytes.

    Its proportional share (PSS), else what is resident, else 0.
    """
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


class PeakMemory:
    """Samples the memory of this process and its descendants in a thread, inside a `with` block.

    Reading memory costs time, so the pause is at least 100 times as long as the last reading took.
    """

    def __init__(self, interval_s: float = 0.2) -> None:
        self._interval_s = interval_s
        self._root = os.getpid()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._peak = 0

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def peak_mb(self) -> float:
        """The highest reading so far, in MB (10^6 bytes)."""
        return self._peak / 1e6

    def _run(self) -> None:
        pause = 0.0
        while not self._stop.wait(pause):
            begun = time.monotonic()
            self._peak = max(
                self._peak, sum(process_memory(pid) for pid in process_tree(self._root))
            )
            pause = max(self._interval_s, 100 * (time.monotonic() - begun))


def steady_rate(images: int, round_s: Sequence[float]) -> float:
    """Return images per second from the median of the rounds after the first."""
    return images / statistics.median(round_s[1:])


def print_report(
    peer: str,
    workload: Workload,
    timing: Timing,
    memory: PeakMemory,
    images_per_s: float | None = None,
) -> None:
    """Print the one line of JSON a peer ends with."""
    rate = (
        steady_rate(workload.clients * workload.images, timing.round_s)
        if images_per_s is None
        else images_per_s
    )
    line = {
        "peer": peer,
        "images_per_s": round(rate, 1),
        "first_round_s": round(timing.first_start - process_start(), 3),
        "round_s": [round(seconds, 4) for seconds in timing.round_s],
        "peak_mb": round(memory.peak_mb, 1),
    }
    print(json.dumps(line), flush=True)
