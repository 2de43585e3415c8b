"""How the cost of a round grows: with clients, with parameters, with participants.

    python benchmarks/scale.py [--rounds 30] [--only clients,parameters,participants] [--repeats 3]

Clients: 10^2 to 10^5, twenty of them in a round: nothing but their number differs. Parameters: 10^5
to 10^7. Participants: 10 to 200 of 1,000 in a round. Every run is a process of its own and does
what a user's run does: run directory, ledger, checkpoint, kept state on disk. Shown are the median
seconds of a round after the first three, the peak memory over all processes, the bytes of a round
that are sent, and the seconds as a ratio to the smallest case, beside the ratio of the work: where
the first is larger than the second, something grows faster than its work. `--plot FILE.png` draws
that.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "peers"))

# of each client that takes part; clients share a small set, so that only their number differs
IMAGES = 128
METHODS = ("fedavg", "scaffold")
FIRST = 3  # rounds that are not counted


@dataclass(frozen=True)
class Case:
    """One simulation; ``work`` is how much more there is to do than in the smallest of its kind."""

    method: str
    clients: int = 1_000
    parameters: int = 0  # 0: DA-FL's CNN
    participants: int = 20
    work: float = 1.0


AXES: dict[str, list[tuple[int, float]]] = {  # values, and the work of a round for each
    "clients": [(100, 1.0), (1_000, 1.0), (10_000, 1.0), (100_000, 1.0)],
    "parameters": [(100_000, 1.0), (1_000_000, 10.0), (10_000_000, 100.0)],
    "participants": [(10, 1.0), (50, 5.0), (200, 20.0)],
}


def one(case: Case, rounds: int) -> None:
    """Run one simulation and print its figures as JSON."""
    import numpy as np
    import torch
    import workload
    from tacit_sim import Clock

    from tacit.data.examples import Dataset, Examples
    from tacit.data.federated import Federation
    from tacit.data.splits import Split
    from tacit.experiment.config import Experiment, Setting
    from tacit.experiment.plan import Plan
    from tacit.experiment.rundir import RunDir
    from tacit.methods import METHODS as KNOWN

    x, y = workload.client_data(0, 12_800)
    dataset = Dataset(
        "random", Examples(x, y), Examples(x[:10], torch.arange(10)), tuple("0123456789")
    )
    rows = tuple(np.arange(IMAGES) + IMAGES * (i % 100) for i in range(case.clients))
    split = Split(train=rows, test=tuple(np.arange(0) for _ in rows))
    experiment = Experiment(
        KNOWN[case.method](rounds=rounds, per_round=case.participants),
        Setting(clients=case.clients),
    )
    model = workload.build_model() if not case.parameters else _network(case.parameters)
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder, workload.PeakMemory() as memory:
        plan = Plan(experiment, Federation(dataset, split), model, "cpu", workers=2)
        plan.conduct(directory := RunDir.create(Path(folder), experiment), clock)
        last = json.loads((directory.folder / "metrics.jsonl").read_text().splitlines()[-1])
    times = [b - a for a, b in zip(clock.ends, clock.ends[1:], strict=False)][FIRST:-1]
    found = {
        "round_s": statistics.median(times),
        "peak_mb": memory.peak_mb,
        "bytes": last["bytes_up"] + last["bytes_down"],
    }
    print(json.dumps(found))


def _network(parameters: int) -> Any:
    """Return a network with one hidden layer and about so many parameters."""
    from torch import nn

    hidden = round(parameters / (28 * 28 + 1 + 10))
    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def main() -> None:
    """Measure along every axis for both methods, in turns."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default=",".join(AXES), help="axes, separated by commas")
    parser.add_argument("--plot", type=Path, help="draw the ratios")
    parser.add_argument("--one", metavar="JSON", help="run a single case (used by this script)")
    given = parser.parse_args()
    if given.rounds < FIRST + 2:
        parser.error(f"--rounds: must be at least {FIRST + 2}")
    if given.one:
        one(Case(**json.loads(given.one)), given.rounds)
        return
    found = {axis: _along(axis, given.rounds, given.repeats) for axis in given.only.split(",")}
    if given.plot:
        _draw(found, given.plot)


Ratios = dict[str, list[tuple[int, float, float]]]  # by method: value, ratio of seconds, of work


def _along(axis: str, rounds: int, repeats: int) -> Ratios:
    """Measure the cases of one axis, print them, and return their ratios to the smallest."""
    print(f"\n{'method':10}{axis:>13}{'s/round':>10}{'peak MB':>9}{'MB sent':>9}", end="")
    print(f"{'ratio':>8}{'of work':>9}", flush=True)
    ratios: Ratios = {method: [] for method in METHODS}
    for method in METHODS:
        base = 0.0
        for value, work in AXES[axis]:
            case = replace(Case(method, work=work), **{axis: value})
            runs = [_measure(case, rounds) for _ in range(repeats)]
            seconds = statistics.median(r["round_s"] for r in runs)
            peak = max(r["peak_mb"] for r in runs)
            base = base or seconds
            ratios[method].append((value, seconds / base, work))
            print(f"{method:10}{value:>13,}{seconds:>10.3f}{peak:>9.0f}", end="")
            print(f"{runs[0]['bytes'] / 1e6:>9.1f}{seconds / base:>8.2f}{work:>9.0f}", flush=True)
    return ratios


def _measure(case: Case, rounds: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--rounds", str(rounds), "--one", json.dumps(asdict(case))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _draw(found: dict[str, Ratios], file: Path) -> None:
    """Draw how seconds grow along each axis, and how the work does."""
    import matplotlib.pyplot as plt

    figure, plots = plt.subplots(1, len(found), figsize=(4 * len(found), 3.5), squeeze=False)
    for plot, (axis, ratios) in zip(plots[0], found.items(), strict=True):
        for method, points in ratios.items():
            plot.loglog([p[0] for p in points], [p[1] for p in points], "o-", label=method)
        some = next(iter(ratios.values()))
        plot.loglog([p[0] for p in some], [p[2] for p in some], "k:", label="work")
        plot.set(xlabel=axis, ylabel="s/round, over the smallest")
        plot.legend()
    figure.tight_layout()
    figure.savefig(file)
    print(f"picture: {file}")


if __name__ == "__main__":
    main()
