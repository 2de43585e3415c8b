"""Several methods on the same split, seeds and sampled clients, repeated.

A table of means and deviations.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tacit import codec
from tacit.core import BadInput, BudgetReached, TacitError, check
from tacit.data.examples import Dataset
from tacit.engines.recall import Made
from tacit.experiment.config import (
    Experiment,
    Setting,
    dataset_of,
    found_anywhere,
    setting_from,
    shows_setting,
)
from tacit.experiment.curves import html_table, over_rounds
from tacit.experiment.encoding import in_tables, settled
from tacit.experiment.metrics import SQUARED, WORDS
from tacit.experiment.plan import Plan
from tacit.experiment.result import Run
from tacit.experiment.rundir import Busy, RunDir, free_folder, plain, restore
from tacit.experiment.shared_options import with_common
from tacit.experiment.signs import each_once
from tacit.experiment.start import data_again
from tacit.experiment.watch import Nobody, Watcher
from tacit.methods.spec import folder_of, method_from_spec, validated
from tacit.privacy import show_epsilon

P = TypeVar("P")
FILE, TABLE = "comparison.json", "table.json"


@dataclass(frozen=True)
class Comparison:
    """What is compared: words such as ``fedprox:mu=0.1``, run with ``repeats`` seeds each."""

    methods: list[str]
    setting: Setting = field(default_factory=Setting)
    repeats: int = 1
    notes: list[str] = field(default_factory=list)  # what to say below the table

    def __post_init__(self) -> None:
        check.number("repeats", self.repeats, at_least=1, whole=True)
        if not self.methods:
            raise BadInput("methods: name at least one, such as fedavg")
        if twice := {m for m in self.methods if self.methods.count(m) > 1}:
            raise BadInput(f"methods: {', '.join(sorted(twice))} is named more than once")

    def experiments(self) -> list[tuple[str, Experiment]]:
        """Return every run as (folder name, experiment), repeat by repeat."""
        seeds = [self.setting.seed + r for r in range(self.repeats)]
        return [
            (
                f"{folder_of(word)}-s{seed}",
                Experiment(method_from_spec(word), replace(self.setting, seed=seed)),
            )
            for seed in seeds
            for word in self.methods
        ]

    def runs_of(self, word: str) -> list[tuple[str, Experiment]]:
        """Return the runs of one method, one per repeat."""
        return self.experiments()[self.methods.index(word) :: len(self.methods)]


@dataclass(frozen=True)
class Row:
    """One method's results over the repeats."""

    method: str
    accuracy: list[float]
    own_data: list[float]  # mean over clients, of each on its own test data
    personal: bool
    epsilon: dict[str, float]  # the largest of any repeat, of one example or of one client replaced
    spent: float  # the same of what its guarantee is about, zeroed out
    protects: str  # what its guarantee is about, such as example/server
    measured: dict[str, list[float]]  # what the method measures of itself, between 0 and 1
    megabytes_up: float
    seconds: float
    why: str
    rounds: int = 0  # of each run
    runs: int = 1
    stopped: list[int] = field(default_factory=list)  # after which round, those that did
    metric: str = "accuracy"  # what tables and pictures show
    scores: list[float] = field(default_factory=list)  # by that metric, where it is another one
    features: str = "none"  # public ones that stand in front of the network
    per_label: dict[str, list[float]] = field(default_factory=dict)  # several labels: share right
    errors: dict[str, list[float]] = field(default_factory=dict)  # numbers: such as mse, mae age

    @property
    def shown(self) -> list[float]:
        """What tables and pictures show."""
        return self.accuracy if self.metric == "accuracy" else self.scores

    def named(self, name: str) -> Row:
        """Return the same row under another name."""
        return replace(self, method=name)


@dataclass(frozen=True)
class Compared:
    """A finished comparison, with what to say below its table."""

    folder: Path
    rows: list[Row]
    notes: list[str] = field(default_factory=list)

    @property
    def runs(self) -> dict[str, list[Run]]:
        """The runs of each method, one for each seed."""
        plan = read_comparison(self.folder)
        return {
            word: [Run(self.folder / name) for name, _ in plan.runs_of(word)]
            for word in plan.methods
        }

    @property
    def history(self) -> dict[str, list[Any]]:
        """The history of each run of each method: see :attr:`Run.history`."""
        return {word: [run.history for run in runs] for word, runs in self.runs.items()}

    def plot(self, metric: str = "") -> Any:
        """Return a matplotlib figure of all methods over rounds."""
        chosen = metric or self.rows[0].metric
        check.choice("metric", chosen, [*WORDS, SQUARED])
        return over_rounds(self.runs, metric=chosen)

    def _repr_html_(self) -> str:
        """Show the comparison in a notebook."""
        return html_table(*shown(self.rows), "; ".join(self.notes))


def shown(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Return head and rows of a small table."""
    head = ["method", *goodness(rows[0]), "eps", "for", "MB up", "seconds"]
    body = [
        [
            r.method,
            *goodness(r).values(),
            show_epsilon(r.spent),
            r.protects,
            f"{r.megabytes_up:.2f}",
            f"{r.seconds:.1f}",
        ]
        for r in rows
    ]
    return head, body


def goodness(row: Row) -> dict[str, str]:
    """Return how good a method is, for a small table: columns by their names."""
    if row.errors:
        return {name: _plain(values) for name, values in row.errors.items()}
    shown = {WORDS[row.metric]: "-" if row.personal else _percent(row.shown)}
    labels = {name: _percent(values) for name, values in row.per_label.items()}
    return shown | (labels or {"own data": _percent(row.own_data)})


def _plain(values: Sequence[float]) -> str:
    return f"{float(np.mean(values)):.4g}" if values else "-"


def _percent(values: Sequence[float]) -> str:
    there = [v for v in values if not np.isnan(v)]
    return f"{100 * float(np.mean(there)):.1f} %" if there else "-"


@shows_setting
def compare(
    methods: Sequence[str],
    *,
    common: Mapping[str, object] | None = None,
    repeats: int = 1,
    data: str | Dataset = "digits",
    out: str | Path | None = None,
    watch: Watcher | None = None,
    **setting: Any,
) -> Compared:
    """Compare methods, each a word such as ``"fedprox:mu=0.1"``, on the same split and seeds.

    ``common`` has settings for every method that has them, such as ``{"rounds": 5}``; ``notes`` of
    the result names the others. With ``repeats`` each runs with so many seeds, from ``seed`` on.
    The other keywords are those of :func:`tacit.experiment.start.run`. The result has one
    :class:`Row` for each method in ``rows``, also for one that its budget has stopped.
    """
    if isinstance(methods, str) or not all(isinstance(word, str) for word in methods):
        raise BadInput(
            f"methods = {methods!r}: must be a list of words, "
            "such as ['fedavg', 'scaffold:rounds=5']"
        )
    dataset = data if isinstance(data, Dataset) else None
    name = data.name if isinstance(data, Dataset) else data
    first = method_from_spec([*methods, "fedavg"][0])  # an empty list is refused below
    words, notes = with_common(methods, common or {})
    plan = Comparison(words, setting_from({"data": name, **setting}, first), repeats, notes)
    return start_comparison(plan, out=Path(out) if out else None, dataset=dataset, watch=watch)


@each_once()
def start_comparison(
    plan: Comparison,
    *,
    out: Path | None = None,
    dataset: Dataset | None = None,
    watch: Watcher | None = None,
    told: Callable[[Path], None] = lambda folder: None,
) -> Compared:
    """Start a comparison in a new folder; ``told`` is told which."""
    setting, dataset = with_data(plan.setting, dataset)
    plan = replace(plan, setting=setting)
    check_all(plan.experiments(), dataset)
    folder = out or free_folder(Path("runs") / "compare")
    if (folder / FILE).exists() or (folder / "config.toml").exists():
        raise BadInput(
            f"out = '{folder}': there is a run or comparison; `tacit resume {folder}` continues it"
        )
    write_plan(plan, folder / FILE)
    told(folder)
    return resume_comparison(folder, dataset=dataset, watch=watch)


def with_data(setting: Setting, dataset: Dataset | None) -> tuple[Setting, Dataset]:
    """Return a setting whose files are found from every folder, and its data."""
    if dataset is None:
        dataset = dataset_of(setting)
        setting = found_anywhere(setting)
    # of an encoder's file: what is in it now
    return replace(setting, features=settled(setting.features)), dataset


def check_all(runs: Sequence[tuple[str, Experiment]], dataset: Dataset) -> None:
    """Prepare every experiment once, so that bad input leaves no directory behind."""
    for _, experiment in runs:
        check.number("rounds", experiment.method.rounds, at_least=1)
        Plan.of(experiment, dataset)


def write_plan(plan: Any, file: Path) -> None:
    """Write what a folder of several runs is for."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(asdict(plan), file)
    except OSError as e:
        raise BadInput(f"out = '{file.parent}': cannot be written ({e.strerror})") from None


def write_json(value: object, file: Path) -> None:
    """Write plain values, infinity as a word."""
    text = json.dumps(plain(value), indent=1, allow_nan=False)
    codec.write_atomically(file, (text + "\n").encode())


def read_plan(cls: type[P], file: Path, what: str) -> P:
    """Read what a folder of several runs is for."""
    try:
        raw = json.loads(file.read_text())
        read = restore(raw)
        read["setting"]["data"] = raw["setting"]["data"]  # whatever it is called
        plan: P = validated(cls, read)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise BadInput(f"'{file}': not a {what} ({e})") from None
    return plan


def resume_comparison(
    folder: Path, *, dataset: Dataset | None = None, watch: Watcher | None = None
) -> Compared:
    """Run what is not finished yet; what is finished is read, not repeated.

    A method that reaches its budget does not keep the others from running.
    """
    plan = read_comparison(folder)
    dataset = dataset or data_again(
        plan.setting, "tacit.experiment.compare.resume_comparison(folder, dataset=...)"
    )
    stopped = run_all(folder, plan.experiments(), dataset, watch or Nobody(), (BudgetReached,))
    rows = [
        row(word, [Run(folder / name) for name, _ in plan.runs_of(word)], stopped)
        for word in plan.methods
    ]
    write_json([asdict(each) for each in rows], folder / TABLE)
    return Compared(folder, rows, plan.notes)


def check_any_finished(rows: Sequence[Row]) -> None:
    """Refuse to call it a success that every single run was stopped."""
    if all(len(each.stopped) == each.runs for each in rows):
        raise BudgetReached("budget: every run was stopped by it before its last round")


def run_all(
    folder: Path,
    runs: Sequence[tuple[str, Experiment]],
    dataset: Dataset,
    watch: Watcher,
    forgive: tuple[type[TacitError], ...] = (),
    done: Callable[[str], object] = lambda name: None,
    made: Made | None = None,
) -> dict[str, TacitError]:
    """Run what is not finished yet; ``done`` is told of each run that is.

    With ``made``, what several runs have in common is made once.

    Return what stopped a run and is forgiven, by the name of its folder.

    Several processes may do this at once: a run that another one works on is left to it and looked
    at again later.
    """
    waiting, stopped, since = deque(runs), {}, 0
    while waiting:
        name, experiment = waiting.popleft()
        try:
            _run_one(RunDir(folder / name), experiment, dataset, watch, made)
        except Busy:
            waiting.append((name, experiment))
            since += 1
            if since >= len(waiting):
                time.sleep(0.5)  # nothing is left but what others do
            continue
        except forgive as e:
            stopped[name] = e
        else:
            done(name)
        since = 0
    return stopped


def _run_one(
    directory: RunDir,
    experiment: Experiment,
    dataset: Dataset,
    watch: Watcher,
    made: Made | None,
) -> None:
    directory.folder.mkdir(parents=True, exist_ok=True)
    directory.lock()  # before anything is looked at: what another process has begun by then is seen
    try:
        watch.begin(directory.folder.name, experiment.method.rounds)
        plan = replace(Plan.of(experiment, dataset), made=made)
        if not directory.begun:
            directory.begin(plan.experiment)
        plan.conduct(directory, watch)
    finally:
        directory.unlock()


def read_comparison(folder: Path) -> Comparison:
    """Read what a folder compares."""
    return read_plan(Comparison, folder / FILE, "comparison")


def row(word: str, runs: Sequence[Run], stopped: Collection[str] = ()) -> Row:
    """Return the results of one method over its repeats; ``stopped`` names runs that were."""
    lines = [r.metrics for r in runs]
    # none where a run stopped before its first round was over
    finals = [r.final for r in runs if r.final]
    first = finals[0] if finals else {}
    each = [r.epsilon for r in runs]
    metric = SQUARED if SQUARED in first else runs[0].experiment.setting.metric
    mse = [f[SQUARED] for f in finals if SQUARED in f]
    return Row(
        method=word,
        accuracy=[f["accuracy"] for f in finals if f["accuracy"] is not None],
        own_data=[f.get("own_data", {}).get("mean", float("nan")) for f in finals],
        personal=first.get("personal", False),
        epsilon={k: max(epsilon[k] for epsilon in each) for k in each[0]},
        spent=max(r.spent for r in runs),
        protects="/".join(runs[0].experiment.method.protects),
        measured={k: [f["measured"][k] for f in finals] for k in first.get("measured", {})},
        megabytes_up=float(np.mean([sum(x["bytes_up"] for x in m) for m in lines])) / 1e6,
        seconds=float(np.mean([sum(x["seconds"] for x in m) for m in lines])),
        why=runs[0].why,
        rounds=runs[0].experiment.method.rounds,
        runs=len(runs),
        stopped=[r.rounds for r in runs if r.folder.name in stopped],
        metric=metric,
        scores=[f.get(metric, float("nan")) for f in finals] if metric != "accuracy" else [],
        features=in_tables(runs[0].experiment.setting.features),
        per_label={k: [f["per_label"][k] for f in finals] for k in first.get("per_label", {})},
        errors=({SQUARED: mse} if mse else {})
        | {f"mae {k}": [f["mae"][k] for f in finals] for k in first.get("mae", {})},
    )
