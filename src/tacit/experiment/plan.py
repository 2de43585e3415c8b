"""An experiment with its data divided and its network built, and what it must fulfil."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import torch

from tacit.compress import Compressor
from tacit.core import Aggregate, BadInput, ClientId, Json, Keywords, Known, Method, State
from tacit.core.data import Goal
from tacit.core.own_code import anywhere
from tacit.data.examples import Dataset
from tacit.data.federated import Federation, federate
from tacit.data.splits import clients_of, owner_column
from tacit.engines.client_host import World
from tacit.engines.config import Config
from tacit.engines.recall import Made
from tacit.engines.server import Engine
from tacit.engines.workers import engine as make_engine
from tacit.engines.workers import processors
from tacit.experiment.calibration import budget_of, numbers_of, prepared
from tacit.experiment.config import Experiment, Setting, dataset_of, found_anywhere
from tacit.experiment.encoding import chosen_features, featured, known_of, network_for, shape_of
from tacit.experiment.evaluate import evaluate
from tacit.experiment.loop import conduct
from tacit.experiment.metrics import COUNTED
from tacit.experiment.result import Run
from tacit.experiment.rundir import RunDir
from tacit.experiment.signal import of_signal
from tacit.experiment.signs import of_data, warn_of
from tacit.experiment.watch import Watcher
from tacit.methods import METHODS
from tacit.methods.spec import name_of
from tacit.models import build
from tacit.models.precision import chosen
from tacit.privacy.checks import check_once, slow_words


@dataclass(frozen=True)
class Plan:
    """An experiment with its data divided and its network built: all checked, nothing run."""

    experiment: Experiment
    federation: Federation
    model: torch.nn.Module
    device: str
    workers: int = field(default=0)
    front: str = ""  # what features are computed by, if not by the setting's word
    made: Made | None = None  # where runs of a table keep what they have in common

    @classmethod
    def of(
        cls,
        experiment: Experiment,
        dataset: Dataset | None = None,
        *,
        network: str = "",
        front: str = "",
    ) -> Plan:
        """Prepare an experiment, refusing what cannot work.

        Args:
            experiment: what is to run
            dataset: its data, where they are at hand
            network: what to make the network by, where its source was kept with a run
            front: what to compute features by, likewise
        """
        s, method = experiment.setting, experiment.method
        if dataset is None:
            dataset = dataset_of(s)
            s = found_anywhere(s)
        federation, classes = _divided(method, dataset, s), len(dataset.classes)
        features = chosen_features(s.features, method, dataset.shape, s.model)
        shape = shape_of(front or features, dataset.shape)
        word = network_for(s.model, features, shape, method)
        model = build(network or word, shape, classes, s.seed)
        known = known_of(word, features, model, federation.sizes(), s.delta)
        method = settled(by_rules(method, known, s.seed, model, math.prod(shape), classes))
        experiment = replace(experiment, method=method)
        check_aggregate(experiment, len(federation.everyone))
        check_goal(method, dataset.goal)
        check_parts(method, model, shape, classes, dataset.goal)
        _warn(s, federation)
        device = _device(s.device)
        resolved = replace(
            s,
            model=anywhere(word),
            features=anywhere(features),
            split=anywhere(s.split),
            encoder=anywhere(s.encoder),
            clients=_clients(s, federation),
            precision=chosen(s.precision, model, shape, clips=method.per_example, device=device),
        )
        experiment = replace(experiment, setting=resolved)
        return cls(experiment, federation, model, device, _processes(s, device), front)

    @cached_property
    def encoded(self) -> Federation:
        """The federation with features in place of inputs, if there are any: as networks see it.

        Made when it is first needed: what a run costs is known without it.
        """
        method, shape = self.experiment.method, self.federation.dataset.shape
        network = type(self.model).__name__  # there is one, also where it was made by hand
        name = chosen_features(self.experiment.setting.features, method, shape, network)
        return featured(self.federation, self.front or name)

    def conduct(self, directory: RunDir, watch: Watcher) -> Run:
        """Run from the last checkpoint, or from the start, to the end."""
        if self.experiment.setting.engine == "ray":
            from tacit.experiment.cluster import conduct_on_ray  # needs Flower

            return conduct_on_ray(self, directory, watch)
        return conduct(self, directory, watch)

    def config(self, directory: RunDir) -> Config:
        """Return what an engine knows of this experiment."""
        return self.world(directory).config(
            aggregate=Aggregate.of(self.experiment.setting.aggregate)
        )

    def engine(self, directory: RunDir, config: Config) -> Engine:
        """Return clients in processes of this machine."""
        budget_of(self.experiment).prepare()
        return make_engine(self.world(directory), self.workers, config)

    def world(self, directory: RunDir) -> World:
        """Return what a process needs to be any client, the budget that it keeps included."""
        setting = self.experiment.setting
        return World(
            self.encoded,
            self.model,
            setting.seed,
            directory.clients,
            self.device,
            setting.noise,
            setting.delta,
            approve=budget_of(self.experiment).at_clients().check,
            compress=Compressor.of(setting.compress),
            precision="bf16" if setting.precision == "bf16" else "f32",
            made=self.made,
        )

    def scores(self, s: State, engine: Engine) -> Json:
        """Evaluate on the test set; in the last round by every measure."""
        method, metric = self.experiment.method, self.experiment.setting.metric
        detailed = metric not in COUNTED or s.round >= method.rounds
        parts = max(1, self.workers)
        return evaluate(method, s, engine, self.federation, parts, detailed=detailed).line()


def _divided(method: Method, dataset: Dataset, s: Setting) -> Federation:
    """Return who holds what, or refuse a division that a method cannot do with."""
    federation = federate(dataset, s.split, clients=clients_of(s.split, s.clients), seed=s.seed)
    if method.pooled:
        federation = federation.pooled()
    _check_groups(method, federation, s.split)
    if method.per_round > len(federation.everyone):
        raise BadInput(
            f"per_round = {method.per_round}: must be at most "
            f"{len(federation.everyone)}, the number of clients"
        )
    return federation


def by_rules(
    given: Method, known: Known, seed: int, model: torch.nn.Module, inputs: int, classes: int
) -> Method:
    """Return a method with all that it chooses and solves; say if noise drowns what it sends.

    Args:
        given: the method, as it was given
        known: what is public of the experiment
        seed: who takes part in which round
        model: the experiment's network
        inputs: numbers of an example, or of its features
        classes: how many there are
    """

    def prepare(method: Method) -> Method:
        return prepared(method, known, seed)

    ready, size = prepare(given), (numbers_of(model), inputs, classes)
    warn_of(of_signal(given, ready, prepare, known.sizes, known.delta, *size))
    return ready


def _warn(s: Setting, federation: Federation) -> None:
    """Say what is noticed of an experiment that works."""
    warn_of_delta(s.delta, federation.sizes())
    warn_of_classes(federation.dataset)
    warn_of(of_data(federation.dataset))


def _clients(s: Setting, federation: Federation) -> int:
    """Return how many clients the split has; data that say it themselves are not contradicted."""
    if not owner_column(s.split):
        return clients_of(s.split, s.clients)
    found = len(federation.dataset.owners.names) if federation.dataset.owners else s.clients
    if s.clients not in (Setting.clients, found):
        raise BadInput(f"clients = {s.clients}: must be {found}, as the data say, or left out")
    return found


def settled(of: Method) -> Method:
    """Return a method whose settings that name files hold in every folder."""
    given: Keywords = {f.name: getattr(of, f.name) for f in fields(of) if f.init}
    words: Keywords = {k: anywhere(v) for k, v in given.items() if isinstance(v, str)}
    inner: Keywords = {k: settled(v) for k, v in given.items() if isinstance(v, Method)}
    changed = {k: v for k, v in (words | inner).items() if v != given[k]}
    return replace(of, **changed) if changed else of


def check_aggregate(experiment: Experiment, clients: int) -> None:
    """Refuse another rule than the mean where a method rests on it, or has too few clients."""
    method, word = experiment.method, experiment.setting.aggregate
    rule = Aggregate.of(word)
    if rule.rule == "mean":
        return
    if not method.takes_aggregate:
        raise BadInput(
            f"aggregate = {word!r}: {name_of(method)} does not take it: it does not average, or "
            "its guarantee rests on the mean"
        )
    asked = method.per_round or clients
    if asked < rule.least:
        raise BadInput(f"aggregate = {word!r}: needs {rule.least} clients in a round, has {asked}")


def check_goal(method: Method, goal: Goal) -> None:
    """Refuse a method that predicts nothing but classes where something else is wanted."""
    if goal not in method.goals:
        able = [name for name, known in METHODS.items() if goal in known.goals]
        raise BadInput(
            f"task = {goal!r}: {name_of(method)} predicts classes; allowed: {', '.join(able)}"
        )


def check_parts(
    method: Method,
    model: torch.nn.Module,
    shape: tuple[int, ...],
    classes: int,
    goal: Goal = "classes",
) -> None:
    """Refuse a network, or features, with which a method's guarantee would not hold."""
    method.check_inputs(shape)
    if method.per_example:
        check_once(model, shape, classes, goal)
        if words := slow_words(model):
            print(f"note: DP-SGD goes on{words.removeprefix(';')}", file=sys.stderr)


def warn_of_delta(delta: float, sizes: Mapping[ClientId, int]) -> None:
    """Say that a delta of 1/n or more allows to publish a whole record now and then."""
    smallest = min(sizes.values())
    if delta >= 1 / smallest:
        line = f"delta = {delta:g} is not below 1/n = {1 / smallest:.3g} of the smallest client"
        print(f"warning: {line}", file=sys.stderr)


def warn_of_classes(dataset: Dataset) -> None:
    """Say that classes were found in the data: a class that one record alone has tells of it."""
    if dataset.schema is not None and dataset.schema.draft:
        line = (
            "the schema is a draft: its ranges and categories are of the data, and count as public"
        )
        print(f"warning: {line}", file=sys.stderr)
    elif dataset.inferred:
        print(
            f"warning: {len(dataset.classes)} classes were found in the data and count as public; "
            "--classes states all there can be",
            file=sys.stderr,
        )


def _check_groups(method: Method, federation: Federation, split: str) -> None:
    """Refuse a split without the public set or the kinds of clients that a method needs."""
    if method.needs_public and federation.split.public is None:
        raise BadInput(
            f"split = {split!r}: {name_of(method)} needs a public set; sizes:kd-mnist, "
            "for one, has it"
        )
    method.groups(federation.sizes())


def _processes(s: Setting, device: str) -> int:
    """Return how many worker processes there are, where 0 means none: all in this one."""
    if s.engine == "serial":
        return 0
    if s.workers == "auto":
        return 1 if device == "cuda" else processors()
    return s.workers


def _device(wanted: str) -> str:
    if wanted == "cuda" and not torch.cuda.is_available():
        raise BadInput("device = 'cuda': there is no CUDA device here; allowed: auto, cpu")
    return "cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu"
