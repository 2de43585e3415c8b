"""How fast clients are simulated, against a plain loop, pfl and Flower's simulation, in one run.

    pip install -e ".[bench]" && pip install --no-deps "pfl==0.6.*"
    python benchmarks/simulation.py [--repeats 3] [--only tacit,plain-procs2]
    git worktree add ../before COMMIT
    python benchmarks/simulation.py --beside ../before --only tacit

Every peer trains the same network on the same images with the same steps (peers/workload.py). Each
runs in a process of its own, one after the other, in turns, so that a slow minute of the machine
hits all of them; the median over the turns is shown. `limit` are two independent processes that do
nothing but train, in the fastest way we know: what this machine can do at all. `plain-procs2` are
two independent single-thread channels-last loops as PyTorch's own examples write them. Nothing else
should run at the same time.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PEERS = {
    "tacit": ["tacit_sim.py"],
    "limit": ["limit.py"],
    "plain-procs2": ["plain.py", "--procs", "2"],
    "plain-thread1-cl": ["plain.py", "--threads", "1", "--channels-last"],
    "plain": ["plain.py"],
    "pfl": ["pfl_sim.py"],
    "flower": ["flower_sim.py"],
}
WORKLOADS = {"10 clients x 1024 images": (10, 1024), "100 clients x 128 images": (100, 128)}


def measure(peer: str, clients: int, images: int, rounds: int) -> dict[str, Any]:
    """Run one peer in a process of its own and return what it printed.

    Args:
        peer: a name in ``PEERS``, or the folder of another checkout, whose own script is run
        clients: how many there are
        images: of each
        rounds: how many
    """
    script, *flags = PEERS.get(peer, PEERS["tacit"])
    checkout = Path(__file__).parents[1] if peer in PEERS else Path(peer).resolve()
    command = [sys.executable, str(checkout / "benchmarks" / "peers" / script), *flags]
    command += ["--clients", str(clients), "--images", str(images), "--rounds", str(rounds)]
    environment = os.environ | {"TACIT_BENCH_T0": str(time.time())}
    if peer not in PEERS:
        environment["PYTHONPATH"] = str(checkout / "src")
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        sys.exit(f"{peer} failed:\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def table(results: dict[str, list[dict[str, Any]]]) -> None:
    """Print medians over the turns, and Tacit's speed as a multiple of each peer's."""
    middle = {
        peer: {
            k: statistics.median(r[k] for r in runs)
            for k in ("images_per_s", "first_round_s", "peak_mb")
        }
        for peer, runs in results.items()
    }
    ours = middle.get("tacit", {}).get("images_per_s", float("nan"))
    print(f"{'':18}{'images/s':>10}{'first round s':>15}{'peak MB':>9}{'tacit is':>10}")
    for peer, m in middle.items():
        print(
            f"{peer:18}{m['images_per_s']:10.0f}{m['first_round_s']:15.1f}{m['peak_mb']:9.0f}"
            f"{ours / m['images_per_s']:9.2f}x"
        )


def main() -> None:
    """Run all peers on both workloads."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3, help="turns")
    parser.add_argument(
        "--rounds", type=int, default=6, help="rounds in each run; the first is not counted"
    )
    parser.add_argument("--only", default=",".join(PEERS), help="peers, separated by commas")
    parser.add_argument("--beside", help="a checkout of another commit, to compare with")
    given = parser.parse_args()
    peers = given.only.split(",")
    if given.beside:
        peers.append(given.beside)
    for name, (clients, images) in WORKLOADS.items():
        print(f"\n{name}: DA-FL's CNN, batch 32, one local epoch, everyone takes part")
        results: dict[str, list[dict[str, Any]]] = {peer: [] for peer in peers}
        for turn in range(given.repeats):
            for peer in results:
                print(
                    f"\rturn {turn + 1}/{given.repeats}: {peer:20}",
                    end="",
                    file=sys.stderr,
                    flush=True,
                )
                results[peer].append(measure(peer, clients, images, given.rounds))
        print("\r" + " " * 40 + "\r", end="", file=sys.stderr, flush=True)
        table(results)


if __name__ == "__main__":
    main()
