"""An experiment as dataclasses, and as a TOML file.

The same fields, the same checks, unknown keys are errors.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

from tacit import data as data_room
from tacit.compress import Compressor
from tacit.core import Aggregate, BadInput, Json, Method, check
from tacit.core.data import Goal
from tacit.core.toml import read_toml, toml_value
from tacit.data import Dataset, Reading, load
from tacit.data.splits import clients_of, owner_column
from tacit.engines.store import BACK
from tacit.experiment.metrics import Metric
from tacit.methods import METHODS
from tacit.methods.spec import method_from, name_of, raw_method, validated

SITES = "sites"  # stands for data and split of a run whose clients bring their own
OPTIONS = {"out", "track", "preset", "augment"}  # of commands, beside those of an experiment
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Setting:
    """Everything about an experiment but its method."""

    data: str = "digits"  # a known data set (see `tacit data`) or a path to your own
    # all classes that own data can have: names with commas, N for 0..N-1, or folders
    classes: str = ""
    # who holds what: iid, label:1, dirichlet:0.5, ... (see `tacit split --help`)
    split: str = "iid"
    clients: int = 10  # number of clients
    # public features in front of the network: hog, colour-hog, scattering, dct, raw, none, a file
    # of `tacit encode`, or your own encoder as module:function; auto: hog or colour-hog where a
    # method asks for them, else none
    features: str = "auto"
    # a known network (see `tacit methods`) or your own as file.py:Class; its arguments follow as
    # --model.NAME VALUE
    model: str = "auto"
    seed: int = 0  # everything random in the run derives from it
    eval_every: int = 1  # rounds between evaluations; the last round is always evaluated
    delta: float = 1e-5  # the delta of every reported (epsilon, delta)
    # stop before the step that would bring the method's epsilon above this
    budget: float = math.inf
    # how updates travel: none, binary:dynamic, binary:0.3, gaussian:0.3, bernoulli:0.3
    compress: str = "none"
    # how updates become one: mean; against clients that lie trimmed:0.2, median, clipped:1, krum:1
    aggregate: str = "mean"
    # where noise comes from; seeded: a simulation that can be repeated
    noise: Literal["os", "seeded"] = "os"
    # where clients run: in worker processes, in this process alone, or on a Ray cluster
    engine: Literal["workers", "serial", "ray"] = "workers"
    # address of a Ray cluster that is there already, such as auto; default: one on this machine
    address: str = ""
    # processes; auto: one per processor; 0: as --engine serial
    workers: int | Literal["auto"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"  # auto: a GPU where there is one
    keep: int = 3  # checkpoints to go back to, should the last one be damaged
    # networks compute in; auto: bf16 where a trial shows that it is faster, not with DP-SGD
    precision: Literal["f32", "bf16", "auto"] = "f32"

    # what tables and pictures show; those that need probabilities are else of the last round only
    metric: Metric = "accuracy"

    label: str = ""  # the column of a table to predict, if it is not called label
    columns: str = ""  # features of a table, with commas between; default: all other columns
    drop: str = ""  # columns of a table to leave out, such as numbers of patients
    # the schema file that says what columns of a table are (see `tacit data schema`)
    schema: str = ""
    # your own encoder of texts, as module:function, where the schema names it
    encoder: str = ""
    # what own data without a schema predict: classes, numbers, or yes or no for each of labels
    task: Goal = "classes"

    @property
    def at_sites(self) -> bool:
        """Whether it is of a run with real sites, which divide nothing."""
        return self.split == SITES

    def __post_init__(self) -> None:
        check.number("clients", self.clients, at_least=1)
        implied = (
            clients_of(self.split, self.clients)
            if self.split.startswith("sizes:")
            else self.clients
        )
        if self.clients not in (Setting.clients, implied):
            raise BadInput(
                f"clients = {self.clients}: must be {implied} (as split {self.split!r} says), "
                "or left out"
            )
        check.number("eval_every", self.eval_every, at_least=1)
        check.number("delta", self.delta, above=0, below=1)
        Compressor.of(self.compress)
        Aggregate.of(self.aggregate)
        if self.budget != math.inf:
            check.number("budget", self.budget, above=0)
        if self.address and self.engine != "ray":
            raise BadInput(f"address = {self.address!r}: is of a Ray cluster; add engine = 'ray'")
        check.number("keep", self.keep, at_least=1, at_most=BACK)
        if self.workers != "auto":
            check.number("workers", self.workers, at_least=0)


@dataclass(frozen=True)
class Experiment:
    """A method and where it runs."""

    method: Method
    setting: Setting = field(default_factory=Setting)

    def __post_init__(self) -> None:
        taken = {f.name for f in fields(Setting)} | OPTIONS
        for f in fields(self.method):
            if f.name in taken:
                raise BadInput(
                    f"{name_of(self.method)}: its setting {f.name!r} has the name of an option "
                    "that every run has; must have another name"
                )


def dataset_of(setting: Setting) -> Dataset:
    """Return the data set that a setting names, with the classes that it states."""
    return load(setting.data, classes=setting.classes or None, reading=reading_of(setting))


def found_anywhere(setting: Setting) -> Setting:
    """Return a setting whose files are found from any folder."""
    schema = str(Path(setting.schema).expanduser().resolve()) if setting.schema else ""
    return replace(setting, data=data_room.anywhere(setting.data), schema=schema)


def reading_of(setting: Setting) -> Reading:
    """Return how a setting says that a table is to be read."""
    return Reading(
        setting.label,
        setting.columns,
        setting.drop,
        setting.schema,
        setting.encoder,
        owner_column(setting.split),
        setting.task,
    )


def shows_setting(function: Callable[P, T]) -> Callable[P, T]:
    """Let ``help()`` show the fields of :class:`Setting` in place of ``**setting``."""
    told = inspect.signature(function)
    own = [p for p in told.parameters.values() if p.kind is not p.VAR_KEYWORD]
    known = {p.name for p in own}
    more = [
        inspect.Parameter(
            f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=f.type
        )
        for f in fields(Setting)
        if f.name not in known
    ]
    shown: Any = function
    shown.__signature__ = told.replace(parameters=[*own, *more])
    return function


def setting_from(keywords: Mapping[str, object], method: Method) -> Setting:
    """Build a setting from the keywords of a call in Python, or say where another one belongs."""
    own = [f.name for f in fields(method)]
    for key, value in keywords.items():
        if key in own:
            pair = f"{key}={value}" if isinstance(value, int | float | str) else f"{key}.NAME=VALUE"
            word = f"{name_of(method)}:{pair}"
            raise BadInput(
                f"{key} = {value!r}: not a keyword; method settings go in the word: {word}"
            )
        check.choice("keyword", key, [f.name for f in fields(Setting)])
    setting: Setting = validated(Setting, dict(keywords))
    return setting


def experiment_from(raw: Json) -> Experiment:
    """Build an experiment from plain values."""
    raw = of_before(dict(raw))
    if "method" not in raw:
        raise BadInput(
            f"method: missing; write a [method] table with name = one of {', '.join(METHODS)}"
        )
    return Experiment(method_from(raw.pop("method")), validated(Setting, raw))


def of_before(raw: Json) -> Json:
    """Say what older run directories mean in today's words.

    Two methods had features, which are the experiment's now, and LDP-FL's clients counted alike. A
    run directory says everything, an experiment file perhaps not.
    """
    method = raw.get("method")
    if not isinstance(method, dict):
        return raw
    if method.get("name") == "ldp_fl" and {"relation", "mechanism", "deltas"} <= set(method):
        return raw | {"method": {"weights": "alike"} | method}
    if "features" not in method:
        return raw
    moved = {k: v for k, v in method.items() if k != "features"}
    if method.get("name") == "moments" and "features" not in raw:
        return raw | {"method": moved, "features": method["features"]}
    if method.get("name") == "kd_dpfl" and method["features"] == "auto":
        return raw | {"method": moved}
    return raw


def read_experiment(file: Path) -> Experiment:
    """Read an experiment file."""
    return read_toml(file, experiment_from)


def to_toml(experiment: Experiment) -> str:
    """Write an experiment file with every field, so that it says all that ran."""
    raw = asdict(experiment.setting) | {"method": raw_method(experiment.method)}
    return "\n".join(_table("", raw)) + "\n"


def _table(path: str, raw: Json) -> list[str]:
    plain = [f"{k} = {toml_value(v)}" for k, v in raw.items() if not isinstance(v, dict)]
    nested = [
        line
        for k, v in raw.items()
        if isinstance(v, dict)
        for line in _table(f"{path}.{k}".lstrip("."), v)
    ]
    return [*([f"\n[{path}]"] if path else []), *plain, *nested]
