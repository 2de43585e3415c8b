"""Tacit itself, as a user runs it.

Worker processes, run directory, ledger and a checkpoint after every round.
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import workload
from safetensors.torch import load_file

from tacit.data.examples import Dataset, Examples
from tacit.data.federated import Federation
from tacit.data.splits import Split
from tacit.experiment.config import Experiment, Setting
from tacit.experiment.plan import Plan
from tacit.experiment.rundir import RunDir
from tacit.local.sgd import SGD
from tacit.methods.fedavg import FedAvg


class Clock:
    """Notes when each round ended, and when the first client had answered."""

    def __init__(self) -> None:
        self.first_answer = 0.0
        self.ends = [time.perf_counter()]

    def begin(self, label: str, rounds: int) -> None:
        """Ignore a start."""

    def answered(self, done: int, of: int) -> None:
        """Note the first answer."""
        self.first_answer = self.first_answer or time.time()

    def finished_round(self, line: dict[str, Any], rounds: int) -> None:
        """Note the end of a round, with its checkpoint written."""
        self.ends.append(time.perf_counter())


def federation(work: workload.Workload) -> Federation:
    """Put every client's data into one shared set, as the loaders do."""
    parts = [workload.client_data(i, work.images) for i in range(work.clients)]
    train = Examples(torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts]))
    rows = tuple(np.array_split(np.arange(len(train)), work.clients))
    none = tuple(np.arange(0) for _ in rows)
    test = train.take(torch.arange(workload.CLASSES))
    dataset = Dataset("random", train, test, tuple("0123456789"), mean=(0.0,), std=(1.0,))
    return Federation(dataset, Split(train=rows, test=none))


def main() -> None:
    """Run the benchmark and print its line."""
    parser = workload.make_parser(__doc__)
    work = workload.read_workload(parser, parser.parse_args())
    method = FedAvg(rounds=work.rounds, sgd=SGD(lr=workload.LEARNING_RATE, batch=workload.BATCH))
    experiment = Experiment(
        method, Setting(clients=work.clients, model="dafl-cnn", eval_every=work.rounds)
    )
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder, workload.PeakMemory() as memory:
        plan = Plan(experiment, federation(work), workload.build_model(), "cpu", workers=2)
        plan.conduct(RunDir.create(Path(folder), experiment), clock)
        norm = workload.weight_norm(load_file(Path(folder) / "model.safetensors"))
    print(f"weight norm {norm:.6f}", file=sys.stderr)
    # first_round_s: until the first client has answered, so later than for the peers.
    timing = workload.Timing(
        clock.first_answer, [b - a for a, b in zip(clock.ends, clock.ends[1:], strict=False)]
    )
    workload.print_report("tacit", work, timing, memory)


if __name__ == "__main__":
    main()
