"""Does a round cost the same with 10,000 clients as with 100? Twenty take part in each.

FedAvg and SCAFFOLD.

    python benchmarks/scale.py [--rounds 30]

Every run is a process of its own and does what a user's run does: run directory, ledger,
checkpoint, kept state on disk. Shown are the median seconds of a round after the first three, and
the peak memory over all processes.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "peers"))

# of each client that takes part; clients share a small set, so that only their number differs
IMAGES = 128


def one(method: str, clients: int, rounds: int) -> None:
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
    from tacit.methods import METHODS

    x, y = workload.client_data(0, 12_800)
    dataset = Dataset(
        "random", Examples(x, y), Examples(x[:10], torch.arange(10)), tuple("0123456789")
    )
    rows = tuple(np.arange(IMAGES) + IMAGES * (i % 100) for i in range(clients))
    split = Split(train=rows, test=tuple(np.arange(0) for _ in rows))
    experiment = Experiment(
        METHODS[method](rounds=rounds, per_round=20), Setting(clients=clients, eval_every=rounds)
    )
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder, workload.PeakMemory() as memory:
        plan = Plan(
            experiment, Federation(dataset, split), workload.build_model(), "cpu", workers=2
        )
        plan.conduct(RunDir.create(Path(folder), experiment), clock)
    times = [b - a for a, b in zip(clock.ends, clock.ends[1:], strict=False)][3:-1]
    print(json.dumps({"round_s": statistics.median(times), "peak_mb": memory.peak_mb}))


def main() -> None:
    """Compare both numbers of clients for both methods, in turns."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument(
        "--one",
        nargs=2,
        metavar=("METHOD", "CLIENTS"),
        help="run a single case (used by this script)",
    )
    given = parser.parse_args()
    if given.one:
        one(given.one[0], int(given.one[1]), given.rounds)
        return
    print(f"{'method':10}{'clients':>9}{'s/round':>10}{'peak MB':>9}{'ratio':>8}")
    for method in ("fedavg", "scaffold"):
        base = 0.0
        for clients in (100, 10_000):
            runs = [_measure(method, clients, given.rounds) for _ in range(3)]
            seconds = statistics.median(r["round_s"] for r in runs)
            peak = max(r["peak_mb"] for r in runs)
            base = base or seconds
            print(f"{method:10}{clients:>9,}{seconds:>10.3f}{peak:>9.0f}{seconds / base:>8.2f}")


def _measure(method: str, clients: int, rounds: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--rounds", str(rounds), "--one", method, str(clients)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    return dict(json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    main()
