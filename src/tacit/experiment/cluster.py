"""Simulate on a Ray cluster: Flower's simulation runtime spreads the clients over its machines.

The model is the one that worker processes give. All machines must see the run directory and the
data under the same paths, and have the same package installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from tacit import data as data_room
from tacit.core import BadInput, ClientId, Json, State, TooFewReplies
from tacit.data.federated import Federation
from tacit.engines.client_host import World, one_thread
from tacit.engines.config import Config
from tacit.engines.flower import QUIET, Charter, Sites, letter, opened, packed, post
from tacit.engines.messages import Head
from tacit.engines.serial import Serial
from tacit.engines.server import Engine
from tacit.experiment.config import Experiment, Setting
from tacit.experiment.evaluate import evaluate
from tacit.experiment.loop import conduct
from tacit.experiment.plan import Plan
from tacit.experiment.result import Run
from tacit.experiment.rundir import RunDir
from tacit.experiment.watch import Watcher
from tacit.methods.spec import validated

LIMIT = 1 << 40  # nobody is a stranger here
client = ClientApp()


@client.query("tacit")
def answer(message: Message, context: Context) -> Message:
    """Be one client for one message."""
    kind, about, blob = opened(message.content, LIMIT)
    if kind == "hello":
        return Message(
            letter("answer", {"client": context.node_config["partition-id"]}, packed(b"")),
            reply_to=message,
        )
    return Message(_reply(kind, about, blob), reply_to=message)


def _reply(kind: str, about: Json, blob: bytes) -> RecordDict:
    head = validated(Head, dict(about["head"]), "head")
    # the experiment names code of the user's own, and this makes it known here
    world = _world(about["charter"]["run"])
    done = world.serve(kind, head, blob)
    return letter("answer", {"ask": head.ask}, packed(done))


@cache
def _world(folder: str) -> World:
    """Return the experiment's clients; a process makes them once."""
    torch.set_num_threads(1)
    directory = RunDir.open(Path(folder))
    return Plan.of(directory.experiment()).world(directory)


@dataclass(frozen=True)
class OnCluster:
    """A simulation's place, where clients are Flower's virtual nodes and the server evaluates."""

    plan: Plan
    grid: Grid
    folder: Path

    @property
    def experiment(self) -> Experiment:
        """What runs."""
        return self.plan.experiment

    @property
    def model(self) -> torch.nn.Module:
        """The experiment's network."""
        return self.plan.model

    @property
    def federation(self) -> Federation:
        """Who holds what."""
        return self.plan.federation

    def world(self, directory: RunDir) -> World:
        """Return what the server needs for tasks of its own."""
        return self.plan.world(directory)

    def config(self, directory: RunDir) -> Config:
        """Return what an engine knows of this experiment."""
        return self.plan.config(directory)

    def engine(self, directory: RunDir, config: Config) -> Engine:
        """Return the clients on the cluster."""
        s = self.experiment.setting
        data = self.plan.encoded.dataset
        world = self.plan.world(directory)
        charter = Charter(
            str(self.folder), s.clients, s.seed, s.model, data.shape, len(data.classes), s.delta
        )
        return Sites(
            self.grid,
            {i: i for i in self.plan.federation.everyone},
            charter,
            config,
            at_server=world.own,
            nodes=cache(partial(_nodes, self.grid)),
            deadline=3600.0,
            limit=LIMIT,
            ours=True,
        )

    def scores(self, s: State, engine: Engine) -> Json:
        """Evaluate at the server, which has all data in a simulation."""
        here = Serial(self.plan.world(RunDir(self.folder)))
        here.accepted = engine.accepted
        return evaluate(self.experiment.method, s, here, self.plan.federation, 1).line()


def _nodes(grid: Grid) -> dict[ClientId, int]:
    """Return the virtual nodes by client number."""
    hello = letter("hello", {}, packed(b""))
    numbers: dict[int, int] = {}
    for node, said in post(grid, {node: hello for node in grid.get_node_ids()}, 300.0):
        if isinstance(said, str):
            raise TooFewReplies(f"a node of the cluster did not answer: {said}")
        numbers[int(opened(said, LIMIT)[1]["client"])] = node
    width = len(str(max(numbers)))
    return {f"{i:0{width}d}": node for i, node in numbers.items()}


def conduct_on_ray(plan: Plan, directory: RunDir, watch: Watcher) -> Run:
    """Run from the last checkpoint, or from the start, to the end, with clients on a cluster.

    Args:
        plan: the experiment; its setting has the cluster's address
        directory: the run's, which all machines see
        watch: is told how it goes
    """
    check_possible(plan.experiment.setting)
    with _grid(plan) as grid, one_thread():
        return conduct(OnCluster(plan, grid, directory.folder.resolve()), directory, watch)


def check_possible(setting: Setting) -> None:
    """Refuse a cluster without Ray, and data that other processes cannot load."""
    found = importlib.util.find_spec("ray")
    if found is None or found.origin is None:  # not there, or a folder of that name
        raise BadInput("engine = 'ray': Ray is not installed; pip install 'tacit[cluster]'")
    try:
        importlib.import_module("ray")
    except Exception as e:  # Flower would end its thread, and nobody would hear of it
        raise BadInput(f"engine = 'ray': Ray cannot be imported ({_in_a_line(e)})") from None
    if not data_room.can_load(setting.data):
        raise BadInput(
            f"data = {setting.data!r}: engine = 'ray' needs data with a name or a path, "
            "which every machine loads by itself"
        )


@contextmanager
def _grid(plan: Plan) -> Iterator[Grid]:
    """Start Flower's simulation in a thread, lend its grid to this one, and stop it afterwards."""
    done = threading.Event()
    ready: SimpleQueue[Grid | BaseException] = SimpleQueue()
    thread = threading.Thread(target=_simulate, args=(plan, ready, done), daemon=True)
    thread.start()
    try:
        got = ready.get()
        if isinstance(got, BaseException):
            raise BadInput(f"engine = 'ray': the simulation cannot be started ({_in_a_line(got)})")
        yield got
    finally:
        done.set()
        thread.join()


def _simulate(plan: Plan, ready: SimpleQueue[Grid | BaseException], done: threading.Event) -> None:
    """Run Flower's simulation until it is ``done``; its server does nothing but lend the grid."""
    os.environ.update(QUIET)
    from flwr.simulation import run_simulation

    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        ready.put(grid)
        done.wait()

    address = plan.experiment.setting.address
    init: Json = {"address": address} if address else {}
    resources: Json = {"num_cpus": 1.0, "num_gpus": 0.0}
    config: Any = {"init_args": init, "client_resources": resources}
    try:
        run_simulation(server, client, len(plan.federation.everyone), backend_config=config)
    except (Exception, SystemExit) as e:  # whatever Ray or Flower say
        ready.put(e)
    finally:  # where it has ended without a word
        ready.put(RuntimeError("Flower has ended it"))


def _in_a_line(e: BaseException) -> str:
    return " ".join(f"{type(e).__name__}: {e}".split())
