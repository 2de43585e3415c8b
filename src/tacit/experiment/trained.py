"""The model of a run, ready to answer: inputs as they are in the data, scores of classes out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch

from tacit.core import BadInput, ClientId, PartOfTests
from tacit.core.own_code import anywhere, is_code
from tacit.core.registry import names_code
from tacit.data.examples import Dataset
from tacit.engines.facts import facts_from
from tacit.engines.store import ClientStore
from tacit.experiment.config import Experiment
from tacit.experiment.kept_code import NAME, runnable
from tacit.experiment.model_file import (
    Description,
    Ready,
    described,
    put_together,
    read_description,
    read_file,
    taken_apart,
    tensors_from,
)
from tacit.experiment.plan import Plan
from tacit.experiment.rundir import ABOUT_MODEL, MODEL, RunDir
from tacit.experiment.start import data_again
from tacit.methods.spec import label_of, name_of


def load(
    path: str | Path,
    *,
    client: ClientId | None = None,
    dataset: Dataset | None = None,
    model: str = "",
    trust_code: bool = False,
) -> Ready:
    """Return the trained model of a run, or of a file that was exported as safetensors.

    Its ``predict(x)`` gives classes by their numbers and ``predict_proba(x)`` probabilities;
    ``classes`` are the names. What does not fit is refused by :class:`tacit.core.BadInput`.

    Args:
        path: the folder of the run, or the file
        client: whose model, where each client has its own
        dataset: of the run, where a client's model is made of data that only a program has
        model: your own network as ``file.py:Name``, for a file that was trained with it
        trust_code: run the network's source that is kept in the folder, whoever started the run
    """
    place = Path(path)
    if place.is_dir():
        return trained(place, client=client, dataset=dataset, model=model, trust_code=trust_code)
    about, numbers = read_file(place)
    if client is not None and client != about.client:
        raise BadInput(f"client = {client!r}: this file has one model, {_whose(about)}")
    word = about.features if about.kind == "features" else about.network
    if is_code(word) and not model:
        raise BadInput(
            f"'{place}': its model needs the code {word}, which it does not hold; {NAME}"
        )
    if names_code(about.front):
        raise BadInput(
            f"'{place}': its features are the code {about.front}, which it does not hold"
        )
    return put_together(about, numbers, model)


def _whose(about: Description) -> str:
    return f"that of client {about.client}" if about.client else "everybody's"


def trained(
    folder: Path,
    *,
    client: ClientId | None = None,
    dataset: Dataset | None = None,
    model: str = "",
    trust_code: bool = False,
) -> Ready:
    """Return the model of a run; the arguments are those of :func:`load`."""
    directory = RunDir.open(folder)
    about = _about(directory, dataset)
    if (client is None) == (about.kind == "personal"):
        needs = "is needed: each client has a model of its own"
        raise BadInput(f"client: {'there is one model for all' if client else needs}")
    if client is not None and PartOfTests.read(client) is not None:
        raise BadInput(f"client = {client!r}: must be a client's number")
    if about.kind in ("own", "personal"):
        who = client or PartOfTests(0, 1).id
        return _by_method(directory, about, who, dataset, trust_code)
    if not (folder / MODEL).exists():
        raise BadInput(f"'{folder}': no model yet; `tacit resume {folder}` finishes it")
    numbers = tensors_from(directory.get(MODEL), folder / MODEL)
    word = about.features if about.kind == "features" else about.network
    front = runnable(directory, about.front, trust=trust_code)
    return put_together(about, numbers, model or runnable(directory, word, trust=trust_code), front)


def _about(directory: RunDir, dataset: Dataset | None) -> Description:
    """Return what the model of a run is; one of before there were descriptions has its data."""
    file = directory.folder / ABOUT_MODEL
    if file.exists():
        return read_description(directory.get(ABOUT_MODEL), file)
    experiment = directory.experiment()
    if directory.checkpoint() is None:
        raise BadInput(f"'{directory.folder}': no round is finished")
    answers, s = experiment.method.answers, experiment.setting
    name = label_of(name_of(experiment.method))
    about = (
        _at_sites(directory, name)
        if s.at_sites
        else described(_data(directory, experiment, dataset), method=name, seed=s.seed)
    )
    about = replace(about, network=anywhere(s.model), seed=s.seed)
    if answers == "network":
        return about
    return replace(about, kind="personal" if answers == "personal" else "own")


def _data(directory: RunDir, experiment: Experiment, dataset: Dataset | None) -> Dataset:
    schema = directory.schema_file(experiment.setting.schema)
    again = replace(experiment.setting, schema=schema)
    return dataset or data_again(again, "run.model(dataset=...)")


def _at_sites(directory: RunDir, method: str) -> Description:
    try:
        said = json.loads((directory.folder / "sites.json").read_text(encoding="utf-8"))["facts"]
        facts = facts_from(next(iter(said.values())))
    except (OSError, ValueError, KeyError, AttributeError, StopIteration):
        raise BadInput(f"'{directory.folder}': sites.json does not say what data are") from None
    return Description("network", facts.shape, facts.classes, facts.mean, facts.std, method=method)


def _by_method(
    directory: RunDir,
    about: Description,
    client: ClientId,
    dataset: Dataset | None,
    trust_code: bool,
) -> Ready:
    """Return what a method makes of its state: everybody's model, or one client's own."""
    experiment = directory.experiment()
    if experiment.setting.at_sites:
        raise BadInput(f"'{directory.folder}': models of their own are with the sites")
    saved = directory.checkpoint()
    if saved is None:
        raise BadInput(f"'{directory.folder}': no round is finished")
    word = anywhere(experiment.setting.model)
    network = runnable(directory, word, trust=trust_code)
    plan = Plan.of(experiment, _data(directory, experiment, dataset), network=network)
    client = _known_client(client, plan)
    kept = ClientStore(directory.clients / client).kept(saved[1].get(client))
    method, s = experiment.method.innermost(saved[0])
    me = plan.world(directory).client("predict", client, s.round, kept)
    with torch.no_grad():
        predict = method.predictor(me, s)
    relabel = plan.federation.split.relabel
    own = "" if PartOfTests.read(client) else client
    order = tuple(relabel[int(own)]) if own and relabel else ()
    known = taken_apart(predict, replace(about, client=own, order=order, kind="network"), word)
    if known and known[0].kind == "features":
        return put_together(*known, runnable(directory, known[0].features, trust=trust_code))
    made = known[0] if known else replace(about, client=own, order=order)
    return Ready(predict, made, runnable(directory, about.front, trust=trust_code)).eval()


def _known_client(client: ClientId, plan: Plan) -> ClientId:
    """Return a client's name as the run has it: 3 is 03 where there are ten."""
    everyone = plan.federation.everyone
    if PartOfTests.read(client) is not None or client in everyone:
        return client
    if client.isdecimal() and int(client) < len(everyone):
        return everyone[int(client)]
    raise BadInput(f"client = {client!r}: allowed: {everyone[0]} to {everyone[-1]}")
