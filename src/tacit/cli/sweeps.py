"""sweep: methods over a grid of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from tacit.cli.flags import parse
from tacit.cli.help_groups import Flag
from tacit.cli.method_words import METHOD_WORDS
from tacit.cli.runs import CompareFlags, common, first_line, resumable, run_flags, write_table
from tacit.cli.tracking import TRACK, Track, watcher
from tacit.core import BadInput
from tacit.experiment.compare import check_any_finished
from tacit.experiment.config import Experiment
from tacit.experiment.shared_options import with_common
from tacit.experiment.sweep import (
    Sweep,
    Swept,
    over_from,
    resume_sweep,
    start_sweep,
)
from tacit.methods import METHODS
from tacit.methods.spec import method_from_spec, raw_method
from tacit.report.page import write_report
from tacit.report.pictures import draw_sweep
from tacit.report.tables import Form, sweep_table

HELP = f"""usage: tacit sweep METHOD... --over FIELD=v1,v2,... [--over ...] [--repeats N] [options]

METHOD is a word such as fedprox or fedprox:mu=0.1; methods: {", ".join(METHODS)}
FIELD is any number among a method's settings (epsilon, sgd.lr, ...) or the experiment's (clients,
delta, ...).
With one METHOD the options are those of `tacit run METHOD`; with several, those of `tacit compare`.
Every point is a run of its own. A sweep that was killed goes on with `tacit resume DIR`, which may
also be started in several processes at once: they share the points that are left.

examples:
  tacit sweep fedavg --over sgd.lr=0.01,0.03,0.1,0.3 --split label:2 --repeats 3
  tacit sweep ldp_fl nbafl --over epsilon=1,4,8 --rounds 10
  tacit sweep dp_fedavg --over clip=0.1,0.3,1 --validate public.npz
"""
OVER = "FIELD=v1,v2,...: a numeric setting and its values; several make a grid"
Over = Annotated[
    tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(help=OVER, metavar="FIELD=V1,V2,...")
]
VALIDATE = (
    "public data by whose accuracy the best point is chosen, instead of by test data: a name or a "
    "path, as for --data"
)
Validate = Annotated[str, tyro.conf.arg(help=VALIDATE, metavar="PUBLIC")]


@dataclass(frozen=True)
class SweepFlags(CompareFlags):
    """Flags of ``tacit sweep`` with several methods."""

    over: Over = ()
    validate: Validate = ""


def sweep(args: Sequence[str]) -> None:
    """Sweep methods over numbers."""
    if not args or (args[0] in ("-h", "--help")):
        print(HELP, end="")
        return
    words = [arg for n, arg in enumerate(args) if all(not a.startswith("-") for a in args[: n + 1])]
    if not words:
        raise BadInput(
            f"{args[0]}: name a method first, such as `tacit sweep fedavg --over sgd.lr=0.01,0.1`"
        )
    plan, out, form, track = _one(words[0], args[1:]) if len(words) == 1 else _several(args)
    with resumable(out) as told, watcher("sweep", track) as watch:
        swept = start_sweep(plan, out=out, watch=watch, told=told)
    show(swept, form)


def _one(word: str, rest: Sequence[str]) -> tuple[Sweep, Path | None, Form, Track]:
    """Read the flags of one method, which has all of its own."""
    default = Experiment(method_from_spec(word))
    more: list[Flag] = [
        ("over", Over, field(default=())),
        ("validate", Validate, ""),
        (
            "repeats",
            Annotated[int, tyro.conf.arg(help="runs of each point, with seeds seed, seed+1, ...")],
            1,
        ),
        TRACK,
        ("format", Annotated[Form, tyro.conf.arg(help="how the table is printed")], "text"),
    ]
    about = f"{word}: {first_line(default.method)}"
    given = parse(
        run_flags(default, *more),
        rest,
        prog=f"tacit sweep {word}",
        about=about,
        registry=METHOD_WORDS,
    )
    return (
        Sweep(
            {word: raw_method(given.method)},
            over_from(given.over),
            given.setting,
            given.repeats,
            validate=given.validate,
        ),
        given.out,
        given.format,
        given.track,
    )


def _several(args: Sequence[str]) -> tuple[Sweep, Path | None, Form, Track]:
    """Read the flags that several methods share."""
    given = parse(
        SweepFlags, args, prog="tacit sweep", about="Run several methods over a grid of numbers."
    )
    if twice := {m for m in given.methods if given.methods.count(m) > 1}:
        raise BadInput(f"methods: {', '.join(sorted(twice))} is named more than once")
    words, notes = with_common(given.methods, common(given, args))
    raw = {
        name: raw_method(method_from_spec(word))
        for name, word in zip(given.methods, words, strict=True)
    }
    return (
        Sweep(raw, over_from(given.over), given.setting, given.repeats, notes, given.validate),
        given.out,
        given.format,
        given.track,
    )


def resume(folder: Path, track: Track = "none") -> None:
    """Continue a sweep, or help another process with it."""
    with watcher("resume", track) as watch:
        swept = resume_sweep(folder, watch=watch)
    show(swept)


def show(swept: Swept, form: Form = "text") -> None:
    """Print the table and draw the picture."""
    s, repeats = swept.plan.setting, swept.plan.repeats
    title = f"{Path(s.data).name}, {s.split}"
    print(f"{title}, {repeats} seed{'s' * (repeats > 1)}; eps at delta {s.delta:g}, zeroed out\n")
    write_table(f"{sweep_table(swept.rows)}\n\n{swept.choice}", swept.folder)
    print(sweep_table(swept.rows, form) + "\n")
    for note in swept.plan.notes:
        print(note)
    for name, why in swept.stopped.items():
        print(f"{name}: {why}")
    print(swept.choice)
    files = draw_sweep(swept.rows, swept.folder / "sweep", title)
    print(f"files in {swept.folder}, picture {files[0]}")
    print(f"report: {write_report([swept.folder])}")
    check_any_finished([row for _, row in swept.rows])
