"""`tacit serve`: coordinate real sites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tacit.cli import interrupts
from tacit.cli.connecting import check_network, needs_flower, quiet, say
from tacit.cli.flags import parse
from tacit.core import BadInput, check

if TYPE_CHECKING:
    from tacit.apps.coordinator import Terms

ABOUT = (
    "Coordinate real sites. The first argument is an experiment file, or the directory of a run to "
    "continue."
)


@dataclass(frozen=True)
class ServeFlags:
    """Flags of ``tacit serve``."""

    keys: Path | None = None  # folder of keys, made by `tacit keys init`
    host: str = "127.0.0.1"  # address to listen on; 0.0.0.0: all
    port: int = 9092  # port to listen on: the only one that sites must reach
    out: Path | None = None  # run directory; default: a new one in runs/
    wait_for: int = 0  # sites that must have connected before the first round; 0: all
    patience: float = 600.0  # seconds to wait for them
    deadline: float = 600.0  # seconds that a site has for an answer
    max_message: int = 1024  # megabytes of one message at most
    # the largest norm of a site's update; median: ten times the median of each round's norms, and
    # never less than the norm of the model
    max_norm: float | Literal["median"] = "median"
    public: str | None = None  # data that belong to nobody, for methods that use some
    # who takes part: os: a secret; seeded: a rehearsal, as in a simulation
    samples: Literal["os", "seeded"] = "os"
    insecure: bool = False  # no TLS, no keys: on loopback only
    # curves for TensorBoard or MLflow too, in runs/
    track: Literal["none", "tensorboard", "mlflow"] = "none"


def serve(args: Sequence[str]) -> None:
    """Coordinate sites."""
    if not args or args[0].startswith("-"):
        parse(ServeFlags, args or ["--help"], prog="tacit serve EXPERIMENT.toml|RUN", about=ABOUT)
        raise BadInput(
            f"{args[0]}: the first argument must be an experiment file or the directory of a run"
        )
    needs_flower()
    given = parse(ServeFlags, args[1:], prog=f"tacit serve {args[0]}", about=ABOUT)
    _check(given)
    quiet()
    _conduct(Path(args[0]), given)


def _check(given: ServeFlags) -> None:
    check_network(given.insecure, given.host, {"--keys": given.keys})
    check.number("port", given.port, at_least=1, at_most=65535)
    check.number("wait_for", given.wait_for, at_least=0)
    check.number("patience", given.patience, above=0)
    check.number("deadline", given.deadline, above=0)
    check.number("max_message", given.max_message, at_least=1)
    if given.max_norm != "median":
        check.number("max_norm", given.max_norm, above=0)


def _conduct(what: Path, given: ServeFlags) -> None:
    """Run an experiment file, or go on with a run."""
    from tacit.apps.coordinator import go_on
    from tacit.apps.coordinator import serve as start
    from tacit.cli.runs import conclude, telling_if_stopped
    from tacit.cli.tracking import watcher
    from tacit.experiment.config import read_experiment
    from tacit.experiment.rundir import RunDir
    from tacit.methods.spec import name_of

    terms, begun = _terms(given), what.is_dir()
    experiment = RunDir.open(what).experiment() if begun else read_experiment(what)
    name = name_of(experiment.method)
    interrupts.in_order()
    with telling_if_stopped(), watcher(name, given.track) as watch:
        watch.begin(name, experiment.method.rounds)
        if begun:
            done = go_on(what, terms, watch, say)
        else:
            done = start(experiment, given.out, terms, watch, say)
    conclude(done)


def _terms(given: ServeFlags) -> Terms:
    from tacit.apps.coordinator import Terms

    return Terms(
        given.host,
        given.port,
        given.keys,
        given.wait_for,
        given.patience,
        given.deadline,
        given.max_message << 20,
        given.public,
        given.samples,
        None if given.max_norm == "median" else given.max_norm,
    )
