"""Whatever is killed, whenever: it goes on, to the same model where that is promised.

Programs are forked, so that they begin to work at once, and most kills meet work. `make slow` kills
200 times, `make test` a few times.
"""

import json
import os
import shutil
import signal
import subprocess
import time
import traceback
from collections import Counter
from contextlib import suppress
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from asking import CHARTER, a_site, ledger
from forked import Forked
from hospitals import NAMES, TACIT, ForkedHospitals, check_ledgers, wait_for
from liars import PRIVATE, run, venue
from test_damage import spent, work

from tacit import codec, privacy
from tacit.core import Ledger, TooFewReplies
from tacit.engines.asked import rounds_in
from tacit.engines.store import from_json, read_ledger
from tacit.experiment.loop import conduct
from tacit.experiment.result import Run
from tacit.experiment.rundir import RunDir
from tacit.experiment.watch import Nobody

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
# kills in `make slow`, 200 in all: the last so often without sites among the killed, and with them
MAIN, WORKERS, SITES, FEDERATION = 60, 40, 40, 30


# ---- `tacit run` and its workers

RUN = (
    "run", "dp_scaffold", "--rounds", "4", "--sgd.batch", "16", "--sgd.clip", "1", "--sgd.z", "1",
    "--clients", "4", "--split", "sizes:4x40", "--model", "logistic", "--noise", "seeded",
    "--workers", "2",
)  # fmt: skip


def children(pid):
    try:
        return [int(w) for w in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def said(ledger):
    """Return what a ledger costs; nothing at all while it is empty, as before the first answer."""
    if not len(ledger):
        return 0.0
    return privacy.epsilon(ledger, unit="example", observer="server", delta=1e-5, quick=True)


def outcome(folder):
    """Return all of a run that somebody may rely on."""
    done = Run(folder)
    metrics = [{k: v for k, v in line.items() if k != "seconds"} for line in done.metrics]
    return metrics, done.epsilon, (folder / "model.safetensors").read_bytes()


def check_as_if_nothing_had_happened(found, whole):
    """See that a run that was killed ends as another one.

    A line on the way may say that more was spent: when the run was killed, clients had answered to
    the next round already, while the last one was being saved.
    """
    spent = [[line.pop("spent") for line in metrics] for metrics, *_ in (found, whole)]
    booked = [[line.pop("epsilon") for line in metrics] for metrics, *_ in (found, whole)]
    assert found == whole
    assert all(now >= then for now, then in zip(*spent, strict=True))
    assert (spent[0][-1], booked[0][-1]) == (spent[1][-1], booked[1][-1])


class Runs:
    """An undisturbed run, how long it took, and others that are killed."""

    def __init__(self, folder):
        self.folder, self.count = folder, 0
        began = time.monotonic()
        assert Forked([*RUN, "--out", "whole"], folder / "whole.log", folder).wait(120) == 0
        self.seconds = time.monotonic() - began
        self.whole = outcome(folder / "whole")

    def next(self):
        self.count += 1
        return self.folder / f"run-{self.count}", self.folder / f"run-{self.count}.log"

    def start(self, out, log):
        begun = (out / "config.toml").exists()
        return Forked(["resume", out] if begun else [*RUN, "--out", out], log, self.folder)

    def no_traceback(self, log):
        assert "Traceback" not in log.read_text(), log.read_text()


def gone(pids):
    """Wait for the workers of a process that was killed: they still hold its lock."""
    end = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < end:
        time.sleep(0.01)


def kill_main(runs, rng, kills):
    """Kill one run so often, then let it end: as if nothing had happened."""
    out, log = runs.next()
    least = 0.0
    for _ in range(kills):
        process = runs.start(out, log)
        time.sleep(rng.uniform(0, 1.1 * runs.seconds))
        workers = children(process.pid)
        process.kill()
        gone(workers)
        if (out / "config.toml").exists():
            now = said(RunDir.open(out).ledger())
            assert now >= least, "a kill made the figure smaller"
            least = now
    assert runs.start(out, log).wait(120) == 0, log.read_text()
    runs.no_traceback(log)
    check_as_if_nothing_had_happened(outcome(out), deepcopy(runs.whole))


def kill_workers(runs, rng, kills):
    """Kill a worker of a run, again and again: who was at work is told, and all lines are there."""
    out, log = runs.next()
    process, hit = runs.start(out, log), 0
    while hit < kills and process.poll() is None:
        time.sleep(rng.uniform(0, runs.seconds / 4))
        if workers := children(process.pid):
            os.kill(int(rng.choice(workers)), signal.SIGKILL)
            hit += 1
    if process.wait(120) == 4:  # too few replied, which a resume may ask for again
        assert "too few to go on" in log.read_text()
        assert runs.start(out, log).wait(120) == 0
    assert process.code in (0, 4), log.read_text()
    runs.no_traceback(log)
    done = Run(out)
    failed = [why for line in done.metrics for why in line.get("failed", {}).values()]
    assert {why for why in failed if why != "its process ended with -9"} == set()
    if failed:
        known = set(done.ledger)
        for file in out.glob("checkpoint/clients/*/ledger.jsonl"):
            assert set(read_ledger(file)) <= known, file
    elif process.code == 0:
        check_as_if_nothing_had_happened(outcome(out), deepcopy(runs.whole))
    return hit


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("runs"))


def test_a_run_that_is_killed_a_few_times(runs):
    kill_main(runs, np.random.default_rng(1), 1)
    kill_workers(runs, np.random.default_rng(2), 2)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_run_that_is_killed_many_times(runs):
    rng = np.random.default_rng(3)
    for kills in [1, 2, 3] * (MAIN // 6):
        kill_main(runs, rng, kills)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_workers_that_are_killed_many_times(runs):
    rng, hit = np.random.default_rng(4), 0
    while hit < WORKERS:
        hit += kill_workers(runs, rng, int(rng.integers(1, 4)))


# ---- Ctrl-C and SIGTERM


def end_run(runs, rng, number):
    """Ask a run to end at some time; it says so in one line, and goes on later."""
    out, log = runs.next()
    process = runs.start(out, log)
    time.sleep(rng.uniform(0, runs.seconds))
    workers = children(process.pid)
    code = process.kill(number)
    gone(workers)
    told = log.read_text()
    assert code in (0, 130), told
    if code == 130:
        last = told.splitlines()[-1]
        begun = f"tacit: stopped; `tacit resume {out}` continues it"
        assert last in (begun, "tacit: interrupted"), told
    assert runs.start(out, log).wait(120) == 0, log.read_text()
    runs.no_traceback(log)
    check_as_if_nothing_had_happened(outcome(out), deepcopy(runs.whole))


@pytest.mark.slow
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_asked_to_end(runs, number):
    rng = np.random.default_rng(8)
    for _ in range(10):
        end_run(runs, rng, number)


def test_while_libraries_are_imported_a_signal_ends_the_program_at_once(tmp_path):
    """They fail in ways of their own if they are interrupted; here one catches what it can."""
    importing = tmp_path / "importing.py"
    importing.write_text(
        "import os, signal\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    open('went_on', 'w')\n"
        "except BaseException:\n"
        "    raise AttributeError('half made') from None\n"
    )
    for command in ("run", "serve", "join"):
        process = Forked([command], tmp_path / "log", tmp_path, importing="importing")
        assert process.wait(60) == 130
        assert (tmp_path / "log").read_text() == "\ntacit: interrupted\n"
        (tmp_path / "log").unlink()
    assert not (tmp_path / "went_on").exists()


COMMANDS = {
    "run": ("run", "fedavg", "--rounds", "2", "--out", "run"),
    "serve": ("serve", "fedavg.toml", "--insecure", "--out", "served"),
    "join": (
        "join", "--server", "127.0.0.1:1", "--name", "x", "--data", "digits", "--insecure",
        "--accept", "anything", "--store", "store",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(2000)
@pytest.mark.parametrize("command", COMMANDS)
def test_real_programs_that_are_asked_to_end_at_any_moment(command, tmp_path):
    """From the first tenths of a second on; before that Python itself is starting."""
    rng = np.random.default_rng(9)
    (tmp_path / "fedavg.toml").write_text('[method]\nname = "fedavg"\n')
    for k in range(20):
        number = (signal.SIGINT, signal.SIGTERM)[k % 2]
        with (tmp_path / "log").open("w") as log:
            process = subprocess.Popen(
                [*TACIT, *COMMANDS[command]], cwd=tmp_path, stdout=log, stderr=log
            )
            time.sleep(rng.uniform(0.3, 6))
            process.send_signal(number)
            code = process.wait(60)
        told = (tmp_path / "log").read_text()
        assert "Traceback" not in told, told
        assert code in (0, 2, 130), told
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        shutil.rmtree(tmp_path / "served", ignore_errors=True)


# ---- a site, without Flower: what it has said is in its ledger


def answer_on(folder, first, writer):
    """Answer one round after the other, and write a mark for each answer that has left."""
    try:
        torch.set_num_threads(1)
        site = a_site(folder, noise="os")
        for round in range(first, 1000):
            work(site, CHARTER, round)
            os.write(writer, b".")
    except BaseException:
        os.write(writer, traceback.format_exc().encode())
    finally:
        os._exit(0)


def answering(folder, first):
    """Start a site that answers one round after the other; return it, and its marks."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        answer_on(folder, first, writer)
    os.close(writer)
    return pid, reader


def seconds_of_two_answers(folder):
    """Return how long a site takes here and now, from its start."""
    began = time.monotonic()
    pid, reader = answering(folder, 0)
    for _ in range(2):
        os.read(reader, 1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(reader)
    return time.monotonic() - began


def kill_site(folder, first, seconds):
    """Kill a site after so long, which goes on after ``first`` answers; return how many left."""
    pid, reader = answering(folder, first)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with os.fdopen(reader, "rb") as f:
        left = f.read()
    assert left.strip(b".") == b"", left.decode()
    return first + len(left)


def kill_sites(folder, rng, kills):
    answered, least = 0, 0.0
    seconds = seconds_of_two_answers(folder / "before")
    folder = folder / "store"
    for _ in range(kills):
        answered = kill_site(folder, answered, rng.uniform(0, 2 * seconds))
        spent(folder)  # which verifies all of it
        now = said(ledger(a_site(folder)))
        assert now >= least, "a kill made the figure smaller"
        least = now
        told = ledger(a_site(folder))
        assert rounds_in(told) >= set(range(answered)), "an answer has left without its line"
    return answered


def test_a_site_that_is_killed_a_few_times(tmp_path):
    kill_sites(tmp_path, np.random.default_rng(1), 4)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_site_that_is_killed_many_times(tmp_path):
    assert kill_sites(tmp_path, np.random.default_rng(6), SITES)


# ---- a coordinator, without Flower: sites have been through what it asks for again


class Killed(BaseException):
    """No code expects it."""


def killed_after(count):
    """Return what one site does, so that the coordinator ends after so many of its letters."""
    seen = []

    def lie(content, said):
        seen.append(content)
        if len(seen) > count:
            raise Killed
        return said

    return lie


@pytest.mark.parametrize("letters", [1, 2])
def test_a_coordinator_that_ends_between_two_answers_goes_on(letters, tmp_path, whole):
    with pytest.raises(Killed):
        run(tmp_path, PRIVATE, killed_after(letters), metrics=0.5)
    place, _ = venue(tmp_path, PRIVATE, metrics=0.5)
    directory = RunDir.open(tmp_path / "run")
    try:
        conduct(place, directory, Nobody())
    except TooFewReplies as e:
        raise AssertionError("sites are refused that are ahead of their coordinator") from e
    assert [line.get("failed") for line in directory.metrics()] == [None, None]
    assert codec.same(directory.checkpoint()[0], whole.checkpoint()[0])
    assert directory.ledger() == whole.ledger()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of two rounds at four sites that train and report, undisturbed."""
    return run(tmp_path_factory.mktemp("whole"), PRIVATE, metrics=0.5)[0]


# ---- coordinator, Flower's server and sites, over TLS

ROUNDS = 12
# what a coordinator says that is about to start when Flower's server is killed
ENDED = ("Flower's server ended while it was started", "Flower's server did not start")


class Federation:
    """One run after the other, of which one program or another is killed."""

    def __init__(self, at, rng, kinds):
        self.at, self.rng, self.kinds, self.killed = at, rng, kinds, Counter()
        more = "[method.sgd]\nclip = 1.0\nz = 2.0\nbatch = 32"
        self.experiment = at.experiment("scaffold", ROUNDS, more=more)
        self.sites = {name: self.join(name) for name in NAMES}
        here = Forked(["run", self.experiment, "--out", "here"], at.folder / "here.log", at.folder)
        assert here.wait(120) == 0
        self.model = (at.folder / "here" / "model.safetensors").read_bytes()

    def join(self, name):
        return self.at.join(name, metrics=0.5)

    def run(self, out, kills):
        """Run to the end, with at most so many kills; return how many there were."""
        at, done, least = self.at, 0, {}
        server = self.serve(out)
        while server.poll() in (None, 1, 4):
            if server.poll() is not None:
                self.check_end(server, out)
                server = self.serve(out)
            if self.rng.random() < 0.7:  # most kills are to meet rounds, not a start
                self.await_round(out, server)
            time.sleep(self.rng.uniform(0.0, 4.0))
            self.check_figures(out, least)
            if done < kills and server.poll() is None:
                server = self.kill(server, out)
                done += 1
        assert server.code == 0, at.log(out)
        self.check(out)
        return done

    def check_end(self, server, out):
        """A coordinator that ends before its run says why: Flower's end, or too few sites."""
        last = self.at.log(out).splitlines()[-1]
        words = ENDED if server.poll() == 1 else ("too few to go on", "sites connected within")
        assert any(word in last for word in words), self.at.log(out)
        assert server.poll() == 1 or "site" in self.kinds, self.at.log(out)

    def await_round(self, out, server):
        """Wait for the end of another round, or of the coordinator."""
        before = len(self.at.metrics(out))
        more = lambda: len(self.at.metrics(out)) != before or server.poll() is not None  # noqa: E731
        wait_for(more, 200, "another round")

    def kill(self, server, out):
        kind = str(self.rng.choice(self.kinds))
        self.killed[kind] += 1
        if kind == "site":
            name = str(self.rng.choice(NAMES))
            self.sites[name].kill()
            self.sites[name] = self.join(name)
        elif kind == "flower":
            with suppress(FileNotFoundError, ProcessLookupError, ValueError):
                os.kill(self.at.superlink(out), signal.SIGKILL)
        else:
            server.kill()
            return self.serve(out)
        return server

    def serve(self, out):
        """Start the coordinator of a run, or go on with it."""
        begun = (self.at.folder / out / "config.toml").exists()
        what = self.at.folder / out if begun else self.experiment
        # long enough for Flower's server to come back; a site that was killed costs all of it
        return self.at.serve(what, out=out, deadline=30 if "site" in self.kinds else 200)

    def check_figures(self, out, least):
        """No figure is smaller than it was, at the coordinator or at a site."""
        files = [self.at.folder / out / "ledger.jsonl"]
        for file in [*files, *self.at.folder.glob("stores/*/*/*/ledger.jsonl")]:
            if file.exists():
                lines = [line for line in read_whole(file) if not line.owner.startswith("test:")]
                now = said(Ledger(lines))
                assert now >= least.get(file, 0.0), f"{file}: the figure is smaller"
                least[file] = now

    def check(self, out):
        at = self.at
        metrics = at.metrics(out)
        assert [line["round"] for line in metrics] == list(range(1, ROUNDS + 1))
        for name in (out, *NAMES):
            assert "Traceback" not in at.log(name), at.log(name)
        check_ledgers(at, out)
        failed = [why for line in metrics for why in line.get("failed", {}).values()]
        for why in failed:
            assert any(word in why for word in ("not connected", "no answer", "left out")), why
        if not failed:
            model = (at.folder / out / "model.safetensors").read_bytes()
            assert model == self.model
        elif "site" not in self.kinds:
            raise AssertionError(f"a site has lost a round: {failed}")


def read_whole(file):
    """Return the lines of a ledger that somebody may be writing; nothing is changed."""
    whole, _, _ = file.read_text().rpartition("\n")
    return [from_json(json.loads(line)) for line in whole.splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(5000)
@pytest.mark.parametrize("kinds", [("coordinator", "flower"), ("coordinator", "flower", "site")])
def test_a_federation_that_is_killed_many_times(kinds, tmp_path):
    at = ForkedHospitals(tmp_path)
    try:
        federation, done = Federation(at, np.random.default_rng(7), kinds), 0
        while done < FEDERATION:
            done += federation.run(f"run-{done}", min(FEDERATION - done, 6))
        assert set(federation.killed) == set(kinds)
    finally:
        at.close()
