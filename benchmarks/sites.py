"""What does a round with many sites cost, and what does Flower alone need for the same messages?

    python benchmarks/sites.py [--sites 5 20 50] [--large 4] [--rounds 6]

Tacit is a real `tacit serve` with TLS and keys, in processes of its own, and real sites (checks,
ledger, store and all); only that several of them share a process, as threads. A round is FedAvg,
one step with 32 of the embedded digits at every site, and the evaluation of the new model at every
site. There is next to nothing to compute, because what is measured is everything else. The large
model has 42 MB.

Flower alone is its stock server and its own client classes, on loopback without TLS, gate and data
(`peers/flower_sites.py`): every node gets an array of the model's size and sends one back, then
gets one and sends two numbers back. Nodes stay in memory, and both ends look for messages every
0.2 s. Flower's own programs look every 3 s and start a process for every message.

Shown are the median seconds of a round after the first, processor seconds of the coordinator (its
own process and Flower's server) in a round, and the most memory that each of the two held.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TOGETHER = 10  # sites in one process
EXAMPLES = 32  # of each site, to train on and to test with
WIDE = 140_000  # hidden units of the large model
LARGE = 64 * WIDE + WIDE + 10 * WIDE + 10  # its parameters
SMALL = 4_810  # those of the small one
TACIT = (sys.executable, "-c", "from tacit.cli.main import main; main()")
TICKS = os.sysconf("SC_CLK_TCK")


def Wide(shape, classes):
    """Return the large network: 10.5 million parameters, 42 MB."""
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(64, WIDE), nn.ReLU(), nn.Linear(WIDE, classes))


def be_sites(folder: Path, port: int, first: int, last: int, model: str) -> None:
    """Be some of the sites, each in a thread."""
    import numpy as np
    import torch

    from tacit import data
    from tacit.apps.connection import Fleet
    from tacit.apps.keys import read_private
    from tacit.apps.policy import ANYTHING
    from tacit.apps.site import Site
    from tacit.data.splits import Split

    torch.set_num_threads(1)
    digits, ca = data.load("digits"), (folder / "keys" / "ca.crt").read_bytes()
    rows = np.arange(EXAMPLES)
    own = model if ":" in model else None
    for i in range(first, last):
        site = Site(
            name(i),
            digits,
            folder / "stores" / name(i),
            Split((rows + i,), (rows + i,)),
            model=own,
            policy=ANYTHING,
        )
        key = read_private(folder / f"{name(i)}.key")
        fleet = Fleet(f"127.0.0.1:{port}", ca, key, patience=120)
        threading.Thread(target=fleet.run, args=(site,), daemon=True).start()
    signal.pause()


def name(i: int) -> str:
    """Return what a site is called."""
    return f"site-{i:03d}"


def seconds_of(pid: int) -> float:
    """Return the processor seconds that a process has used."""
    try:
        after = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(after[11]) + int(after[12])) / TICKS


def peak_of(pid: int) -> float:
    """Return the most memory that a process has held, in MB."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return int(text.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6


class Meter:
    """Notes when rounds end, and what some processes have used by then."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.used: list[float] = []
        self.peaks: list[float] = []

    def note(self, pids: list[int]) -> None:
        """Note the end of a round."""
        self.ends.append(time.perf_counter())
        self.used.append(sum(map(seconds_of, pids)))
        self.peaks = [peak_of(pid) for pid in pids]

    def line(self) -> dict[str, Any]:
        """Return the figures of the rounds after the first."""
        rounds = [b - a for a, b in zip(self.ends, self.ends[1:], strict=False)]
        busy = (self.used[-1] - self.used[0]) / len(rounds)
        return {"round_s": statistics.median(rounds), "cpu_s": busy, "peak_mb": self.peaks}


def tacit(sites: int, model: str, rounds: int) -> dict[str, Any]:
    """Measure rounds with real sites."""
    from tacit.apps import keys

    with tempfile.TemporaryDirectory() as made, contextlib.ExitStack() as stack:
        folder, port = Path(made), free_port()
        keys.make_authority(folder / "keys", [])
        for i in range(sites):
            private = keys.make_site_key(folder, name(i))
            keys.register(folder / "keys", name(i), private.with_suffix(".pub"))
        (folder / "experiment.toml").write_text(
            f'clients = {sites}\nmodel = "{model}"\n[method]\nname = "fedavg"\nrounds = {rounds}\n'
            "[method.sgd]\nepochs = 1\nbatch = 32\n"
        )
        asked = [*TACIT, "serve", "experiment.toml", "--keys", "keys", "--port", str(port)]
        server = started(stack, [*asked, "--out", "run"], folder, "serve.log")
        for first in range(0, sites, TOGETHER):
            numbers = map(str, (first, min(first + TOGETHER, sites)))
            about = [str(folder), str(port), *numbers, model]
            started(stack, [sys.executable, __file__, "be-sites", *about], folder, f"{first}.log")
        return watched(server, folder, rounds)


def watched(server: subprocess.Popen[bytes], folder: Path, rounds: int) -> dict[str, Any]:
    """Follow a run of `tacit serve` to its end."""
    meter, file = Meter(), folder / "run" / "metrics.jsonl"
    pid = folder / "run" / "flower" / "superlink.pid"
    while len(meter.ends) < rounds:
        done = file.read_bytes().count(b"\n") if file.exists() else 0
        for _ in range(done - len(meter.ends)):
            meter.note([server.pid, int(pid.read_text())])
        if server.poll() is not None and len(meter.ends) < rounds:
            raise SystemExit((folder / "serve.log").read_text())
        time.sleep(0.02)
    lines = map(json.loads, file.read_text().splitlines())
    if failed := [line["failed"] for line in lines if "failed" in line]:
        raise SystemExit(f"sites failed: {failed}")
    server.wait(timeout=60)
    return meter.line()


def started(
    stack: contextlib.ExitStack, command: list[str], folder: Path, log: str
) -> subprocess.Popen[bytes]:
    """Start a process that ends with the measurement."""
    env = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([*sys.path, str(HERE)]),
    }
    with (folder / log).open("wb") as out:
        process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out, env=env)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def free_port() -> int:
    """Return a port that nobody listens on."""
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def flower(sites: int, floats: int, rounds: int) -> dict[str, Any]:
    """Measure rounds of Flower alone."""
    command = [sys.executable, str(HERE / "peers" / "flower_sites.py"), "--sites", str(sites)]
    command += ["--floats", str(floats), "--rounds", str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    line: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return line


def row(who: str, sites: int, megabytes: float, line: dict[str, Any]) -> str:
    """Return one line of the table."""
    program, server = line["peak_mb"]
    return (
        f"{who:8}{sites:6}{megabytes:10.2f}{line['round_s']:10.2f}{line['cpu_s']:10.2f}"
        f"{program:10.0f}{server:10.0f}"
        + (f"  {line['lost']} messages sent again" if line.get("lost") else "")
    )


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sites", type=int, nargs="*", default=[5, 20, 50])
    parser.add_argument("--large", type=int, nargs="*", default=[4], help="sites with 42 MB")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--only", choices=("tacit", "flower"), help="leave the other out")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    titles = ("sites", "model MB", "round s", "cpu s", "own MB", "server MB")
    print(" " * 8 + f"{titles[0]:>6}" + "".join(f"{title:>10}" for title in titles[1:]))
    cases = [(n, "mlp", SMALL) for n in given.sites] + [
        (n, "sites:Wide", LARGE) for n in given.large
    ]
    for sites, model, floats in cases:
        took = {}
        for who in ("tacit", "flower"):
            if given.only in (None, who):
                rounds = given.rounds
                line = (
                    tacit(sites, model, rounds) if who == "tacit" else flower(sites, floats, rounds)
                )
                took[who] = line["round_s"]
                print(row(who, sites, floats * 4e-6, line), flush=True)
        if len(took) == 2:
            print(
                f"        tacit takes {took['tacit'] / took['flower']:.2f} of Flower's time",
                flush=True,
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["be-sites"]:
        folder, port, first, last, model = sys.argv[2:]
        be_sites(Path(folder), int(port), int(first), int(last), model)
    else:
        main()
