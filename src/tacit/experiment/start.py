"""Start a run, or continue one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tacit import data as data_room
from tacit.core import (
    BadInput,
    Method,
    Release,
)
from tacit.data.examples import Dataset
from tacit.data.federated import per_client
from tacit.data.splits import BY, is_own_split
from tacit.experiment.calibration import calibrated, participations
from tacit.experiment.config import Experiment, Setting, dataset_of, setting_from, shows_setting
from tacit.experiment.extend import extended
from tacit.experiment.kept_code import encoder_again, to_continue
from tacit.experiment.plan import Plan
from tacit.experiment.result import Run
from tacit.experiment.rundir import Busy, RunDir, free_folder
from tacit.experiment.watch import Nobody, Watcher
from tacit.methods.spec import as_method, label_of, name_of


@shows_setting
def run(
    method: str | Method,
    *,
    data: str | Dataset | Mapping[str, Dataset] = "digits",
    out: str | Path | None = None,
    watch: Watcher | None = None,
    **setting: Any,
) -> Run:
    """Run a method and return its finished :class:`Run`.

    What cannot be used is refused by :class:`tacit.core.BadInput`, a ``ValueError``, in one line.

    Args:
        method: a word such as ``"fedprox:mu=0.1,rounds=10"`` (``tacit run fedprox --help`` lists
            its settings), or an instance, also of a method of your own
        data: a name, a path or a :class:`tacit.data.Dataset`; or one of each client, by its name
        out: the folder of the run; default: a new one in ``runs/``
        watch: is told how it goes
        **setting: the fields of :class:`tacit.experiment.config.Setting`, such as ``split``
    """
    method = as_method(method)
    if isinstance(data, Mapping):
        data, setting = per_client(data), {"split": f"{BY}:client", **setting}
    dataset = data if isinstance(data, Dataset) else None
    name = data.name if isinstance(data, Dataset) else data
    experiment = Experiment(method, setting_from({"data": name, **setting}, method))
    return start(experiment, out=Path(out) if out else None, dataset=dataset, watch=watch)


def start(
    experiment: Experiment,
    *,
    out: Path | None = None,
    dataset: Dataset | None = None,
    watch: Watcher | None = None,
    told: Callable[[Path], None] = lambda folder: None,
) -> Run:
    """Start an experiment in a new run directory; ``told`` is told which.

    What is refused before anything has left a client leaves no directory behind.
    """
    plan = Plan.of(experiment, dataset)
    folder = out or free_folder(Path("runs") / default_name(experiment))
    directory = RunDir.create(folder, plan.experiment)
    directory.put_schema(plan.federation.dataset.schema)
    told(folder)
    try:
        return plan.conduct(directory, watch or Nobody())
    except Busy:
        raise
    except BadInput:
        directory.discard()
        raise


def resume(
    folder: str | Path,
    *,
    rounds: int | None = None,
    dataset: Dataset | None = None,
    watch: Watcher | None = None,
    trust_code: bool = False,
) -> Run:
    """Continue the run in ``folder`` from its last checkpoint.

    One that is finished is left as it is, unless it is to have more ``rounds``, in all. They are
    refused where its noise was chosen for the rounds that it has.

    ``dataset`` has to be given again where the run was started with a :class:`tacit.data.Dataset`
    of your own. ``trust_code`` lets source run that is kept in the folder, of the network or of
    features, should the file have changed and somebody else have started the run.
    """
    directory = RunDir.open(Path(folder))
    experiment = directory.experiment()
    if experiment.setting.at_sites:
        raise BadInput(f"'{folder}': a run with sites; `tacit serve {folder}` continues it")
    plan = plan_again(directory, dataset, trust_code=trust_code)
    if rounds is not None:
        plan = _longer(plan, directory, rounds)
    return plan.conduct(directory, watch or Nobody())


def plan_again(
    directory: RunDir, dataset: Dataset | None = None, *, trust_code: bool = False
) -> Plan:
    """Return the plan of a run with what it began with: its schema, network and features.

    ``trust_code`` as for :func:`resume`.
    """
    experiment = directory.experiment()
    setting = experiment.setting
    if dataset is None:
        kept = replace(setting, schema=directory.schema_file(setting.schema))
        dataset = data_again(kept, "tacit.resume(folder, dataset=...)")
    network = to_continue(directory, setting.model, trust=trust_code)
    front = encoder_again(directory, setting.features)
    front = to_continue(directory, front, trust=trust_code)
    return Plan.of(experiment, dataset, network=network, front=front)


def _longer(plan: Plan, directory: RunDir, rounds: int) -> Plan:
    """Return a plan with more rounds, and write them into the run directory."""
    directory.check_alone()
    sizes, setting = plan.federation.sizes(), plan.experiment.setting

    def predict(method: Method) -> list[Release]:
        times = participations(tuple(sizes), method.per_round, method.rounds, setting.seed)
        solved = calibrated(method, sizes, setting.delta, setting.seed)
        return solved.releases(sizes, times, setting.delta)

    method = extended(plan.experiment.method, rounds, predict)
    directory.lock()
    directory.rewrite(Experiment(method, setting))
    return replace(plan, experiment=Experiment(method, setting))


def data_again(setting: Setting, call: str) -> Dataset:
    """Return the data of a run that goes on; data that only a program has must come by a call."""
    if data_room.can_load(setting.data) or Path(setting.data).is_absolute():
        return dataset_of(setting)
    raise BadInput(
        f"data = {setting.data!r}: neither a known data set nor a file here; "
        f"a run from Python with data of its own goes on there, with {call}"
    )


def default_name(experiment: Experiment) -> str:
    """Return a run's name when none is given."""
    s = experiment.setting
    label = label_of(name_of(experiment.method))
    split = label_of(s.split) if is_own_split(s.split) else s.split.replace(":", "")
    return f"{label}-{Path(s.data).stem}-{split}-s{s.seed}"
