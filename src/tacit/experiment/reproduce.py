"""A paper's cells as experiments: run what is not there yet, and write down what it gave.

Cells that are the same experiment (a table and a figure over its rounds) share their runs.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from tacit.core import (
    BadInput,
    BudgetReached,
    Diverged,
    Json,
    Keywords,
    Method,
    NotPrivate,
    TacitError,
    check,
    pairs_of,
)
from tacit.engines.recall import Made
from tacit.experiment.about import starts, this_start
from tacit.experiment.compare import run_all
from tacit.experiment.config import Experiment, Setting, dataset_of, to_toml
from tacit.experiment.measures import TIMES, by_formula, curve_of, seconds_in, shows, value_of
from tacit.experiment.result import Run
from tacit.experiment.rundir import RunDir
from tacit.experiment.watch import Nobody, Watcher
from tacit.methods.spec import (
    method_from,
    method_from_spec,
    name_of,
    parted,
    raw_method,
    spec_of,
    validated,
)
from tacit.papers.measured import Measured, add_results
from tacit.papers.published import Cell, Item, Paper, Scale, paper

# of a setting: where and how fast it runs, not what comes out
MACHINE = ("engine", "address", "workers", "device", "keep")
RUNS, RESULTS, MADE = "runs", "results", "made"
# of the rules by which methods choose for themselves: raised when one of them changes, so that no
# run of before is taken for one of now
RULES = 1


def experiments_of(of: Paper, cell: Cell, scale: Scale = "full") -> list[Experiment]:
    """Return the experiments of a cell: one for each of its methods."""
    item, column, line = cell.item, cell.column, cell.line
    short = item.short if scale == "short" else {}
    usual = {**of.rules, **item.method, **column.method}
    forced = {k: v for k, v in short.items() if not k.startswith("setting.")}
    setting = {
        "noise": "seeded",
        **of.setting,
        **item.setting,
        **column.setting,
        **line.setting,
        **{k.removeprefix("setting."): v for k, v in short.items() if k.startswith("setting.")},
    }
    made: Setting = validated(Setting, setting)
    return [Experiment(method_of(word, usual, forced), made) for word in line.words if word]


def method_of(word: str, usual: Keywords, forced: Keywords) -> Method:
    """Return a method with settings that it has: usual ones where its word says nothing else."""
    raw = raw_method(method_from_spec(word))
    said = {pair.partition("=")[0] for pair in pairs_of(parted(word)[1])}
    for path, value in usual.items():
        if path not in said:
            _put(raw, path, value)
    for path, value in forced.items():
        _put(raw, path, value)
    try:
        return method_from(raw)
    except NotPrivate:  # a baseline without noise, beside methods that are compared at an epsilon
        return method_from({**raw, "epsilon": 0.0})


def _put(raw: Json, path: str, value: object) -> None:
    """Set what is there already."""
    *parents, last = path.split(".")
    at: object = raw
    for parent in parents:
        at = at.get(parent) if isinstance(at, dict) else None
    if isinstance(at, dict) and last in at:
        at[last] = value


def folder_name(experiment: Experiment) -> str:
    """Return a folder's name that all settings, and nothing else, decide."""
    s = experiment.setting
    return f"{name_of(experiment.method)}-{Path(s.data).stem}-{digest_of(experiment)}-s{s.seed}"


def digest_of(experiment: Experiment) -> str:
    """Return what all settings decide that have a part in what comes out."""
    usual = {name: getattr(Setting(), name) for name in MACHINE}
    text = to_toml(replace(experiment, setting=replace(experiment.setting, **usual)))
    return hashlib.sha256(f"{RULES}\n{text}".encode()).hexdigest()[:10]


def settings_of(experiment: Experiment) -> str:
    """Return a digest that is the same for all seeds and precisions, which a record names."""
    usual = {name: getattr(Setting(), name) for name in ("seed", "precision")}
    return digest_of(replace(experiment, setting=replace(experiment.setting, **usual)))


def chosen(item: Item, only: Sequence[str]) -> list[Cell]:
    """Return the cells with one of these words in their key, as a whole part of it.

    All, if there are no words, but those that have a reason not to run.
    """
    cells = list(item.cells.values())
    if not only:
        return [cell for cell in cells if not cell.why]
    found = [c for c in cells if any(f"/{word}/" in f"/{c.key}/" for word in only)]
    if not found:
        raise BadInput(f"only = {', '.join(only)}: no such cell; there are {', '.join(item.cells)}")
    return found


def is_run(cell: Cell) -> bool:
    """Tell whether a cell needs runs and, as far as its paper's file knows, can have them."""
    return not cell.why and cell.measure != "formula"


def able(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells that can run; if none can, all: whoever asks for them may have the data."""
    return [c for c in cells if not c.why] or list(cells)


@dataclass(frozen=True)
class Reproduction:
    """Some cells of a table or a figure, at one scale, in a folder."""

    paper: Paper
    item_key: str
    cells: list[Cell]
    scale: Scale
    repeats: int
    out: Path
    machine: Keywords  # settings of where it runs

    @property
    def file(self) -> Path:
        """Where what was measured is written."""
        return self.out / RESULTS / f"{self.paper.method}-{self.item_key}-{self.scale}.jsonl"

    def seeded(self, cell: Cell) -> list[list[Experiment]]:
        """Return a cell's experiments, for each of its methods one for each seed."""
        return [
            [
                Experiment(e.method, replace(e.setting, seed=seed, **self.machine))
                for seed in range(self.repeats)
            ]
            for e in experiments_of(self.paper, cell, self.scale)
        ]

    def runs(self) -> dict[str, Experiment]:
        """Return all runs by the name of their folder, seed by seed.

        One that is cut short has all cells, less often.
        """
        each = [seeds for cell in self.cells for seeds in self.seeded(cell)]
        order = [seeds[r] for r in range(self.repeats) for seeds in each]
        return {folder_name(experiment): experiment for experiment in order}

    def conduct(self, watch: Watcher | None = None) -> list[Measured]:
        """Run what is not finished; several processes may share the work.

        What a cell gave is written down as soon as it is there, and at the end what the paper's
        other items show of these runs.
        """
        runs, shown_in = self.runs(), self._shown_in()
        timed = any(cell.measure in TIMES for cell in self.cells)
        made = None if timed else Made(self.out / MADE)
        stopped: dict[str, TacitError] = {}
        for data in dict.fromkeys(e.setting.data for e in runs.values()):
            these = [(name, e) for name, e in runs.items() if e.setting.data == data]
            stopped |= run_all(
                self.out / RUNS,
                these,
                dataset_of(these[0][1].setting),
                watch or Nobody(),
                (BudgetReached, Diverged),
                lambda name: self.write({}, shown_in[name]),
                made,
            )
        why = {name: str(e) for name, e in stopped.items()}
        mine = self.write(why)
        for other in self.elsewhere():
            with suppress(BadInput):  # its file may be damaged: whoever asks for that item is told
                other.write(why)
        return mine

    def elsewhere(self) -> Iterator[Reproduction]:
        """Yield whatever of the paper shows these runs, and no others.

        Not their times: these are right only where nothing else was running.
        """
        mine = set(self.runs())
        for key, item in self.paper.items.items():
            whole = replace(self, item_key=key, cells=[c for c in item.cells.values() if is_run(c)])
            names = {c.key: set(map(folder_name, chain(*whole.seeded(c)))) for c in whole.cells}
            known = [c for c in whole.cells if names[c.key] and names[c.key] <= mine]
            cells = [c for c in known if c.measure not in TIMES]
            if cells:
                yield replace(whole, cells=cells)

    def untimed(self) -> list[str]:
        """Return the cells whose times nobody can tell: part of the work was another run's.

        One that has a time of some seed is none of them; its record names the seeds.
        """
        folders = {c.key: [folder_name(e) for e in chain(*self.seeded(c))] for c in self.cells}
        return [
            cell.key
            for cell in self.cells
            if cell.measure in TIMES
            and not any(shows(cell, Run(self.out / RUNS / name)) for name in folders[cell.key])
        ]

    def _shown_in(self) -> dict[str, list[Cell]]:
        """Return the cells that show a run, by the name of its folder."""
        found: dict[str, list[Cell]] = {}
        for cell in self.cells:
            for experiment in chain.from_iterable(self.seeded(cell)):
                found.setdefault(folder_name(experiment), []).append(cell)
        return found

    def write(self, stopped: dict[str, str], cells: Sequence[Cell] | None = None) -> list[Measured]:
        """Write down what there is so far, of some cells or of all, and return it."""
        looked_at = self.cells if cells is None else cells
        found = [m for cell in looked_at if (m := self.measured(cell, stopped)) is not None]
        add_results(self.file, found)
        return found

    def measured(self, cell: Cell, stopped: dict[str, str]) -> Measured | None:
        """Return what a cell gave: of several methods the one with the best mean."""
        if cell.measure == "formula":
            return self._computed(cell) if cell.line.formula else None
        each = [self._of(cell, seeds, stopped) for seeds in self.seeded(cell)]
        there = [m for m in each if m is not None]
        if not there or len(there) < len(each):
            return None
        return max(there, key=lambda m: -math.inf if math.isnan(m.mean) else m.mean)

    def _computed(self, cell: Cell) -> Measured:
        now = this_start()
        return Measured(
            self.item_key,
            cell.key,
            self.scale,
            [by_formula(cell)],
            commit=now["commit"] or "",
            date=now["started"][:10],
        )

    def _of(
        self, cell: Cell, seeds: Iterable[Experiment], stopped: dict[str, str]
    ) -> Measured | None:
        """Return what one method gave, with the seeds that are finished."""
        names = [(e, folder_name(e)) for e in seeds]
        ended = [(e, Run(self.out / RUNS / n)) for e, n in names if self._finished(n, stopped)]
        done = [(e, run) for e, run in ended if shows(cell, run)]
        if not done:
            return None
        first, runs = done[0][0], [run for _, run in done]
        began = [starts(run.folder)[0] for run in runs]
        curves = [curve_of(cell, run) for run in runs] if cell.item.draws == "curves" else []
        return Measured(
            self.item_key,
            cell.key,
            self.scale,
            [value_of(cell, run) for run in runs],
            seeds=[e.setting.seed for e, _ in done],
            word=spec_of(first.method),
            settings=settings_of(first),
            split=first.setting.split,
            rounds=runs[0].experiment.method.rounds,
            precision=runs[0].experiment.setting.precision,
            commit=", ".join(dict.fromkeys(start["commit"] or "" for start in began)),
            date=max(start["started"] for start in began)[:10],
            spent=[run.spent for run in runs],
            seconds=0.0 if any(run.recalled for run in runs) else sum(map(seconds_in, runs)),
            stopped="; ".join(stopped[n] for _, n in names if n in stopped),
            at=[t for t, _ in curves[0]] if curves else [],
            curves=[[value for _, value in curve] for curve in curves],
        )

    def _finished(self, name: str, stopped: dict[str, str]) -> bool:
        """Tell whether a run is at its end, or was stopped for good."""
        if name in stopped:
            return True
        directory = RunDir(self.out / RUNS / name)
        if not directory.begun:
            return False
        run = Run(directory.folder)  # which may have chosen fewer rounds than it was given
        return run.rounds >= run.experiment.method.rounds


def is_of_today(of: Paper, record: Measured) -> bool:
    """Tell whether a record is of a cell as the paper's file has it now, not of other settings.

    A record of before, which does not say of what settings it is, is taken for one.
    """
    item = of.items.get(record.item)
    cell = item.cells.get(record.cell) if item else None
    if cell is None:
        return False
    if not record.settings:
        return True
    return record.settings in map(settings_of, experiments_of(of, cell, record.scale))


def item_of(word: str) -> tuple[str, str]:
    """Divide a word such as dafl/table3 into paper and item, and see that there are such."""
    key, _, item = word.partition("/")
    check.choice(f"item of {paper(key).name}", item, paper(key).items)
    return key, item


def preset(word: str, method: str) -> Experiment:
    """Return a paper's experiment for a method: paper:mnist-1label, or of another one's paper.

    Args:
        word: PAPER:NAME; "paper" is the method's own
        method: the name of the method that is to run
    """
    whose, colon, name = word.partition(":")
    if not colon:
        raise BadInput(f"preset = {word!r}: must be PAPER:NAME, such as paper:mnist-1label")
    of = paper(method if whose == "paper" else whose)
    check.choice(f"preset of {of.name}", name, of.presets)
    key, _, at = of.presets[name].partition("/")
    rows = of.items[key].rows
    fitting = [row for row, line in rows.items() if parted(line.words[0])[0] == method]
    if not fitting:
        raise BadInput(f"preset = {word!r}: {of.items[key].title!r} has no {method}")
    return experiments_of(of, of.items[key].cells[f"{at}/{fitting[0]}"])[0]
