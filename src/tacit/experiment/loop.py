"""Conduct an experiment: its rounds, each measured, written down and saved."""

from __future__ import annotations

import io
import sys
import time
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from tacit import codec, privacy
from tacit.core import BadInput, BudgetReached, Json, PartOfTests, State, params_of
from tacit.core.own_code import anywhere
from tacit.data.examples import Examples
from tacit.data.federated import Federation
from tacit.engines.client_host import World, one_thread
from tacit.engines.config import Config
from tacit.engines.server import Engine
from tacit.experiment.calibration import budget_of
from tacit.experiment.config import Experiment
from tacit.experiment.drive import drive
from tacit.experiment.encoding import NONE
from tacit.experiment.model_file import Kind, described, taken_apart, whole_network
from tacit.experiment.result import Run, Stopped, by_group
from tacit.experiment.rundir import RunDir
from tacit.experiment.samples import write_samples
from tacit.experiment.watch import Watcher
from tacit.methods.spec import label_of, name_of


class Venue(Protocol):
    """Where an experiment takes place: who answers, and how a state is measured."""

    @property
    def experiment(self) -> Experiment: ...
    @property
    def model(self) -> torch.nn.Module: ...
    @property
    def federation(self) -> Federation: ...
    def world(self, directory: RunDir) -> World: ...
    def config(self, directory: RunDir) -> Config: ...
    def engine(self, directory: RunDir, config: Config) -> Engine: ...
    def scores(self, s: State, engine: Engine) -> Json: ...


def conduct(venue: Venue, directory: RunDir, watch: Watcher) -> Run:
    """Run from the last checkpoint, or from the start, to the end."""
    directory.lock()
    try:
        directory.check()
        _with_engine(venue, directory, watch)
    except BudgetReached as e:
        raise Stopped(str(e), Run(directory.folder)) from e
    finally:
        directory.unlock()
    return Run(directory.folder)


def _with_engine(venue: Venue, directory: RunDir, watch: Watcher) -> None:
    """Run with clients that are there for as long; then no release is missing in the ledger."""
    first = codec.pack(venue.experiment.method.init(params_of(venue.model)))
    unsaved = codec.Stored(io.BytesIO(first), directory.folder)
    del first
    try:
        config = _kept_to(venue, directory, watch)
        # the workers need all processors: a second thread here would only wait for one of them
        with closing(venue.engine(directory, config)) as engine, one_thread():
            _rounds(Recorder(venue, engine, directory, watch, unsaved))
    finally:
        directory.settle()


def _kept_to(venue: Venue, directory: RunDir, watch: Watcher) -> Config:
    """Return how the engine works: within the budget, and with everything written down."""
    budget = budget_of(venue.experiment)
    return replace(
        venue.config(directory),
        approve=budget.check,
        approve_clients=budget.at_clients().check,
        draws=directory.draws,
        keep=venue.experiment.setting.keep,
        on_release=directory.record,
        on_answer=watch.answered,
    )


def _rounds(recorder: Recorder) -> None:
    """Go on from where the run stands; states are held nowhere else, as they may be large."""
    start = [_start(recorder)]
    method, directory = recorder.venue.experiment.method, recorder.directory
    engine = recorder.engine
    try:
        try:
            drive(method, engine, start.pop(), on_step=recorder.step, advance=engine.advance)
        finally:
            engine.catch_up()
    finally:  # however it ends, the model is that of the last checkpoint
        saved = directory.checkpoint()
        s = saved[0] if saved else codec.unpack(recorder.unsaved)
        directory.save_model(*everybodys_model(recorder.venue, directory, s))


def everybodys_model(
    venue: Venue, directory: RunDir, s: State
) -> tuple[dict[str, Tensor] | None, str]:
    """Return the numbers of the model that all have, if there is one, and what they mean."""
    method, s = venue.experiment.method.innermost(s)
    setting, dataset = venue.experiment.setting, venue.federation.dataset
    word = anywhere(setting.model)
    name = label_of(name_of(venue.experiment.method))
    front = "" if setting.features == NONE else anywhere(setting.features)
    about = replace(described(dataset, method=name, seed=setting.seed), network=word, front=front)
    fresh = venue.world(directory)
    if method.answers == "shared" and s.x:
        me = fresh.client("predict", PartOfTests(0, 1).id, s.round, {})
        known = taken_apart(method.predictor(me, s), about, word)
        if known is not None:
            return known[1], known[0].to_json()
    kind: Kind = "personal" if method.answers == "personal" else "own"
    about = about if method.answers == "network" else replace(about, kind=kind)
    numbers = whole_network(fresh.fresh(), s.x) if method.shares and s.x else None
    return numbers, about.to_json()


def _start(recorder: Recorder) -> State:
    """Return the state to begin with, and bring everything else back to where it was."""
    directory, engine = recorder.directory, recorder.engine
    s: State = codec.unpack(recorder.unsaved)
    (saved, accepted), *older = directory.last_good(_say) or [(s, {})]
    if not _alike(saved, s):
        raise BadInput(
            f"'{directory.folder}': its checkpoint is not of the method and network in config.toml"
        )
    if saved.round < recorder.venue.experiment.method.rounds:
        directory.mark_open()
        directory.note_start()
    # a kill before the first checkpoint leaves releases, too
    engine.restore(accepted, directory.ledger(), (snapshot for _, snapshot in older))
    directory.drop_metrics_after(saved.round)
    return saved


@dataclass
class Recorder:
    """Measures each round, writes its line, and saves the state."""

    venue: Venue
    engine: Engine
    directory: RunDir
    watch: Watcher
    unsaved: codec.Stored  # the first state, for as long as there is no checkpoint
    since: float = field(default_factory=time.perf_counter)

    def step(self, s: State) -> None:
        """Evaluate and save a new state. Metrics first.

        A line without its checkpoint is dropped on resume.
        """
        if s.round == 0:  # a step on the way to the first round
            self._save(s)
            self._keep_samples(s)
            return
        method, setting = self.venue.experiment.method, self.venue.experiment.setting
        seconds = time.perf_counter() - self.since
        due = s.round % setting.eval_every == 0 or s.round >= method.rounds
        scores = self.venue.scores(s, self.engine) if due else {}
        # the next round's code may change its state in place before this one is saved
        own = codec.unpack(codec.pack(s)) if self.engine.defers else s
        self.engine.when_busy(partial(self._finish, own, scores, seconds))
        self.since = time.perf_counter()

    def _finish(self, s: State, scores: Json, seconds: float) -> None:
        """Write a round's line, save it, and say so: until then it has not been."""
        method = self.venue.experiment.method
        self.engine.settle_round(s.round - 1)
        line = {
            "round": s.round,
            "accuracy": None,
            "loss": None,
            **scores,
            **({"measured": measured} if (measured := method.measured(s)) else {}),
            **self._spent(s),
            "protects": "/".join(method.protects),
            "bytes_up": self.engine.bytes_up,
            "bytes_up_each": round(self.engine.bytes_up_each),
            "bytes_down": self.engine.bytes_down,
            "seconds": round(seconds, 4),
            **({"failed": self.engine.failed} if self.engine.failed else {}),
        }
        self.directory.add_metrics(line)
        self._save(s)
        self.watch.finished_round(line, method.rounds)
        self.engine.count_anew()

    def _keep_samples(self, s: State) -> None:
        """Write the synthetic examples that the server has by now."""
        parts = self.venue.experiment.method.synthetic(s)
        if parts:
            x = torch.cat([part.x for part in parts])
            y = torch.cat([part.y for part in parts])
            front = self.venue.experiment.setting.features
            named = "" if front == NONE else label_of(front)
            write_samples(self.directory.folder, Examples(x, y), features=named)

    def _save(self, s: State) -> None:
        keep = self.venue.experiment.setting.keep
        self.directory.save(s, self.engine.snapshot(), keep=keep)
        self.engine.mark_saved()

    def _spent(self, s: State) -> Json:
        """Return what the ledger says by now: upper bounds underway, the certificate at the end."""
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


def _say(text: str) -> None:
    print(f"tacit: {text}", file=sys.stderr, flush=True)  # noqa: T201


def _alike(saved: State, fresh: State) -> bool:
    """Tell whether two states are of one kind, with shared models of one shape if there are any."""
    if isinstance(saved, type(fresh)) and not fresh.x:
        return True
    shapes = [
        {k: v.shape for k, v in s.x.items()} if isinstance(s, type(fresh)) else None
        for s in (saved, fresh)
    ]
    return shapes[0] == shapes[1]
