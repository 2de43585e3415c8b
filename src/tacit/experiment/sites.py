"""An experiment whose clients are real sites: nothing is known of their data but what they tell."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from tacit.compress import Compressor
from tacit.core import (
    Aggregate,
    BadInput,
    Client,
    ClientId,
    Json,
    Ledger,
    Owner,
    Params,
    Predictor,
    Pure,
    Reply,
    State,
    task,
)
from tacit.core.data import Goal
from tacit.data.examples import Dataset, Examples
from tacit.data.federated import Federation
from tacit.data.splits import Split
from tacit.engines.client_host import World
from tacit.engines.config import Config
from tacit.engines.facts import Facts
from tacit.engines.flower import AtServer, Charter, Sites
from tacit.engines.server import Engine
from tacit.experiment.calibration import budget_of
from tacit.experiment.config import SITES, Experiment
from tacit.experiment.encoding import (
    NONE,
    chosen_features,
    featured,
    known_of,
    network_for,
    shape_of,
)
from tacit.experiment.expected import Prediction
from tacit.experiment.metrics import COUNTED
from tacit.experiment.plan import by_rules, check_aggregate, check_parts, warn_of_delta
from tacit.experiment.rundir import RunDir
from tacit.experiment.scoring import Evaluation, Tally, counted, noise_in, score_with
from tacit.local.sgd import network
from tacit.models import build
from tacit.synthesis.encoder_file import named

# connects to the sites of a run
Open = Callable[[Charter, Config, AtServer], Sites]


@task(at="measure")
def tally(me: Client, x: Params) -> Reply[Tally]:
    """Count the shared model's successes."""
    return Reply(tally_with(me, network(me, x)))


@task(at="measure")
def tally_shared(me: Client, method: Any, s: State) -> Reply[Tally]:
    """Count the successes of the model that all answer with, if not the experiment's network."""
    return Reply(tally_with(me, method.predictor(me, s)))


@task(at="measure")
def tally_own(me: Client, method: Any, s: State) -> Reply[Tally]:
    """Count the successes of the model that this site answers with."""
    return Reply(tally_with(me, method.predictor(me, s)))


def tally_with(me: Client, predict: Predictor) -> Tally:
    """Count over a site's test data."""
    scored = score_with(me, predict)
    labels = me.test.examples.y
    return counted(scored.predicted == labels, labels, me.classes, scored.loss)


@dataclass(frozen=True)
class AtSites:
    """Where the sites are, as a place to conduct an experiment."""

    experiment: Experiment
    model: nn.Module
    federation: Federation  # as the coordinator sees it: classes and shapes, and nobody's examples
    open: Open
    run: str  # the run's random name
    sample_seed: int  # who takes part derives from it; sites are not told
    facts: Mapping[ClientId, Facts]  # what sites have said of themselves, late ones too
    public: Examples | None = None

    @classmethod
    def of(
        cls,
        experiment: Experiment,
        facts: Mapping[ClientId, Facts],
        clients: int,
        *,
        open: Open,
        run: str,
        sample_seed: int,
        public: Examples | None = None,
    ) -> AtSites:
        """Prepare an experiment for sites that agree on what their data look like."""
        s, method = experiment.setting, experiment.method
        shape, classes, mean, std = agreed(facts)
        sizes = {i: f.examples for i, f in facts.items()}
        _check_fit(experiment, _goal(facts), clients, public=public is not None)
        warn_of_delta(s.delta, sizes)
        features = chosen_features(s.features, method, shape, s.model)
        public = None if public is None else _encoded(public, features, mean, std)
        seen = shape_of(features, shape)
        word = network_for(s.model, features, seen, method)
        model = build(word, seen, len(classes), s.seed)
        known = known_of(word, features, model, sizes, s.delta)
        ready = by_rules(method, known, sample_seed, model, math.prod(seen), len(classes))
        setting = replace(
            s,
            model=word,
            features=features,
            clients=clients,
            split=SITES,
            data=SITES,
            precision="f32",
        )
        resolved = Experiment(ready, setting)
        check_aggregate(resolved, clients)
        check_parts(ready, model, seen, len(classes))
        table = next(iter(facts.values())).table
        dataset = Dataset(SITES, _nothing(shape), _nothing(shape), classes, mean, std, schema=table)
        empty = holding(dataset, clients, seed=s.seed)
        return cls(resolved, model, empty, open, run, sample_seed, facts, public)

    @cached_property
    def encoded(self) -> Federation:
        """The same with the shapes of features, if there are any: as networks see it."""
        d, features = self.federation.dataset, self.experiment.setting.features
        if features == NONE:
            return self.federation
        nothing = _nothing(shape_of(features, d.shape))
        seen = replace(d, train=nothing, test=nothing, features=features)
        return replace(self.federation, dataset=seen)

    def config(self, directory: RunDir) -> Config:
        """Return what the coordinator knows of the run."""
        compress = Compressor.of(self.experiment.setting.compress)
        return self.world(directory).config(
            sample_seed=self.sample_seed,
            compress=compress,
            aggregate=Aggregate.of(self.experiment.setting.aggregate),
            public=self.public,
            expected=Prediction(
                self.experiment.method,
                self.federation.everyone,
                self.facts,
                self.experiment.setting.delta,
                self.sample_seed,
            ).expected,
        )

    def engine(self, directory: RunDir, config: Config) -> Engine:
        """Return the sites; each keeps the experiment's budget and its own."""
        return self.open(self.charter(), config, self.world(directory).own)

    def world(self, directory: RunDir) -> World:
        """Return what the coordinator needs for tasks of its own."""
        s = self.experiment.setting
        return World(self.encoded, self.model, s.seed, directory.clients, "cpu", s.noise, s.delta)

    def charter(self) -> Charter:
        """Return what sites are told of the run."""
        s = self.experiment.setting
        budget = budget_of(self.experiment).at_clients()
        return Charter(
            self.run,
            s.clients,
            s.seed,
            s.model,
            self.encoded.dataset.shape,
            len(self.federation.dataset.classes),
            s.delta,
            s.compress,
            0.0 if budget.epsilon == math.inf else budget.epsilon,
            budget.unit,
            budget.observer,
            named(s.features),
        )

    def scores(self, s: State, engine: Engine) -> Json:
        """Ask every site how good a state is on its own test data."""
        round = s.round
        method, s = self.experiment.method.innermost(s)
        call = {
            "network": lambda: tally(x=s.x),
            "shared": lambda: tally_shared(method=method, s=s),
            "personal": lambda: tally_own(method=method, s=s),
        }[method.answers]()
        tallies = {
            i: within(told, self.facts[i].tests)
            for i, told in engine.look(call, engine.everyone, round).items()
        }
        line = Evaluation.of(tallies, personal=method.answers == "personal").line()
        noisy = {i: e for i, e in reported(engine.ledger).items() if i in tallies}
        noisy = {i: e for i, e in noisy.items() if tallies[i].loss is None}
        return line | ({"noise": noise_in(tallies, noisy)} if line and noisy else {})


def reported(ledger: Ledger) -> dict[ClientId, float]:
    """Return the epsilon of one report of each site whose reports are noisy, by its ledger."""
    of = {Owner.read(line.owner): line.event for line in ledger}
    return {who.client: e.epsilon for who, e in of.items() if who.tests and isinstance(e, Pure)}


def within(told: Tally, tests: int) -> Tally:
    """Return noisy counts, none above the number of a site's test examples.

    Noise may say more, and so may a site that wants to count for many.
    """
    if told.loss is not None:
        return told
    right, wrong = ([min(n, tests) for n in counts] for counts in (told.right, told.wrong))
    return Tally(right, wrong, None)


Agreed = tuple[tuple[int, ...], tuple[str, ...], tuple[float, ...], tuple[float, ...]]


def agreed(facts: Mapping[ClientId, Facts]) -> Agreed:
    """Return what all sites say of shape, classes and scaling, or name two that differ."""
    first = next(iter(facts.values()))
    for other in facts.values():
        _check_tables(first, other)
        for what in ("shape", "classes", "mean", "std"):
            a, b = getattr(first, what), getattr(other, what)
            if a != b:
                raise BadInput(
                    f"{what}: {first.name} has {_short(a)}, {other.name} has {_short(b)}: "
                    "must be alike"
                )
    return first.shape, first.classes, first.mean, first.std


def _goal(facts: Mapping[ClientId, Facts]) -> Goal:
    """Return what sites predict, which their schema says."""
    table = next(iter(facts.values())).table
    return table.task if table else "classes"


def _check_fit(experiment: Experiment, goal: Goal, clients: int, *, public: bool) -> None:
    """Refuse what sites cannot do."""
    s, method = experiment.setting, experiment.method
    if goal != "classes":
        raise BadInput(f"task = {goal!r}: sites predict classes, and nothing else as yet")
    if method.pooled:
        raise BadInput(
            "method: wants all data in one place, and the data of sites stay where they are"
        )
    if method.needs_public and not public:
        raise BadInput("--public: this method needs examples that belong to nobody")
    if method.per_round > clients:
        raise BadInput(
            f"per_round = {method.per_round}: must be at most {clients}, the number of sites"
        )
    if s.precision == "bf16":
        raise BadInput("precision = 'bf16': sites compute in single precision; allowed: f32")
    if s.metric not in COUNTED:
        raise BadInput(
            f"metric = {s.metric!r}: sites tell how often a class was answered right, and no "
            f"more; allowed: {', '.join(COUNTED)}"
        )


def _check_tables(first: Facts, other: Facts) -> None:
    """Refuse two schemas that differ, naming the site and the first column."""
    a, b = first.table, other.table
    if a == b:
        return
    if a is None or b is None:
        lacks, has = (first, other) if a is None else (other, first)
        raise BadInput(f"schema: {lacks.name} has none, {has.name} has one: must be alike")
    what = next(a.differences(b), "draft")
    raise BadInput(f"schema: {what} of {other.name} is not as that of {first.name}: must be alike")


def _short(values: tuple[object, ...]) -> str:
    return (
        f"({', '.join(map(str, values[:4]))}{', ...' if len(values) > 4 else ''}; "
        f"{len(values)} in all)"
    )


def _encoded(
    public: Examples, features: str, mean: tuple[float, ...], std: tuple[float, ...]
) -> Examples:
    """Return examples that belong to nobody as the sites' networks see theirs."""
    dataset = Dataset("public", public, public.take(torch.arange(0)), (), mean, std)
    return featured(holding(dataset, 1, seed=0, client=0), features).dataset.train


def _nothing(shape: tuple[int, ...]) -> Examples:
    return Examples(torch.zeros(0, *shape), torch.zeros(0, dtype=torch.int64))


def holding(
    dataset: Dataset, clients: int, *, seed: int, client: int | None = None, of: Split | None = None
) -> Federation:
    """Return a federation where one client alone holds anything.

    It holds the data set, or the one place of a split of it.
    """
    none = np.zeros(0, dtype=np.int64)
    everything = Split((np.arange(len(dataset.train)),), (np.arange(len(dataset.test)),))
    part = of or everything

    def at(mine: object, other: object) -> tuple[Any, ...]:
        return tuple(mine if i == client else other for i in range(clients))

    return Federation(
        dataset,
        Split(
            train=at(part.train[0], none),
            test=at(part.test[0], none),
            relabel=part.relabel and at(part.relabel[0], tuple(range(len(dataset.classes)))),
            noise=part.noise and at(part.noise[0], 0.0),
        ),
        seed,
    )


def part_of(split: Split, i: int) -> Split:
    """Return one client's place of a split."""
    return Split(
        (split.train[i],),
        (split.test[i],),
        split.relabel and (split.relabel[i],),
        split.noise and (split.noise[i],),
    )
