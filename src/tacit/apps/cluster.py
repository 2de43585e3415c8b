"""Simulate on a cluster.

Clients are spread by Flower's simulation runtime over the machines of a Ray cluster.

``python -m tacit.apps.cluster EXPERIMENT.toml --out DIR`` gives the same model as ``tacit run``.
All machines must see the run directory and the data under the same paths, and have the same package
installed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import tyro
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from tacit.codec import unpack
from tacit.core import ClientId, TooFewReplies
from tacit.engines.client_host import World
from tacit.engines.config import Config
from tacit.engines.flower import Charter, Sites, letter, opened, packed, post
from tacit.engines.messages import Head
from tacit.engines.serial import Serial
from tacit.engines.server import Engine
from tacit.experiment.config import Experiment, read_experiment
from tacit.experiment.evaluate import evaluate
from tacit.experiment.loop import conduct
from tacit.experiment.plan import Plan
from tacit.experiment.rundir import RunDir
from tacit.experiment.watch import Nobody
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


def _reply(kind: str, about: Mapping[str, Any], blob: bytes) -> RecordDict:
    head = validated(Head, dict(about["head"]), "head")
    done = _world(about["charter"]["run"]).serve(kind, head, unpack(blob, known=True))
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

    def config(self, directory: RunDir) -> Config:
        """Return what an engine knows of this experiment."""
        return self.plan.config(directory)

    def engine(self, directory: RunDir, config: Config) -> Engine:
        """Return the clients on the cluster."""
        s = self.experiment.setting
        data = self.plan.federation.dataset
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

    def scores(self, s: Any, engine: Engine) -> dict[str, Any]:
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


def simulate(file: Path, /, out: Path, cpus: float = 1.0, address: str = "") -> None:
    """Simulate an experiment on a Ray cluster.

    Args:
        file: an experiment file
        out: a new run directory, which all machines see
        cpus: processors for each client that runs
        address: of a Ray cluster that is there already, such as auto; default: one on this machine
    """
    from tacit.apps.superlink import QUIET

    os.environ.update(QUIET)
    from flwr.simulation import run_simulation

    plan = Plan.of(read_experiment(file))
    directory = RunDir.create(out.resolve(), plan.experiment)
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        torch.set_num_threads(1)
        conduct(OnCluster(plan, grid, directory.folder), directory, Nobody())

    init: dict[str, Any] = {"address": address} if address else {}
    resources: dict[str, Any] = {"num_cpus": cpus, "num_gpus": 0.0}
    config: Any = {"init_args": init, "client_resources": resources}
    run_simulation(server, client, len(plan.federation.everyone), backend_config=config)


if __name__ == "__main__":
    from tacit.apps import cluster  # under the name by which other processes find it

    tyro.cli(cluster.simulate)
