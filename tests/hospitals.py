"""Real processes.

A coordinator and sites on loopback, which all end with the test, whatever happens.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

from tacit.apps import keys
from tacit.engines.store import read_ledger
from tacit.experiment.rundir import RunDir
from tacit.methods import METHODS

NAMES = ("hospital-a", "hospital-b", "hospital-c")
TACIT = (sys.executable, "-c", "from tacit.cli.main import main; main()")
ROGUE = (sys.executable, str(Path(__file__).parent / "flower" / "rogue.py"))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(condition, seconds, what="it"):
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"{what} did not happen within {seconds} s"
        time.sleep(0.05)
    return value


class Hospitals:
    """Three registered sites, and whatever processes a test starts."""

    def __init__(self, folder):
        self.folder, self.port, self.processes = folder, free_port(), []
        self.keys = folder / "keys"
        keys.make_authority(self.keys, [])
        for name in NAMES:
            keys.register(
                self.keys, name, keys.make_site_key(folder / name, name).with_suffix(".pub")
            )

    def start(self, command, log):
        with (self.folder / log).open("ab") as out:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def join(self, name, *args, rogue=None, **flags):
        i = NAMES.index(name) if name in NAMES else 0
        given = {
            "server": f"127.0.0.1:{self.port}",
            "name": name,
            "key": self.folder / name / f"{name}.key",
            "ca": self.keys / "ca.crt",
            "data": "digits",
            "split": "label:2",
            "part": f"{i}/3",
            "noise": "seeded",
            "accept": "anything",
            "store": self.folder / "stores" / name,
            "patience": 120,
        } | flags
        words = [
            word
            for k, v in given.items()
            if v is not None
            for word in (f"--{k.replace('_', '-')}", str(v))
        ]
        command = (*ROGUE, rogue) if rogue else (*TACIT, "join")
        return self.start([*command, *words, *args], f"{name}.log")

    def join_all(self, *names, **flags):
        return [self.join(name, **flags) for name in names or NAMES]

    def serve(self, what, *args, out="run", **flags):
        given = {"port": self.port, "keys": self.keys, "patience": 90, "deadline": 60} | flags
        words = [word for k, v in given.items() for word in (f"--{k.replace('_', '-')}", str(v))]
        if not Path(what).is_dir():
            words += ["--out", str(self.folder / out)]
        return self.start([*TACIT, "serve", str(what), *words, *args], f"{out}.log")

    def experiment(self, method, rounds, setting="", more=""):
        file = self.folder / f"{method}.toml"
        lines = (
            f"rounds = {rounds}\n{more}"
            if "rounds" in {f.name for f in fields(METHODS[method])}
            else more
        )
        file.write_text(
            'clients = 3\nsplit = "label:2"\nnoise = "seeded"\nmodel = "mlp"\nworkers = 0\n'
            f'{setting}\n[method]\nname = "{method}"\n{lines}\n'
        )
        return file

    def log(self, name):
        file = self.folder / f"{name}.log"
        return file.read_text() if file.exists() else ""

    def metrics(self, out="run"):
        file = self.folder / out / "metrics.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def superlink(self, out="run"):
        return int((self.folder / out / "flower" / "superlink.pid").read_text())

    def end(self, process, number=signal.SIGKILL):
        os.kill(process.pid, number)
        return process.wait(timeout=20)

    def close(self):
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=20)
        links = [int(f.read_text()) for f in self.folder.glob("*/flower/superlink.pid")]
        try:
            wait_for(lambda: not any(map(alive, links)), 10, "the end of Flower's server")
        finally:
            for pid in filter(alive, links):
                os.kill(pid, signal.SIGKILL)


class ForkedHospitals(Hospitals):
    """Hospitals whose programs are forked: they start at once."""

    def start(self, command, log):
        from forked import Forked  # imports what programs do, for all of them

        assert tuple(command[: len(TACIT)]) == TACIT
        self.processes.append(Forked(command[len(TACIT) :], self.folder / log, self.folder))
        return self.processes[-1]


def check_ledgers(at, out="run"):
    """Whatever a site has written down of a run, the coordinator has, too."""
    folder = at.folder / out
    known = {repr(line) for line in RunDir.open(folder).ledger()}
    run = json.loads((folder / "sites.json").read_text())["run"]
    for file in at.folder.glob(f"stores/*/{run}/*/ledger.jsonl"):
        assert {repr(line) for line in read_ledger(file)} <= known, file


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
