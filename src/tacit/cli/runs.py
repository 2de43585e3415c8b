"""run, resume, compare."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, make_dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from tacit import codec
from tacit.cli.flags import parse
from tacit.cli.help_groups import Flag
from tacit.cli.method_words import METHOD_WORDS
from tacit.cli.progress import Suggesting
from tacit.cli.tracking import TRACK, Track, watcher
from tacit.core import Json, Keywords, Method, TacitError, pairs_of
from tacit.experiment import start as starting
from tacit.experiment.compare import (
    FILE,
    Compared,
    Comparison,
    Row,
    check_any_finished,
    read_comparison,
    resume_comparison,
    start_comparison,
)
from tacit.experiment.config import Experiment, Setting, read_experiment
from tacit.experiment.encoding import NONE, in_tables
from tacit.experiment.metrics import WORDS
from tacit.experiment.reproduce import preset
from tacit.experiment.result import Run, Stopped
from tacit.experiment.rundir import RunDir
from tacit.experiment.shared_options import with_common
from tacit.experiment.signs import by_class, of_answers, warn_of
from tacit.experiment.sweep import FILE as SWEEP
from tacit.local.sgd import SGD
from tacit.methods import METHODS
from tacit.methods.dafl import DAFL
from tacit.methods.spec import label_of, method_class, name_of, parted
from tacit.models import build
from tacit.models.precision import WORTH, gain, made_for_bf16
from tacit.privacy import show_epsilon
from tacit.report.conclusions import guarantee
from tacit.report.page import write_report
from tacit.report.pictures import draw_accuracy
from tacit.report.tables import Form, comparison_table
from tacit.synthesis.augment import Augment
from tacit.synthesis.source import Source

RUN_HELP = f"""usage: tacit run METHOD [options]       tacit run EXPERIMENT.toml [options]

METHOD is one of: {", ".join(METHODS)};
or your own: file.py:Name, package.module:Name
`tacit run METHOD --help` lists all options of a method; options given after a file override it.
--preset PAPER:NAME begins with a published experiment (`tacit reproduce` lists the papers).

examples:
  tacit run fedavg --split label:1 --rounds 10
  tacit run fedprox --data mnist --split dirichlet:0.1 --mu 0.1 --sgd.epochs 5
  tacit run dafl --preset paper:mnist-1label
"""
# read before the other flags, as it decides their defaults
PRESET = "preset"
PRESETS: Flag = (
    PRESET,
    Annotated[str, tyro.conf.arg(help="a published experiment, such as paper:mnist-1label")],
    "",
)


def run(args: Sequence[str]) -> None:
    """Run one method."""
    if not args or args[0] in ("-h", "--help"):
        print(RUN_HELP, end="")
        return
    word, rest = args[0], args[1:]
    default = _begun_with(word, rest)
    given = parse(
        run_flags(default, TRACK, PRESETS, *_augment_flags(type(default.method), rest)),
        rest,
        prog=f"tacit run {word}",
        about=f"{name_of(default.method)}: {first_line(default.method)}",
        examples=examples_of(word, default.method),
        registry=METHOD_WORDS,
    )
    method = given.method
    if getattr(given, "augment", "none") == "dafl":
        method = DAFL.in_front_of(method, given.dafl)
    experiment = Experiment(method, given.setting)
    label = label_of(name_of(experiment.method))
    with telling_if_stopped(), resumable(given.out) as told, watcher(label, given.track) as watch:
        telling = Suggesting(watch, partial(_shorter, experiment))
        telling.begin(label, experiment.method.rounds)
        done = starting.start(experiment, out=given.out, watch=telling, told=told)
    conclude(done)


def _begun_with(word: str, rest: Sequence[str]) -> Experiment:
    """Return what flags are the changes of: a file, a preset, or a method's own defaults."""
    if word.endswith(".toml"):
        return read_experiment(Path(word))
    if wanted := _preset_in(rest):
        return preset(wanted, label_of(word))
    return Experiment(method_class(word)())


def _preset_in(args: Sequence[str]) -> str:
    """Return the value of ``--preset``, if there is one."""
    flag = f"--{PRESET}"
    after = [later for arg, later in pairwise(args) if arg == flag]
    joined = [arg.partition("=")[2] for arg in args if arg.startswith(f"{flag}=")]
    return [*after, *joined, ""][0]


def _shorter(experiment: Experiment) -> str:
    """Say that bfloat16 may be faster, where it is here, for a network of convolutions."""
    if experiment.setting.precision != "f32" or experiment.method.per_example:
        return ""
    shape = (3, 32, 32)
    faster = gain(build("cuag-cnn", shape, 10, 0), shape) if made_for_bf16() else None
    if faster is None or faster < WORTH:
        return ""
    return (
        f"a long run: this processor trains in bfloat16 up to {faster:.1f} times as fast, "
        "with other roundings (`--precision auto`)"
    )


def run_flags(default: Experiment, *more: Flag) -> Any:
    """Return a dataclass whose flags are the method's, the setting's, ``--out``, and more."""
    method = type(default.method)
    return make_dataclass(
        "Flags",
        [
            ("method", Annotated[method, tyro.conf.arg(name="")], field(default=default.method)),
            ("setting", Annotated[Setting, tyro.conf.arg(name="")], field(default=default.setting)),
            (
                "out",
                Annotated[
                    Path | None, tyro.conf.arg(help="run directory; default: a new one in runs/")
                ],
                None,
            ),
            *more,
        ],
        frozen=True,
    )


def _augment_flags(method: type[Method], args: Sequence[str]) -> list[Flag]:
    """Return ``--augment`` and, once it is used, the flags of what it puts in front of a method."""
    if issubclass(method, Source):
        return []
    about = "dafl: share private synthetic samples first; `--augment dafl --help` lists its options"
    flags: list[Flag] = [
        ("augment", Annotated[Literal["none", "dafl"], tyro.conf.arg(help=about)], "none")
    ]
    if any(arg.startswith("--augment") for arg in args):
        clash = {f.name for f in fields(method)} & {f.name for f in fields(Augment)}
        prefix = tyro.conf.arg(name="dafl" if clash else "")
        flags.append(("dafl", Annotated[Augment, prefix], field(default_factory=Augment)))
    return flags


def first_line(method: object) -> str:
    """Return the first line of a method file: what it is and where it is from."""
    return (sys.modules[type(method).__module__].__doc__ or "").partition("\n")[0]


def examples_of(word: str, method: Method) -> list[str]:
    """Return two commands to begin with: a method's cost before it runs, and a run."""
    split = "sizes:2x300,8x50,public=200" if method.needs_public else "label:2"
    cost = [f"tacit privacy {word} --split {split}"] if not word.endswith(".toml") else []
    folder = Path(label_of(word)).stem  # of a file without its folders, too
    return [*cost, f"tacit run {word} --split {split} --seed 1 --out runs/{folder}"]


RESUME_HELP = """usage: tacit resume DIR [--rounds N] [--back N] [--track tensorboard|mlflow]
                        [--trust-code]

Continues a run, a comparison or a sweep from the last finished round. --rounds N gives a run that
is finished or stopped more rounds, N in all; it is refused where the noise was chosen for the
rounds that it has. --back N takes up a run N checkpoints before its last one, of those that --keep
has kept. --track writes curves for TensorBoard or MLflow too, of the rounds that are still to come.
A network of your own is loaded from the file that was named, or, if that has changed, from the
source that the run keeps; --trust-code allows that for a run that somebody else started.
"""


@dataclass(frozen=True)
class ResumeFlags:
    """Flags of ``tacit resume``."""

    # the folder of a run, a comparison or a sweep
    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR")]
    rounds: int | None = None  # of a run, in all: more than it has
    back: int = 0  # checkpoints to go back, where the last one is of no use
    track: Track = "none"  # curves for TensorBoard or MLflow too, in runs/
    # run the network's source that the run keeps, although somebody else has started the run
    trust_code: bool = False


def resume(args: Sequence[str]) -> None:
    """Continue a run, a comparison or a sweep."""
    if not args or args[0] in ("-h", "--help"):
        print(RESUME_HELP, end="")
        return
    given = parse(ResumeFlags, args, prog="tacit resume DIR", about="Continue a run.")
    folder = given.folder
    if given.rounds is not None:
        RunDir(folder).check_alone()
    with resumable(folder, exists=True):
        if (folder / FILE).exists():
            with watcher("resume", given.track) as watch:
                compared = resume_comparison(folder, watch=watch)
            show(compared)
        elif (folder / SWEEP).exists():
            from tacit.cli.sweeps import resume as resume_sweep

            resume_sweep(folder, given.track)
        else:
            _resume_run(given)


def _resume_run(given: ResumeFlags) -> None:
    method = RunDir.open(given.folder).experiment().method
    if given.back:
        RunDir.open(given.folder).go_back(given.back)
    label = label_of(name_of(method))
    with telling_if_stopped(), watcher(label, given.track) as watch:
        watch.begin(label, given.rounds or method.rounds)
        done = starting.resume(
            given.folder, rounds=given.rounds, watch=watch, trust_code=given.trust_code
        )
    conclude(done)


def _size(gigabytes: float) -> str:
    """Return a size as CUAG-PFL's tables have it, or in a smaller unit.

    >>> _size(75.0468), _size(0.00042)
    ('75.0468 GB', '0.42 MB')
    """
    return f"{gigabytes:.4f} GB" if gigabytes >= 0.1 else f"{1000 * gigabytes:.3g} MB"


class Interrupted(TacitError):
    """Somebody pressed Ctrl-C while there was something to continue."""

    exit_code = 130


@contextmanager
def resumable(out: Path | None = None, *, exists: bool = False) -> Iterator[Callable[[Path], None]]:
    """Say where the files of a run will be, if nobody said it; and after Ctrl-C how it goes on."""
    known = [out] if exists else []

    def told(folder: Path) -> None:
        known.append(folder)
        if out is None:
            print(f"run directory: {folder}", file=sys.stderr, flush=True)

    try:
        yield told
    except KeyboardInterrupt:
        if not known:
            raise
        raise Interrupted(f"stopped; `tacit resume {known[-1]}` continues it") from None


def conclude(done: Run) -> None:
    """Say how a run ended and where its files are."""
    final, name = done.final, label_of(name_of(done.experiment.method))
    if not final and not done.rounds:
        print(f"{name}: no round was run; files in {done.folder}")
        return
    if not final:
        print(f"{name}: {done.rounds} rounds; no accuracy, as nobody reported any")
        _say_privacy(done)
        print(f"files in {done.folder}")
        return
    print(f"{name}: {_accuracy_line(final)} after round {final['round']}")
    if (features := in_tables(done.experiment.setting.features)) != NONE:
        print(f"features: {features}, a public function of each example")
    if "mse" in final:
        _say_privacy(done)
        print(f"files in {done.folder}")
        return
    if said := by_class(final, done.classes):
        print(said)
    metric = done.experiment.setting.metric
    if metric != "accuracy" and metric in final:
        print(f"{WORDS[metric]} {100 * final[metric]:.2f}%")
    for what, share in final.get("measured", {}).items():
        print(f"{what}: {100 * share:.2f}% right")
    _say_privacy(done)
    one = f"{_size(done.client_gigabytes_up)} by a client that takes part in every round"
    print(f"sent up: {_size(done.gigabytes_up)} in all, {one}")
    files = draw_accuracy({name: [done]}, done.folder / metric, name, metric)
    print(f"files in {done.folder}, picture {files[0]}")
    warn_of(of_answers(final, done.classes))


@contextmanager
def telling_if_stopped() -> Iterator[None]:
    """Say what a run has done that its budget stops; why it stops is said afterwards."""
    try:
        yield
    except Stopped as e:
        _conclude_stopped(e.run)
        raise


def _conclude_stopped(done: Run) -> None:
    """Say how far a run has come and what the releases in its ledger cost."""
    method = done.experiment.method
    print(f"{name_of(method)}: stopped after {done.rounds} of {method.rounds} rounds")
    if done.final:
        print(f"{_accuracy_line(done.final)} after round {done.final['round']}")
    if len(done.ledger):
        _say_privacy(done)
    else:
        print("nothing has left a client: the ledger is empty")
    print(f"files in {done.folder}")


def _accuracy_line(final: Json) -> str:
    """Say how good the shared model is, or how good the clients' own are and how they differ."""
    if "mse" in final:
        off = ", ".join(f"{name} {error:.4g}" for name, error in final["mae"].items())
        return f"mean squared error {final['mse']:.4g} (scaled), mean absolute error: {off}"
    if not final["personal"]:
        noise = f" ± {100 * final['noise']:.2f} by the noise of reports" if "noise" in final else ""
        return f"accuracy {100 * final['accuracy']:.2f}%{noise}"
    own = final["own_data"]
    spread = f"± {100 * own['std']:.1f} over clients, worst {100 * own['worst']:.1f}%"
    return f"mean accuracy of the clients' own models {100 * own['mean']:.2f}% ({spread})"


def _say_privacy(done: Run) -> None:
    """Say what the ledger says: what is protected from whom, at which price, and why.

    Where that is not from the server, also what the server can learn.
    """
    unit, observer = done.experiment.method.protects
    spent = done.spent
    replaced = done.costing(relation="replace")
    delta = done.experiment.setting.delta
    said = guarantee(unit, observer, spent=spent, replaced=replaced, delta=delta)
    server = f" (against the server: {show_epsilon(done.costing('server'))})"
    print(f"{said}: {done.why}{server * (observer != 'server')}")
    if 0 < spent < replaced:
        print(f"eps {show_epsilon(replaced)} if one {unit} is replaced")
    if groups := done.groups:
        print(_groups_line(groups))


def _groups_line(groups: dict[str, Json]) -> str:
    """Say what each group of clients pays, and why the largest of it is promised to everybody."""
    each = [
        f"{name} ({g['clients']} clients) {show_epsilon(g['epsilon'])}"
        for name, g in groups.items()
    ]
    why = "clients hold disjoint data, and their public sizes alone decide who is in which group"
    return f"eps by group: {', '.join(each)}; the largest holds for all: {why}"


@dataclass(frozen=True)
class CompareFlags:
    """Flags of ``tacit compare``.

    ``rounds``, ``per_round``, ``epsilon`` and ``sgd`` apply to every method that has them.
    """

    methods: tyro.conf.Positional[tuple[str, ...]]  # such as fedavg fedprox:mu=0.1 scaffold
    rounds: int | None = None  # rounds of every method; default: each method's own
    per_round: int | None = None  # clients sampled in each round; 0: everyone
    # what one unit spends in the whole run, of every method that can keep it
    epsilon: float | None = None
    repeats: int = 1  # runs of each method, with seeds seed, seed+1, ...
    format: Form = "text"  # how the table is printed
    track: Track = "none"  # curves for TensorBoard or MLflow too, in runs/
    out: Path | None = None  # folder for all runs; default: a new one in runs/
    sgd: SGD = field(default_factory=SGD)  # local training of every method
    setting: Annotated[Setting, tyro.conf.arg(name="")] = field(default_factory=Setting)


def compare(args: Sequence[str]) -> None:
    """Compare methods."""
    about = (
        "Run several methods on the same split, seeds and sampled clients. Methods: "
        f"{', '.join(METHODS)}."
    )
    given = parse(CompareFlags, args, prog="tacit compare", about=about)
    words, notes = with_common(given.methods, common(given, args))
    plan = Comparison(words, given.setting, given.repeats, notes)
    with resumable(given.out) as told, watcher("compare", given.track) as watch:
        compared = start_comparison(plan, out=given.out, watch=watch, told=told)
    show(compared, given.format)


def common(given: CompareFlags, args: Sequence[str]) -> Keywords:
    """Return what was said for all methods, defaults included if they were said."""
    flags = {arg.partition("=")[0].removeprefix("--").replace("-", "_") for arg in args}
    sgd = {f"sgd.{k}": v for k, v in asdict(given.sgd).items() if f"sgd.{k}" in flags}
    flat = {"rounds": given.rounds, "per_round": given.per_round, "epsilon": given.epsilon}
    return {k: v for k, v in flat.items() if v is not None} | sgd


def show(compared: Compared, form: Form = "text") -> None:
    """Print the table, why epsilon is what it is, and draw the picture."""
    plan = read_comparison(compared.folder)
    names = short_names(plan.methods)
    runs = {
        names[word]: [Run(compared.folder / n) for n, _ in plan.runs_of(word)]
        for word in plan.methods
    }
    s = plan.setting
    title = f"{Path(s.data).name}, {s.split}, {s.clients} clients"
    print(f"{title}, {plan.repeats} seed{'s' * (plan.repeats > 1)}")
    whose = "of one example zeroed out, of one client replaced"
    print(f"eps at delta {s.delta:g} against the server, {whose}\n")
    rows = [row.named(names[row.method]) for row in compared.rows]
    write_table(comparison_table(rows), compared.folder)
    print(comparison_table(rows, form) + "\n")
    for note in compared.notes:
        print(note)
    for why in dict.fromkeys(map(_because, compared.rows)):
        methods = ", ".join(names[r.method] for r in compared.rows if _because(r) == why)
        print(f"eps of {methods}: {why}")
    files = draw_accuracy(runs, compared.folder / rows[0].metric, title, s.metric)
    print(f"picture: {files[0]}")
    print(f"report: {write_report([compared.folder])}")
    check_any_finished(compared.rows)


def write_table(table: str, folder: Path) -> None:
    """Keep a table beside the runs that it is of."""
    codec.write_atomically(folder / "table.txt", (table + "\n").encode())


def _because(row: Row) -> str:
    """Say why epsilon is what it is, and what is guaranteed where the table has another figure."""
    if not 0 < row.spent < row.epsilon[row.protects]:
        return row.why
    unit, _, observer = row.protects.partition("/")
    return f"{show_epsilon(row.spent)} for one {unit} zeroed out against {observer}: {row.why}"


def short_names(words: Sequence[str]) -> dict[str, str]:
    """Return each word without the settings that all words of the same method share.

    >>> short_names(["fedavg:rounds=5", "fedprox:mu=1,rounds=5"])
    {'fedavg:rounds=5': 'fedavg', 'fedprox:mu=1,rounds=5': 'fedprox'}
    >>> short_names(["fedprox:mu=1,rounds=5", "fedprox:mu=2,rounds=5"])
    {'fedprox:mu=1,rounds=5': 'fedprox:mu=1', 'fedprox:mu=2,rounds=5': 'fedprox:mu=2'}
    """
    pairs = {w: pairs_of(parted(w)[1]) for w in words}
    short = {}
    for word in words:
        name = parted(word)[0]
        alike = [set(pairs[w]) for w in words if parted(w)[0] == name]
        own = [p for p in pairs[word] if p not in set.intersection(*alike)]
        short[word] = ":".join([label_of(name), *filter(None, [",".join(own)])])
    return short
