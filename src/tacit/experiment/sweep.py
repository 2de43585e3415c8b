"""One or more methods over a grid of numbers, repeated.

Every point is a run of its own, resumable and shareable.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from tacit.core import BadInput, BudgetReached, Diverged, Json, TacitError, check
from tacit.data import anywhere
from tacit.data.examples import Dataset
from tacit.experiment.compare import (
    TABLE,
    Row,
    check_all,
    read_plan,
    row,
    run_all,
    shown,
    with_data,
    write_json,
    write_plan,
)
from tacit.experiment.config import (
    Experiment,
    Setting,
    setting_from,
    shows_setting,
)
from tacit.experiment.curves import html_table, over_rounds
from tacit.experiment.metrics import SQUARED, WORDS
from tacit.experiment.result import Run
from tacit.experiment.rundir import CHOICE, free_folder
from tacit.experiment.signs import each_once
from tacit.experiment.start import data_again
from tacit.experiment.tuning import Validation, public_data, together, validated_on
from tacit.experiment.watch import Nobody, Watcher
from tacit.methods.spec import (
    folder_of,
    method_class,
    method_from,
    method_from_spec,
    raw_method,
    validated,
)
from tacit.privacy import show_epsilon

FILE = "sweep.json"
Values = dict[str, int | float]  # of the swept fields, such as {"epsilon": 1, "sgd.lr": 0.1}


@dataclass(frozen=True)
class Point:
    """One method at one place of the grid."""

    word: str
    values: Values


@dataclass(frozen=True)
class Sweep:
    """What is swept: numeric fields of the methods, or of the setting, over lists of values."""

    # by the word that names it: {"name": "fedprox", "mu": 0.1, ...}
    methods: dict[str, Json]
    over: dict[str, list[int | float]]  # such as {"sgd.lr": [0.01, 0.1]}
    setting: Setting = field(default_factory=Setting)
    repeats: int = 1
    notes: list[str] = field(default_factory=list)  # what to say below the table
    validate: str = ""  # public data to choose by; none: nothing is chosen

    def __post_init__(self) -> None:
        check.number("repeats", self.repeats, at_least=1, whole=True)
        if not self.methods:
            raise BadInput("methods: name at least one, such as fedavg")
        if not self.over:
            raise BadInput(
                "over: name at least one field and its values, such as --over sgd.lr=0.01,0.1"
            )
        for name, values in self.over.items():
            if not values:
                raise BadInput(
                    f"over = '{name}=': the list of values is empty; write it like {name}=1,2,4"
                )
            if len(set(values)) < len(values) or any(math.isnan(v) for v in values):
                raise BadInput(
                    f"over = '{name}={','.join(map(str, values))}': must be different numbers"
                )
            for word, raw in self.methods.items():
                _check_field(name, word, raw)

    def points(self) -> list[Point]:
        """Return the grid, method by method, the last field moving fastest."""
        grid = [
            dict(zip(self.over, values, strict=True)) for values in product(*self.over.values())
        ]
        return [Point(word, values) for word in self.methods for values in grid]

    def runs_of(self, point: Point) -> list[tuple[str, Experiment]]:
        """Return the runs of one point as (folder name, experiment), one per repeat."""
        method, setting = placed(self.methods[point.word], self.setting, point.values)
        said = "".join(f"-{k}={v:g}" for k, v in point.values.items())
        seeds = [setting.seed + r for r in range(self.repeats)]
        name = folder_of(point.word) + said
        return [
            (f"{name}-s{seed}", Experiment(method, replace(setting, seed=seed))) for seed in seeds
        ]

    def experiments(self) -> list[tuple[str, Experiment]]:
        """Return every run, repeat by repeat: a sweep cut short has all points, less often."""
        each = [self.runs_of(point) for point in self.points()]
        return [runs[r] for r in range(self.repeats) for runs in each]


@dataclass(frozen=True)
class Swept:
    """A finished sweep: the results at every point, and what stopped a run before its end."""

    folder: Path
    plan: Sweep
    rows: list[tuple[Point, Row]]
    stopped: dict[str, str]
    validation: Validation | None = None  # on public data, if it was asked for

    @property
    def together(self) -> float:
        """Epsilon of all runs together: what looking at all of them has cost."""
        return together([run for _, runs in self.runs for run in runs], self.plan.setting.delta)

    @cached_property
    def choice(self) -> str:
        """Which point is best on public data, and what choosing has cost."""
        runs = sum(len(runs) for _, runs in self.runs)
        cost = f"eps of all {runs} runs together is {show_epsilon(self.together)}"
        found = self.validation
        if found is None:
            flatters = "and flatters, and no eps covers the test records; see --validate"
            return f"{cost}: to choose by their test data costs that, {flatters}"
        if math.isnan(found.accuracy[found.best]):
            return f"{found.name}: there is no model of all to score; {cost}"
        point, row = self.rows[found.best]
        return (
            f"best on {found.records:,} public records of {found.name}: {said_of(point)} with "
            f"{100 * found.accuracy[found.best]:.2f}%; its own eps is {show_epsilon(row.spent)}, "
            f"but {cost}, which is what choosing has cost"
        )

    @property
    def runs(self) -> list[tuple[Point, list[Run]]]:
        """The runs at each point, one for each seed."""
        each = [(p, self.plan.runs_of(p)) for p in self.plan.points()]
        return [(p, [Run(self.folder / name) for name, _ in runs]) for p, runs in each]

    @property
    def history(self) -> list[tuple[Point, list[Any]]]:
        """The history of each run at each point: see :attr:`Run.history`."""
        return [(point, [run.history for run in runs]) for point, runs in self.runs]

    def table(self) -> list[Json]:
        """Return all points with their results, as they are written."""
        rows: list[Json] = [{"at": p.values, **asdict(row)} for p, row in self.rows]
        if not self.validation:
            return rows
        public = self.validation.accuracy
        return [row | {"validated": a} for row, a in zip(rows, public, strict=True)]

    def plot(self, metric: str = "") -> Any:
        """Return a matplotlib figure of all points over rounds."""
        chosen = metric or self.rows[0][1].metric
        check.choice("metric", chosen, [*WORDS, SQUARED])
        return over_rounds({said_of(p): runs for p, runs in self.runs}, metric=chosen)

    def _repr_html_(self) -> str:
        """Show the sweep in a notebook."""
        head, body = shown([row for _, row in self.rows])
        over = list(self.plan.over)
        rows = [
            [*(f"{point.values[k]:g}" for k in over), *row]
            for (point, _), row in zip(self.rows, body, strict=True)
        ]
        return html_table([*over, *head], rows, "; ".join(self.stopped.values()))


def said_of(point: Point) -> str:
    """Return a point in words."""
    return ", ".join([point.word, *(f"{k} = {v:g}" for k, v in point.values.items())])


def numbers(cls: type, prefix: str = "") -> list[str]:
    """Return the names of all fields of a dataclass that take a number, nested ones too.

    >>> numbers(Experiment)[:2]
    ['setting.clients', 'setting.seed']
    """
    found, hints = [], get_type_hints(cls)
    for name in (f.name for f in fields(cls)):
        hint = hints[name]
        kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        if is_dataclass(hint):
            found += numbers(hint, f"{prefix}{name}.")  # type: ignore[arg-type]
        elif int in kinds or float in kinds:
            found.append(prefix + name)
    return found


def placed(raw: Json, setting: Setting, values: Values) -> tuple[Any, Setting]:
    """Return a method and a setting with the swept fields at their values, checked as any input."""
    method, moved, known = (
        json.loads(json.dumps(raw)),
        asdict(setting),
        numbers(method_class(raw["name"])),
    )
    for name, value in values.items():
        at: Any = method if name in known else moved
        *parents, last = name.split(".")
        for parent in parents:
            at = at[parent]
        at[last] = value
    return method_from(method), validated(Setting, moved)


def _check_field(name: str, word: str, raw: Json) -> None:
    """Refuse a field that neither the method nor the setting has, or that is not a number."""
    known = [*numbers(method_class(raw["name"])), *numbers(Setting)]
    if name not in known and name in {*raw, *(f.name for f in fields(Setting))}:
        raise BadInput(f"over = {name!r}: not a number of {word}; allowed: {', '.join(known)}")
    check.choice(f"over ({word})", name, known)


def over_from(specs: Sequence[str]) -> dict[str, list[int | float]]:
    """Read ``epsilon=1,4,8`` and its like.

    >>> over_from(["epsilon=1,4.5", "per_round=2"])
    {'epsilon': [1, 4.5], 'per_round': [2]}
    """
    over: dict[str, list[int | float]] = {}
    for spec in specs:
        name, equals, text = spec.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name:
            raise BadInput(f"over = {spec!r}: must be FIELD=v1,v2,... such as epsilon=1,4,8")
        if name in over:
            raise BadInput(f"over = {spec!r}: {name} is named more than once")
        over[name] = [_number(spec, word) for word in text.split(",")] if text.strip() else []
    return over


def _number(spec: str, word: str) -> int | float:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    raise BadInput(f"over = {spec!r}: {word.strip()!r} is not a number")


@shows_setting
def sweep(
    methods: str | Sequence[str],
    over: Mapping[str, Sequence[float]],
    *,
    repeats: int = 1,
    data: str | Dataset = "digits",
    out: str | Path | None = None,
    watch: Watcher | None = None,
    validate: str = "",
    **setting: Any,
) -> Swept:
    """Run methods, named by words such as ``"fedprox:mu=0.1"``, over a grid such as ``{"sgd.lr".

    [0.01, 0.1]}``.

    ``validate`` names public data to choose by. The other keywords are those of
    :func:`tacit.experiment.compare.compare`.
    """
    words = [methods] if isinstance(methods, str) else list(methods)
    dataset = data if isinstance(data, Dataset) else None
    name = data.name if isinstance(data, Dataset) else data
    raw = {word: raw_method(method_from_spec(word)) for word in words}
    first = method_from_spec([*words, "fedavg"][0])  # an empty list is refused below
    given = setting_from({"data": name, **setting}, first)
    plan = Sweep(raw, {k: list(v) for k, v in over.items()}, given, repeats, validate=validate)
    return start_sweep(plan, out=Path(out) if out else None, dataset=dataset, watch=watch)


@each_once()
def start_sweep(
    plan: Sweep,
    *,
    out: Path | None = None,
    dataset: Dataset | None = None,
    watch: Watcher | None = None,
    told: Callable[[Path], None] = lambda folder: None,
) -> Swept:
    """Start a sweep in a new folder; ``told`` is told which."""
    setting, dataset = with_data(plan.setting, dataset)
    plan = replace(plan, setting=setting)
    if plan.validate:
        public_data(plan.validate, plan.setting, dataset)
        plan = replace(plan, validate=anywhere(plan.validate))
    check_all(plan.experiments(), dataset)
    folder = out or free_folder(Path("runs") / "sweep")
    if folder.exists() and any(folder.iterdir()):
        raise BadInput(
            f"out = '{folder}': must be a new or an empty folder; `tacit resume` continues a sweep"
        )
    write_plan(plan, folder / FILE)
    told(folder)
    return resume_sweep(folder, dataset=dataset, watch=watch)


def resume_sweep(
    folder: Path, *, dataset: Dataset | None = None, watch: Watcher | None = None
) -> Swept:
    """Run what is not finished yet. Several processes may share the work.

    Each returns when all of it is done.
    """
    plan = read_sweep(folder)
    dataset = dataset or data_again(
        plan.setting, "tacit.experiment.sweep.resume_sweep(folder, dataset=...)"
    )
    forgive: tuple[type[TacitError], ...] = (BudgetReached, Diverged)
    stopped = run_all(folder, plan.experiments(), dataset, watch or Nobody(), forgive)
    spent = [name for name, e in stopped.items() if isinstance(e, BudgetReached)]
    rows = [
        (p, row(p.word, [Run(folder / name) for name, _ in plan.runs_of(p)], spent))
        for p in plan.points()
    ]
    found = Swept(folder, plan, rows, {name: str(e) for name, e in stopped.items()})
    if plan.validate:
        public = public_data(plan.validate, plan.setting, dataset)
        found = replace(found, validation=validated_on(public, [runs for _, runs in found.runs]))
    write_json(found.table(), folder / TABLE)
    write_json({"said": found.choice}, folder / CHOICE)
    return found


def read_sweep(folder: Path) -> Sweep:
    """Read what a folder sweeps."""
    return read_plan(Sweep, folder / FILE, "sweep")
