"""The report: one page that needs nothing but a browser, made of run directories.

Jinja2 escapes whatever comes from a run; data for the figures are JSON without a "<".
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

import tacit
from tacit import codec
from tacit.core import BadInput, Json
from tacit.experiment.config import of_before
from tacit.experiment.metrics import SQUARED
from tacit.methods.spec import method_from
from tacit.privacy import rounded_down, show_epsilon
from tacit.report.audits import read_audits
from tacit.report.conclusions import guarantee
from tacit.report.figures import METRICS, Figure, figures
from tacit.report.holdings import holdings_of
from tacit.report.reading import (
    RunFacts,
    choice_in,
    flat,
    holds_runs,
    of_this_package,
    read_all,
)
from tacit.report.synthetic import Sheet, pool_of, synthetic_in, synthetic_of
from tacit.report.tables import spread
from tacit.report.words import in_words, learnt

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = ("vega.min.js", "vega-lite.min.js", "vega-embed.min.js", "report.js")
DETAILED = 12  # runs whose ledger and configuration are spelled out
FILE = "report.html"
NAMES = METRICS | {SQUARED: "mean squared error, as labels are scaled"}


@dataclass(frozen=True)
class Cell:
    """A cell of a table: what it says, and what it is sorted by."""

    text: str
    key: float | str


@dataclass(frozen=True)
class Table:
    """A table that can be sorted and downloaded."""

    name: str
    head: list[str]
    rows: list[list[Cell]]


def write_report(
    folders: Sequence[Path], out: Path | None = None, metric: str | None = None
) -> Path:
    """Write the report of some folders; by default into the folder, if there is only one.

    The metric is by default the one that the first run was to show.
    """
    file = out or (folders[0] / FILE if len(folders) == 1 else Path(FILE))
    title = ", ".join(folder.resolve().name for folder in folders[:3])
    made = {folder: synthetic_in(folder) for folder in folders}
    runs = read_all([folder for folder in folders if not made[folder] or holds_runs(folder)])
    beside = [*folders, *(inside for each in made.values() for inside in each)]
    shown = metric or (runs[0].metric if runs else "accuracy")
    text = whole_page(title, runs, shown, beside=beside)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        codec.write_atomically(file, text.encode("utf-8", "replace"))
    except OSError as e:
        raise BadInput(f"out = '{file}': cannot be written ({e.strerror})") from None
    return file


def whole_page(
    title: str,
    runs: Sequence[RunFacts],
    metric: str = "accuracy",
    live: str = "",
    stamp: str = "",
    beside: Sequence[Path] = (),
) -> str:
    """Return the page.

    Args:
        title: what it is called
        runs: what it is about
        metric: what tables and pictures show
        live: where a page that follows its runs asks for news
        stamp: of the state that it shows, so that it asks for what came since
        beside: other folders whose synthetic sets and audits are shown
    """
    drawn = figures(runs, holdings_of(runs), metric)
    content = body(runs, drawn, metric, beside)
    return frame(title, content, drawn, live=live, stamp=stamp, draws=bool(drawn or live))


def frame(
    title: str,
    content: str,
    drawn: Sequence[Figure],
    *,
    live: str = "",
    stamp: str = "",
    draws: bool = True,
) -> str:
    """Return a page with our own HTML in it; ``draws`` brings what draws figures."""
    text: str = template("page.html").render(
        title=title,
        version=tacit.__version__,
        body=Markup(content),
        data=for_script([figure.plain() for figure in drawn]),
        style=Markup((ASSETS / "report.css").read_text(encoding="utf-8")),
        scripts=[script(name) for name in (SCRIPTS if draws else SCRIPTS[-1:])],
        live=live,
        stamp=stamp,
    )
    return text


def body(
    runs: Sequence[RunFacts],
    drawn: Sequence[Figure],
    metric: str = "accuracy",
    beside: Sequence[Path] = (),
) -> str:
    """Return what the page shows of the runs, without what stays the same while they go on."""
    places = list(dict.fromkeys([*beside, *(run.folder for run in runs)]))
    text: str = template("body.html").render(
        runs=runs,
        cards=cards(runs, metric),
        table=results(runs, metric),
        figures=drawn,
        detailed=[details(run) for run in runs[:DETAILED]],
        more=len(runs) - DETAILED,
        problems=[(run.folder.name, said) for run in runs for said in run.problems[:5]],
        samples=_sheets(runs, places)[:DETAILED],
        choices=list(dict.fromkeys(filter(None, map(choice_in, _around(places))))),
        audits=[audited for folder in places if (audited := _audited(folder)).rows],
    )
    return text


def _around(places: Sequence[Path]) -> list[Path]:
    """Return folders and those that they are in: a run may be one of a sweep."""
    return [folder for place in places for folder in (place, place.resolve().parent)]


def _sheets(runs: Sequence[RunFacts], places: Sequence[Path]) -> list[Sheet]:
    """Return the synthetic sets of folders, and those that runs have made on their way."""
    found = [*map(synthetic_of, places), *map(pool_of, runs[:DETAILED])]
    return [made for made in found if made]


@cache
def template(name: str) -> Any:
    """Return one of our templates, which escapes all that it is given."""
    env = Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return env.get_template(name)


@cache
def script(name: str) -> Markup:
    """Return one of the scripts, without the place of a map that nobody needs."""
    text = (ASSETS / name).read_text(encoding="utf-8")
    return Markup(re.sub(r"^//# sourceMappingURL=.*$", "", text, flags=re.MULTILINE))


def for_script(value: object) -> Markup:
    """Return JSON that cannot end the script element that it stands in."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))


def percent(value: object) -> str:
    """Return a share as text; a dash where there is none."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return "-"
    return f"{100 * value:.1f}"


def cards(runs: Sequence[RunFacts], metric: str) -> list[dict[str, str]]:
    """Return the headline: what the best method reaches, and the best one with a guarantee.

    Of repeats the mean counts, never the best of them.
    """
    if runs and all(run.errors for run in runs):
        metric = SQUARED
    groups: dict[str, list[RunFacts]] = {}
    for run in runs:
        groups.setdefault(run.label, []).append(run)
    if len(groups) == 1:
        return [_card(each, metric, label) for label, each in groups.items()]
    sign = -1 if metric in ("calibration_error", SQUARED) else 1
    scored = [each for each in groups.values() if not math.isnan(_mean(each, metric))]
    rank = sorted(scored, key=lambda each: -sign * _mean(each, metric))
    shared = [each for each in rank if not each[0].final.get("personal")] or rank
    private = [each for each in shared if math.isfinite(_spent(each))]
    best = [("best shared model", shared[:1]), ("best with a guarantee", private[:1])]
    found = [(f"{what}: {each[0].label}", each) for what, some in best for each in some]
    distinct = found[:1] if len(found) == 2 and found[0][1] is found[1][1] else found
    return [_card(each, metric, what) for what, each in distinct]


def _values(runs: Sequence[RunFacts], metric: str) -> list[float]:
    found = [run.final.get(metric) for run in runs]
    return [float(v) for v in found if isinstance(v, int | float) and math.isfinite(v)]


def _mean(runs: Sequence[RunFacts], metric: str) -> float:
    values = _values(runs, metric)
    return float(np.mean(values)) if values else math.nan


def _spent(runs: Sequence[RunFacts]) -> float:
    """Return the largest epsilon of repeats."""
    return max(run.spent for run in runs)


def _card(runs: Sequence[RunFacts], metric: str, what: str) -> dict[str, str]:
    run, values = runs[0], _values(runs, metric)
    unit, observer = run.protects
    spent = _spent(runs)
    # the relation is said where both figures are known to agree; here only the one is
    said = guarantee(unit, observer, spent=spent, replaced=math.inf, delta=run.delta)
    up, down, seconds = (
        sum(line.get(key) or 0 for each in runs for line in each.lines) / len(runs)
        for key in ("bytes_up", "bytes_down", "seconds")
    )
    repeats = f", mean of {len(runs)} seeds" if len(runs) > 1 else ""
    share = f"{spread(values)} %" if values else "-"
    return {
        "what": what,
        "value": f"{np.mean(values):.4g}" if metric == SQUARED else share,
        "metric": NAMES[metric] + repeats + _when(runs),
        "epsilon": show_epsilon(spent),
        "said": said.removeprefix(f"eps {show_epsilon(spent)} "),
        "why": run.why,
        "cost": f"{up / 1e6:.2f} MB up, {down / 1e6:.2f} MB down, {seconds:.1f} s, "
        f"round {run.done} of {run.rounds or '?'}",
        "state": ", ".join(sorted({state(each) for each in runs})),
    }


def _when(runs: Sequence[RunFacts]) -> str:
    """Say after which round the figure was measured, where that was not the last."""
    early = sorted(
        {run.final["round"] for run in runs if run.final and run.final["round"] < run.done}
    )
    return f", after round {' and '.join(map(str, early))}" if early else ""


def _audited(folder: Path) -> Table:
    """Return what attacks on what is in a folder have found."""
    head = ["what was attacked", "members", "others", "AUC", "advantage %", "TPR at 1 % FPR"]
    rows = [
        [
            Cell(audit.attacked, audit.attacked),
            Cell(f"{audit.members}", audit.members),
            Cell(f"{audit.others}", audit.others),
            Cell(f"{audit.auc:.3f}", audit.auc),
            _share(audit.advantage),
            _share(audit.true_positives_at_1_percent),
            _at_least(audit.epsilon_at_least),
        ]
        for audit in read_audits(folder)
    ]
    return Table(f"attacks on {folder.resolve().name}", [*head, "eps at least"], rows)


def _at_least(epsilon: float | None) -> Cell:
    """Return a lower bound, which is rounded down."""
    return Cell("-", -1.0) if epsilon is None else Cell(rounded_down(epsilon, 3), epsilon)


def state(run: RunFacts) -> str:
    """Say how far a run is."""
    if run.problems:
        return "damaged"
    return "finished" if run.complete else "running or killed" if run.open else "stopped"


def results(runs: Sequence[RunFacts], metric: str) -> Table:
    """Return the table of all runs."""
    head = [
        "method",
        "run",
        f"{METRICS[metric]} %",
        "own data %",
        "worst client %",
        "eps example/server",
        "eps client/server",
        "eps client/public",
        "MB up",
        "MB down",
        "seconds",
        "rounds",
        "state",
    ]
    rows = [_row(run, metric) for run in runs]
    if any(run.errors for run in runs):  # of numbers, which have no accuracy
        head.append("errors")
        rows = [
            [*row, Cell(run.errors or "-", run.final.get("mse") or 0.0)]
            for row, run in zip(rows, runs, strict=True)
        ]
    return Table("results", head, rows)


def _row(run: RunFacts, metric: str) -> list[Cell]:
    final, epsilon = run.final, run.epsilon
    own = final.get("own_data") if isinstance(final.get("own_data"), dict) else {}
    total = {k: sum(line.get(k) or 0 for line in run.lines) for k in ("bytes_up", "bytes_down")}
    seconds = sum(line.get("seconds") or 0 for line in run.lines)
    shown = None if final.get("personal") and metric == "accuracy" else final.get(metric)
    return [
        Cell(run.label, run.label),
        Cell(run.folder.name, run.folder.name),
        *(_share(value) for value in (shown, (own or {}).get("mean"), (own or {}).get("worst"))),
        *(_epsilon(epsilon.get(key)) for key in EPSILONS),
        Cell(f"{total['bytes_up'] / 1e6:.2f}", total["bytes_up"]),
        Cell(f"{total['bytes_down'] / 1e6:.2f}", total["bytes_down"]),
        Cell(f"{seconds:.1f}", seconds),
        Cell(f"{run.done}", run.done),
        Cell(state(run), state(run)),
    ]


EPSILONS = ("example/server", "client/server", "client/public")


def _share(value: object) -> Cell:
    shown = percent(value)
    return Cell(shown, float(value) if isinstance(value, int | float) and shown != "-" else -1.0)


def _epsilon(value: float | None) -> Cell:
    if value is None:
        return Cell("-", -1.0)
    return Cell(show_epsilon(value), value if math.isfinite(value) else 1e308)


def details(run: RunFacts) -> Json:
    """Return what is spelled out of one run."""
    return {
        "run": run,
        "learnt": learnt(run),
        "lines": in_words(run),
        "claims": claims(run),
        "spent": show_epsilon(run.spent),
        "protects": "/".join(run.protects),
        "config": flat(run.config),
        "starts": run.starts,
        "again": again(run),
    }


def claims(run: RunFacts) -> list[tuple[str, str, str]]:
    """Return what the method's paper claims, for a method of this package and a known split."""
    raw = run.config.get("method")
    if not isinstance(raw, dict) or not of_this_package(raw):
        return []
    held = holdings_of([run])
    if held is None:
        return []
    sizes = {c: int(n) for c, n in zip(held.clients, held.counts.sum(1), strict=True)}
    try:
        found = method_from(of_before({"method": raw})["method"]).claims(sizes, run.delta)
    except (BadInput, ArithmeticError):  # a method whose noise was never solved
        return []
    return [(word, show_epsilon(epsilon), remark) for word, epsilon, remark in found]


def again(run: RunFacts) -> str:
    """Return the command that runs it again."""
    if run.sites or run.config.get("split") == "sites":
        return "tacit serve " + str(run.folder)
    return f"tacit run {run.folder}/config.toml"
