"""Conduct an experiment.

Data, network, engine, method, evaluation and checkpoints, in a run directory.
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from tacit import data as data_room
from tacit import privacy
from tacit.compress import Compressor
from tacit.core import (
    BadInput,
    BudgetReached,
    ClientId,
    Ledger,
    Method,
    Observer,
    Relation,
    Release,
    params_of,
    some,
)
from tacit.core.own_code import anywhere
from tacit.data.examples import Dataset
from tacit.data.federated import Federation, federate
from tacit.data.splits import clients_of, is_own_split
from tacit.engines.inprocess import engine as make_engine
from tacit.engines.inprocess import processors
from tacit.engines.node import Engine, World, sample_rng
from tacit.experiment.config import Experiment, setting_from
from tacit.experiment.drive import drive
from tacit.experiment.evaluate import evaluate
from tacit.experiment.extend import extended
from tacit.experiment.rundir import Busy, RunDir, free_folder
from tacit.methods.spec import as_method, label_of, name_of
from tacit.models import build, choose
from tacit.privacy.checks import check_once
from tacit.privacy.guard import Budget


class Watcher(Protocol):
    """Somebody who is told how a run goes."""

    def begin(self, label: str, rounds: int) -> None: ...
    def answered(self, done: int, of: int) -> None: ...
    def finished_round(self, line: dict[str, Any], rounds: int) -> None: ...


class Nobody:
    """Watches silently."""

    def begin(self, label: str, rounds: int) -> None:
        """Ignore a start."""

    def answered(self, done: int, of: int) -> None:
        """Ignore a reply."""

    def finished_round(self, line: dict[str, Any], rounds: int) -> None:
        """Ignore a round."""


@dataclass(frozen=True)
class Run:
    """A finished (or stopped) run, read from its directory."""

    folder: Path

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One line per round."""
        return RunDir.open(self.folder).metrics()

    @property
    def final(self) -> dict[str, Any]:
        """The last evaluated line."""
        return next((line for line in reversed(self.metrics) if line["accuracy"] is not None), {})

    @property
    def rounds(self) -> int:
        """How many rounds are finished."""
        return max((line["round"] for line in self.metrics), default=0)

    @property
    def accuracy(self) -> float:
        """Accuracy after the last evaluated round, between 0 and 1; NaN if there is none."""
        return float(self.final.get("accuracy", float("nan")))

    @property
    def ledger(self) -> Ledger:
        """Every release so far, those of an unfinished round included."""
        return RunDir.open(self.folder).ledger()

    @property
    def epsilon(self) -> dict[str, float]:
        """Epsilon of all releases by unit and observer, such as ``example/server``.

        For one example zeroed out, or for one client replaced.
        """
        return privacy.overview(self.ledger, delta=self.experiment.setting.delta)

    @property
    def spent(self) -> float:
        """Epsilon of what the method protects, zeroed out: what its budget is compared with."""
        return self.costing()

    def costing(self, observer: Observer | None = None, relation: Relation = "zero-out") -> float:
        """Return the epsilon of what the method protects, against anybody and for any relation.

        For replacement an upper bound: it stands beside the certificate, and clients may be many.
        """
        unit, whom = self.experiment.method.protects
        return privacy.epsilon(
            self.ledger,
            unit=unit,
            observer=observer or whom,
            delta=self.experiment.setting.delta,
            relation=relation,
            quick=relation == "replace",
        )

    @property
    def groups(self) -> dict[str, dict[str, float]]:
        """Return how many clients a method's groups have and what they have spent, if it has any."""
        saved = RunDir.open(self.folder).checkpoint()
        lines = self.metrics
        if saved is None or not lines or "groups" not in lines[-1]:
            return {}
        return by_group(self.experiment, saved[0], self.ledger)

    @property
    def why(self) -> str:
        """Why the epsilon of what the method protects is what it is, in one sentence."""
        unit, observer = self.experiment.method.protects
        delta = self.experiment.setting.delta
        return privacy.reason(self.ledger, unit=unit, observer=observer, delta=delta)

    @property
    def experiment(self) -> Experiment:
        """What ran."""
        return RunDir.open(self.folder).experiment()


class Stopped(BudgetReached):
    """The budget has stopped a run, which can be read up to there."""

    def __init__(self, why: str, run: Run) -> None:
        super().__init__(why)
        self.run = run


def run(
    method: Any,
    *,
    data: str | Dataset = "digits",
    out: str | Path | None = None,
    watch: Watcher | None = None,
    **setting: Any,
) -> Run:
    """Run a method and return its finished :class:`Run`.

    ``method`` is a word such as ``"fedprox:mu=0.1,rounds=10"`` (``tacit run fedprox --help`` lists
    its settings) or an instance; ``data`` a name, a path or a :class:`tacit.data.Dataset`; ``out``
    the folder of the run, a new one in ``runs/`` by default; ``watch`` is told how it goes. The
    other keywords are the fields of :class:`tacit.experiment.config.Setting`: split, clients, model,
    seed, eval_every, delta, budget, compress, noise, workers, device. What cannot be used is
    refused by :class:`tacit.core.BadInput`, a ``ValueError``, in one line.
    """
    method = as_method(method)
    dataset = data if isinstance(data, Dataset) else None
    name = data.name if isinstance(data, Dataset) else data
    experiment = Experiment(method, setting_from({"data": name, **setting}, method))
    return start(experiment, out=Path(out) if out else None, dataset=dataset, watch=watch)


def start(
    experiment: Experiment,
    *,
    out: Path | None = None,
    dataset: Dataset | None = None,
    watch: Watcher | None = None,
    told: Callable[[Path], None] = lambda folder: None,
) -> Run:
    """Start an experiment in a new run directory; ``told`` is told which.

    What is refused before anything has left a client leaves no directory behind.
    """
    plan = Plan.of(experiment, dataset)
    folder = out or free_folder(Path("runs") / default_name(experiment))
    directory = RunDir.create(folder, plan.experiment)
    told(folder)
    try:
        return plan.conduct(directory, watch or Nobody())
    except Busy:
        raise
    except BadInput:
        directory.discard()
        raise


def resume(
    folder: str | Path,
    *,
    rounds: int | None = None,
    dataset: Dataset | None = None,
    watch: Watcher | None = None,
) -> Run:
    """Continue the run in ``folder`` from its last checkpoint.

    One that is finished is left as it is, unless it is to have more ``rounds``, in all. They are
    refused where its noise was chosen for the rounds that it has.

    ``dataset`` has to be given again where the run was started with a :class:`tacit.data.Dataset`
    of your own.
    """
    directory = RunDir.open(Path(folder))
    experiment = directory.experiment()
    if experiment.setting.split == "sites":
        raise BadInput(f"'{folder}': a run with sites; `tacit serve {folder}` continues it")
    dataset = dataset or data_again(experiment.setting.data, "tacit.resume(folder, dataset=...)")
    plan = Plan.of(experiment, dataset)
    if rounds is not None:
        plan = _longer(plan, directory, rounds)
    return plan.conduct(directory, watch or Nobody())


def _longer(plan: Plan, directory: RunDir, rounds: int) -> Plan:
    """Return a plan with more rounds, and write them into the run directory."""
    directory.check_alone()
    sizes, setting = plan.federation.sizes(), plan.experiment.setting

    def predict(method: Method) -> list[Release]:
        times = participations(tuple(sizes), method.per_round, method.rounds, setting.seed)
        solved = calibrated(method, sizes, setting.delta, setting.seed)
        return solved.releases(sizes, times, setting.delta)

    method = extended(plan.experiment.method, rounds, predict)
    directory.lock()
    directory.rewrite(Experiment(method, setting))
    return replace(plan, experiment=Experiment(method, setting))


def data_again(name: str, call: str) -> Dataset:
    """Return the data of a run that goes on, or name the call that takes data which only a program has."""
    if data_room.can_load(name) or Path(name).is_absolute():
        return data_room.load(name)
    raise BadInput(
        f"data = {name!r}: neither a known data set nor a file here; "
        f"a run from Python with data of its own goes on there, with {call}"
    )


def default_name(experiment: Experiment) -> str:
    """Return a run's name when none is given."""
    s = experiment.setting
    label = label_of(name_of(experiment.method))
    split = label_of(s.split) if is_own_split(s.split) else s.split.replace(":", "")
    return f"{label}-{Path(s.data).stem}-{split}-s{s.seed}"


@dataclass(frozen=True)
class Plan:
    """An experiment with its data divided and its network built: everything checked, nothing run."""

    experiment: Experiment
    federation: Federation
    model: torch.nn.Module
    device: str
    workers: int = field(default=0)

    @classmethod
    def of(cls, experiment: Experiment, dataset: Dataset | None = None) -> Plan:
        """Prepare an experiment, refusing what cannot work."""
        s = experiment.setting
        if dataset is None:
            dataset, s = data_room.load(s.data), replace(s, data=data_room.anywhere(s.data))
        federation = federate(dataset, s.split, clients=clients_of(s.split, s.clients), seed=s.seed)
        if experiment.method.pooled:
            federation = federation.pooled()
        _check_groups(experiment.method, federation, s.split)
        if experiment.method.per_round > len(federation.everyone):
            raise BadInput(
                f"per_round = {experiment.method.per_round}: must be at most {len(federation.everyone)}, "
                "the number of clients"
            )
        experiment = replace(
            experiment, method=calibrated(experiment.method, federation.sizes(), s.delta, s.seed)
        )
        model = build(s.model, dataset.shape, len(dataset.classes), s.seed)
        check_parts(experiment.method, model, dataset.shape, len(dataset.classes))
        warn_of_delta(s.delta, federation.sizes())
        resolved = replace(
            s,
            model=anywhere(choose(s.model, dataset.shape)),
            split=anywhere(s.split),
            clients=clients_of(s.split, s.clients),
        )
        device = _device(s.device)
        workers = processors() if s.workers == "auto" else s.workers
        experiment = replace(experiment, setting=resolved)
        return cls(
            experiment,
            federation,
            model,
            device,
            1 if device == "cuda" and s.workers == "auto" else workers,
        )

    def conduct(self, directory: RunDir, watch: Watcher) -> Run:
        """Run from the last checkpoint, or from the start, to the end."""
        return conduct(self, directory, watch)

    def engine(self, directory: RunDir) -> Engine:
        """Return clients in processes of this machine."""
        budget_of(self.experiment).prepare()
        return make_engine(self.world(directory), self.workers)

    def world(self, directory: RunDir) -> World:
        """Return what a process needs to be any client, the budget that it keeps included."""
        setting = self.experiment.setting
        return World(
            self.federation,
            self.model,
            setting.seed,
            directory.clients,
            self.device,
            setting.noise,
            setting.delta,
            approve=budget_of(self.experiment).at_clients().check,
            compress=Compressor.of(setting.compress),
        )

    def scores(self, s: Any, engine: Engine) -> dict[str, Any]:
        """Evaluate on the test set."""
        return evaluate(
            self.experiment.method, s, engine, self.federation, max(1, self.workers)
        ).line()


class Venue(Protocol):
    """Where an experiment takes place: who answers, and how a state is measured."""

    @property
    def experiment(self) -> Experiment: ...
    @property
    def model(self) -> torch.nn.Module: ...
    def engine(self, directory: RunDir) -> Engine: ...
    def scores(self, s: Any, engine: Engine) -> dict[str, Any]: ...


def conduct(venue: Venue, directory: RunDir, watch: Watcher) -> Run:
    """Run from the last checkpoint, or from the start, to the end."""
    directory.lock()
    try:
        directory.mark_open()
        _with_engine(venue, directory, watch)
    except BudgetReached as e:
        raise Stopped(str(e), Run(directory.folder)) from e
    finally:
        directory.unlock()
    return Run(directory.folder)


def _with_engine(venue: Venue, directory: RunDir, watch: Watcher) -> None:
    """Run with clients that are there for as long; then no release is missing in the ledger."""
    s = venue.experiment.method.init(params_of(venue.model))
    try:
        with closing(venue.engine(directory)) as engine:
            budget = budget_of(venue.experiment)
            engine.approve = budget.check
            engine.approve_clients = budget.at_clients().check
            _rounds(venue, engine, directory, watch, s)
    finally:
        directory.settle()


def budget_of(experiment: Experiment) -> Budget:
    """Return what an experiment may spend, of the unit and against the observer of its method."""
    unit, observer = experiment.method.protects
    return Budget(experiment.setting.budget, unit, observer, experiment.setting.delta)


def _rounds(venue: Venue, engine: Engine, directory: RunDir, watch: Watcher, s: Any) -> None:
    saved, accepted = directory.checkpoint() or (s, {})
    if not _alike(saved, s):
        raise BadInput(
            f"'{directory.folder}': its checkpoint is not of the method and network in config.toml"
        )
    s = saved
    if s.round < venue.experiment.method.rounds:
        directory.note_start()
    # a kill before the first checkpoint leaves releases, too
    engine.restore(accepted, directory.ledger())
    directory.drop_metrics_after(s.round)
    engine.on_release = directory.record
    engine.on_answer = watch.answered
    engine.draws = directory.draws
    recorder = Recorder(venue, engine, directory, watch)
    try:
        drive(venue.experiment.method, engine, s, on_step=recorder.step)
    finally:  # however it ends, the model is that of the last checkpoint
        directory.save_model((recorder.last or s).x)


@dataclass
class Recorder:
    """Measures each round, writes its line, and saves the state."""

    venue: Venue
    engine: Engine
    directory: RunDir
    watch: Watcher
    since: float = field(default_factory=time.perf_counter)
    last: Any = None

    def step(self, s: Any) -> None:
        """Evaluate and save a new state. Metrics first.

        A line without its checkpoint is dropped on resume.
        """
        if s.round == 0:  # a step on the way to the first round
            self._save(s)
            return
        method, setting = self.venue.experiment.method, self.venue.experiment.setting
        seconds = time.perf_counter() - self.since
        due = s.round % setting.eval_every == 0 or s.round >= method.rounds
        scores = self.venue.scores(s, self.engine) if due else {}
        line = {
            "round": s.round,
            "accuracy": None,
            "loss": None,
            **scores,
            **({"measured": measured} if (measured := method.measured(s)) else {}),
            **self._spent(s),
            "protects": "/".join(method.protects),
            "bytes_up": self.engine.bytes_up,
            "bytes_down": self.engine.bytes_down,
            "seconds": round(seconds, 4),
            **({"failed": self.engine.failed} if self.engine.failed else {}),
        }
        self.directory.add_metrics(line)
        self._save(s)
        self.watch.finished_round(line, method.rounds)
        self.engine.bytes_up = self.engine.bytes_down = 0
        self.engine.failed, self.since = {}, time.perf_counter()

    def _save(self, s: Any) -> None:
        self.directory.save(s, self.engine.snapshot())
        self.engine.mark_saved()
        self.last = s

    def _spent(self, s: Any) -> dict[str, Any]:
        """Return what the ledger says by now: upper bounds on the way, the certificate at the end."""
        experiment = self.venue.experiment
        ledger = self.engine.ledger
        method = experiment.method
        delta = experiment.setting.delta
        unit, observer = method.protects
        quick = s.round < method.rounds
        groups = by_group(experiment, s, ledger, quick=quick)
        return {
            **({"groups": groups} if groups else {}),
            "epsilon": privacy.overview(ledger, delta=delta, quick=quick),
            "spent": privacy.epsilon(
                ledger, unit=unit, observer=observer, delta=delta, quick=quick
            ),
        }


def by_group(
    experiment: Experiment, s: Any, ledger: Ledger, *, quick: bool = False
) -> dict[str, dict[str, float]]:
    """Return, for the groups of clients that a method tells apart, their number and what they spent."""
    method = experiment.method
    delta = experiment.setting.delta
    if not method.grouped(s):
        return {}
    unit, observer = method.protects
    spent = privacy.by_owner(ledger, unit=unit, observer=observer, delta=delta, quick=quick)
    groups = {
        name: [spent.get(i, math.inf) for i in ids]
        for name, ids in method.grouped(s).items()
        if ids
    }
    return {name: {"clients": len(each), "epsilon": max(each)} for name, each in groups.items()}


def calibrated(
    method: Method, sizes: Mapping[ClientId, int], delta: float, sample_seed: int
) -> Method:
    """Return the method with whatever it solves from an epsilon before it starts."""
    # Where the sample is a secret, noise that depends on it would tell of it: everybody is taken to
    # be in every round.
    per_round = method.per_round if method.protects[1] == "server" else 0
    return method.solved(
        sizes, participations(tuple(sizes), per_round, method.rounds, sample_seed), delta
    )


def participations(
    everyone: Sequence[str], per_round: int, rounds: int, sample_seed: int
) -> Counter[str]:
    """Return how often each client will be sampled, which does not depend on any data."""
    draws = (some(per_round).pick(everyone, sample_rng(sample_seed, t)) for t in range(rounds))
    return Counter(client for draw in draws for client in draw)


def _alike(saved: Any, fresh: Any) -> bool:
    """Tell whether two states are of the same kind, with a shared model of the same shape, where it begins with one."""
    if isinstance(saved, type(fresh)) and not fresh.x:
        return True
    shapes = [
        {k: v.shape for k, v in s.x.items()} if isinstance(s, type(fresh)) else None
        for s in (saved, fresh)
    ]
    return shapes[0] == shapes[1]


def check_parts(
    method: Method, model: torch.nn.Module, shape: tuple[int, ...], classes: int
) -> None:
    """Refuse a network, or features, with which a method's guarantee would not hold."""
    method.check_inputs(shape)
    if method.per_example:
        check_once(model, shape, classes)


def warn_of_delta(delta: float, sizes: Mapping[ClientId, int]) -> None:
    """Say that a delta of 1/n or more allows to publish a whole record now and then."""
    smallest = min(sizes.values())
    if delta >= 1 / smallest:
        print(
            f"warning: delta = {delta:g} is not below 1/n = {1 / smallest:.3g} of the smallest client",
            file=sys.stderr,
        )


def _check_groups(method: Method, federation: Federation, split: str) -> None:
    """Refuse a split without the public set or the kinds of clients that a method needs."""
    if method.needs_public and federation.split.public is None:
        raise BadInput(
            f"split = {split!r}: {name_of(method)} needs a public set; sizes:kd-mnist, for one, has it"
        )
    method.groups(federation.sizes())


def _device(wanted: str) -> str:
    if wanted == "cuda" and not torch.cuda.is_available():
        raise BadInput("device = 'cuda': there is no CUDA device here; allowed: auto, cpu")
    return "cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu"
