"""What a report knows of runs, read from their directories and from nothing else.

Nothing is written, no code that a directory names is imported, and what is missing, half-written or
of an older format is said, not guessed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tacit import privacy
from tacit.core import BadInput, Json, Ledger, NonPrivate, Observer, Release, Unit, registry
from tacit.core.ledger import FEDERATION
from tacit.data.labels import told
from tacit.data.official import classes_of
from tacit.engines.store import from_json
from tacit.experiment.about import starts
from tacit.experiment.config import of_before
from tacit.experiment.metrics import SQUARED, WORDS
from tacit.experiment.rundir import CHOICE, SEVERAL
from tacit.methods import METHODS
from tacit.methods.spec import label_of, method_from
from tacit.report.metric_lines import line_of, plain_json
from tacit.synthesis import encoder_file

MOST_BYTES = 64_000_000  # of one file that is read as a whole
MOST_RUNS = 500  # in one report
MOST_SAID = 5000  # letters of what a sweep says of itself
REPRODUCED = "runs"  # where `tacit reproduce --out FOLDER` keeps its runs
DEEPEST = 50  # tables in tables of a configuration


@dataclass(frozen=True)
class RunFacts:
    """One run as its directory shows it."""

    folder: Path
    config: Json
    lines: list[Json]  # of metrics.jsonl
    ledger: Ledger
    sites: dict[str, str]  # names of real sites by client number
    open: bool  # whether it still runs, or was killed
    problems: tuple[str, ...] = ()
    label: str = ""

    @property
    def method(self) -> str:
        """The method's name in tables."""
        return label_of(str(_table(self.config, "method").get("name", "?")))

    @property
    def delta(self) -> float:
        """The delta of every figure."""
        delta = self.config.get("delta")
        return delta if isinstance(delta, float) and 0 < delta < 1 else 1e-5

    @property
    def metric(self) -> str:
        """What its tables and pictures were to show."""
        said = self.config.get("metric")
        return said if isinstance(said, str) and said in WORDS else "accuracy"

    @property
    def of_features(self) -> str:
        """Says which public features stand in front of the model, if any do."""
        name = str(self.config.get("features", "none"))
        if encoder_file.is_file(name):
            return f" of features by a {encoder_file.said_of(name)}"
        return "" if name in ("none", "auto") else f" of public features {label_of(name)}"

    @property
    def final(self) -> Json:
        """The last evaluated line, by its accuracy or, for numbers, by its errors."""
        return next(
            (m for m in reversed(self.lines) if m["accuracy"] is not None or SQUARED in m), {}
        )

    @property
    def errors(self) -> str:
        """How far predictions of numbers are off; nothing where classes are predicted."""
        if self.final.get(SQUARED) is None:
            return ""
        off = self.final.get("mae", {}).items()
        each = ", ".join(f"{name} {error:.4g}" for name, error in off if error is not None)
        return f"mean squared error {self.final[SQUARED]:.4g} (scaled)" + (
            f", mean absolute error: {each}" if each else ""
        )

    @property
    def done(self) -> int:
        """How many rounds are finished."""
        return max((line["round"] for line in self.lines), default=0)

    @property
    def rounds(self) -> int | None:
        """How many rounds it was to have; None where only code of the user's own knows."""
        raw = _table(self.config, "method")
        if isinstance(raw.get("rounds"), int):
            return int(raw["rounds"])
        if not of_this_package(raw):
            return None
        try:
            return method_from(of_before({"method": raw})["method"]).rounds
        except BadInput:
            return None

    @property
    def complete(self) -> bool:
        """Whether it has ended with its last round."""
        ended = not self.open and self.rounds is not None and 0 < self.rounds <= self.done
        return ended and not self.problems and "spent" in self.lines[-1]

    @property
    def protects(self) -> tuple[Unit, Observer]:
        """What the method's guarantee is about, and against whom."""
        said = self.lines[-1].get("protects", "") if self.lines else ""
        unit, _, observer = str(said).partition("/")
        for known in privacy.UNITS:
            for whom in privacy.OBSERVERS:
                if (unit, observer) == (known, whom):
                    return known, whom
        return "example", "server"

    @property
    def epsilon(self) -> dict[str, float]:
        """Epsilon by unit and observer.

        The certificate that a finished run has written with its last round; an upper bound from the
        ledger for one that goes on or was stopped.
        """
        if self.complete:
            return dict(self.lines[-1]["epsilon"])
        return privacy.overview(self.ledger, delta=self.delta, quick=True)

    @property
    def spent(self) -> float:
        """Epsilon of what the method protects, zeroed out."""
        if self.complete:
            return float(self.lines[-1]["spent"])
        unit, observer = self.protects
        return privacy.epsilon(
            self.ledger, unit=unit, observer=observer, delta=self.delta, quick=True
        )

    @property
    def why(self) -> str:
        """Why that is what it is, in one sentence."""
        unit, observer = self.protects
        return privacy.reason(self.ledger, unit=unit, observer=observer, delta=self.delta)

    def classes(self, many: int) -> list[str]:
        """Return what so many classes are called: as a public set has them, or as was stated.

        Numbers where that is not known; what only the data could tell is not looked up.
        """
        known = _class_names(self.config.get("data"), self.config.get("classes"))
        return list(known) if len(known) == many else [str(c) for c in range(many)]

    @property
    def starts(self) -> list[Json]:
        """When, by which command and with which versions it was started."""
        return [start for start in starts(self.folder) if isinstance(start, dict)]

    def named(self, client: str) -> str:
        """Return how a client is called: a site by its name."""
        return self.sites.get(client, f"client {client}")


def read_all(folders: Sequence[Path]) -> list[RunFacts]:
    """Read every run in some folders: runs, or folders of runs such as a comparison.

    Raises:
        BadInput: where there is none, or too many
    """
    found = [run for folder in folders for run in runs_in(folder)]
    if len(found) > MOST_RUNS:
        raise BadInput(f"DIR: {len(found)} runs; a report has at most {MOST_RUNS}")
    return with_labels([read_run(folder) for folder in dict.fromkeys(found)])


def runs_in(folder: Path) -> list[Path]:
    """Return the run directories that a folder is or holds."""
    if (folder / "config.toml").is_file():
        return [folder]
    if not folder.is_dir():
        raise BadInput(f"'{folder}': no such folder")
    inside = sorted(f for f in folder.iterdir() if (f / "config.toml").is_file())
    deeper = [
        run
        for f in sorted(folder.iterdir())
        if f.is_dir() and any((f / name).is_file() for name in SEVERAL)
        for run in runs_in(f)
    ]
    if not inside and not deeper and (folder / REPRODUCED).is_dir():
        return runs_in(folder / REPRODUCED)
    if not inside and not deeper:
        raise BadInput(f"'{folder}': not a run directory, and there is none in it")
    return inside + deeper


def holds_runs(folder: Path) -> bool:
    """Tell whether a folder is a run directory, or holds any."""
    try:
        return bool(runs_in(folder))
    except BadInput:
        return False


def read_run(folder: Path) -> RunFacts:
    """Read one run; what cannot be read is named among its problems."""
    problems: list[str] = []
    config: Json = {}
    try:
        config = _shallow(tomllib.loads(_text(folder / "config.toml")))
    except (OSError, ValueError, RecursionError) as e:
        problems.append(f"config.toml: cannot be read ({e})")
    lines = list(_metrics(folder / "metrics.jsonl", problems))
    ledger = Ledger()
    opened = (folder / "checkpoint" / "open").exists()
    files = [folder / "ledger.jsonl"]
    # while a run goes on, clients may have released what the server has not heard of yet
    files += sorted((folder / "checkpoint" / "clients").glob("*/ledger.jsonl")) if opened else []
    for file in files:
        ledger.add(line for _, line in ledger_lines(file, problems))
    return RunFacts(folder, config, lines, ledger, _sites(folder), opened, tuple(problems))


def ledger_lines(file: Path, problems: list[str]) -> Iterator[tuple[int, Release]]:
    """Yield the lines of a ledger with their numbers; a last one that is cut short never counted.

    A line that cannot be read makes everything infinite, so it is not left out in silence.
    """
    for n, text in _whole_lines(file, problems):
        try:
            yield n, from_json(plain_json(text))
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            problems.append(f"{file.name}, line {n}: not a line of a ledger ({type(e).__name__})")
            yield n, _unknown(f"line {n} of {file.name} cannot be read")


def _unknown(why: str) -> Release:
    return Release("?", "example", FEDERATION, "server", NonPrivate(why), ((0, 0),))


def _metrics(file: Path, problems: list[str]) -> Iterator[Json]:
    for n, text in _whole_lines(file, problems):
        try:
            line, wrong = line_of(text)
        except ValueError:
            problems.append(f"{file.name}, line {n}: not the line of a round")
            continue
        problems += [f"{file.name}, line {n}: {key} makes no sense" for key in wrong]
        yield line


def _whole_lines(file: Path, problems: list[str]) -> Iterator[tuple[int, str]]:
    if not file.exists():
        return
    try:
        whole, _, _ = _text(file).rpartition("\n")
    except (OSError, ValueError) as e:
        problems.append(f"{file.name}: cannot be read ({e})")
        return
    yield from ((n, line) for n, line in enumerate(whole.split("\n"), 1) if line.strip())


def _text(file: Path) -> str:
    if file.stat().st_size > MOST_BYTES:
        raise ValueError(f"more than {MOST_BYTES // 1_000_000} MB")
    return file.read_text(encoding="utf-8")


def _sites(folder: Path) -> dict[str, str]:
    """Return the names of real sites by client number, where there are any."""
    try:
        sites = plain_json(_text(folder / "sites.json"))["sites"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return {str(k): str(v) for k, v in sites.items()} if isinstance(sites, dict) else {}


def _class_names(data: object, stated: object) -> tuple[str, ...]:
    if isinstance(data, str) and (public := classes_of(data)):
        return public
    try:
        return told(stated) if isinstance(stated, str) and stated else ()
    except BadInput:
        return ()


def _shallow(config: Json) -> Json:
    """Return a configuration that can be walked through; one nested without end is wrong."""
    level: list[object] = [config]
    for _ in range(DEEPEST):
        level = [v for each in level if isinstance(each, dict | list) for v in _inside(each)]
    if level:
        raise ValueError("nested too deeply")
    return config


def _inside(value: Json | list[object]) -> Iterable[object]:
    return value.values() if isinstance(value, dict) else value


def _table(config: Json, name: str) -> Json:
    found = config.get(name)
    return found if isinstance(found, dict) else {}


def of_this_package(raw: Json) -> bool:
    """Tell whether a method's settings are of a method of this package, and name no code."""
    name = raw.get("name")
    return isinstance(name, str) and name in METHODS and not names_code(raw)


def names_code(raw: object) -> bool:
    """Tell whether a value somewhere in a configuration names code, which is not imported here."""
    if isinstance(raw, dict):
        return any(map(names_code, raw.values()))
    return isinstance(raw, str) and registry.names_code(raw)


def flat(config: Json, prefix: str = "") -> Json:
    """Return a configuration without nesting.

    >>> flat({"seed": 1, "method": {"name": "fedavg", "sgd": {"lr": 0.1}}})
    {'seed': 1, 'method.name': 'fedavg', 'method.sgd.lr': 0.1}
    """
    found: Json = {}
    for key, value in config.items():
        deeper = flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {}
        found |= deeper or {prefix + key: value}
    return found


def with_labels(runs: Sequence[RunFacts]) -> list[RunFacts]:
    """Return the runs, each called by its method and by what sets it apart from others of it.

    Runs that differ in nothing but their seed are repeats and have the same label.
    """
    named = []
    for run in runs:
        alike = [flat(other.config) for other in runs if other.method == run.method]
        own = flat(run.config)
        # a setting that only one method has does not set it apart
        apart = [
            key
            for key, value in own.items()
            if key != "seed" and any(key in other and other[key] != value for other in alike)
        ]
        said = ", ".join(f"{key.removeprefix('method.')}={own[key]}" for key in apart[:4])
        label = f"{run.method}{run.of_features * ('features' not in apart)}"
        named.append(replace(run, label=f"{label}: {said}" if said else label))
    return named


def choice_in(folder: Path) -> str:
    """Return what a sweep's folder says of choosing among its runs; nothing elsewhere."""
    where = folder / CHOICE
    if not where.is_file():  # a pipe would be waited for
        return ""
    try:
        with where.open(encoding="utf-8") as file:
            found = plain_json(file.read(MOST_SAID))
    except (OSError, ValueError):
        return ""
    said = found.get("said") if isinstance(found, dict) else None
    return " ".join(said.split()) if isinstance(said, str) else ""
