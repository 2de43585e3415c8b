"""The model of a run, ready to answer: inputs as they are in the data, scores of classes out."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load as load_tensors
from torch import Tensor, nn

from tacit import codec
from tacit.core import BadInput, ClientId, PartOfTests
from tacit.core.params import Params, load_params
from tacit.data.examples import Dataset
from tacit.engines.facts import facts_from
from tacit.engines.store import ClientStore
from tacit.experiment.config import Experiment
from tacit.experiment.plan import Plan
from tacit.experiment.rundir import RunDir
from tacit.experiment.start import data_again
from tacit.models import build

CHUNK = 500  # examples at a time


@dataclass(frozen=True)
class Frame:
    """What inputs and classes are: public facts of the data."""

    shape: tuple[int, ...]
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


class Ready(nn.Module):
    """A trained model with the scaling of its inputs in front of it."""

    mean: Tensor
    std: Tensor

    def __init__(self, answers: Callable[[Tensor], Tensor], frame: Frame) -> None:
        super().__init__()
        self.answers = answers
        self.image = len(frame.shape) == 3
        self.register_buffer("mean", torch.tensor(frame.mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(frame.std).view(-1, 1, 1))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return a score for each class; whole numbers are taken as pixels from 0 to 255."""
        x = inputs.float() / 255.0 if inputs.dtype == torch.uint8 else inputs
        return self.answers((x - self.mean) / self.std if self.image else x)


def trained(
    folder: Path, *, client: ClientId | None = None, dataset: Dataset | None = None
) -> Ready:
    """Return the model of a run.

    Args:
        folder: of the run
        client: whose model, where each has its own
        dataset: of the run, where it was started with one that only a program has
    """
    directory = RunDir.open(folder)
    experiment = directory.experiment()
    answers = experiment.method.answers
    if (client is None) == (answers == "personal"):
        needs = "is needed: each client has a model of its own"
        raise BadInput(f"client: {'there is one model for all' if client else needs}")
    if answers == "network":
        return _network(directory, experiment, dataset)
    return _by_method(directory, experiment, client or PartOfTests(0, 1).id, dataset)


def _network(directory: RunDir, experiment: Experiment, dataset: Dataset | None) -> Ready:
    frame, s = _frame(directory, experiment, dataset), experiment.setting
    file = directory.folder / "model.safetensors"
    try:
        x = Params(load_tensors(file.read_bytes()))
    except OSError as e:
        raise BadInput(f"'{file}': cannot be read ({e.strerror})") from None
    model = build(s.model, frame.shape, frame.classes, s.seed)
    load_params(model.eval(), x)
    return Ready(model, frame).eval()


def _by_method(
    directory: RunDir, experiment: Experiment, client: ClientId, dataset: Dataset | None
) -> Ready:
    """Return what a method makes of its state: everybody's model, or one client's own."""
    if experiment.setting.at_sites:
        raise BadInput(f"'{directory.folder}': models of their own are with the sites")
    saved = directory.checkpoint()
    if saved is None:
        raise BadInput(f"'{directory.folder}': no round is finished")
    data = dataset or data_again(experiment.setting, "run.model(dataset=...)")
    plan = Plan.of(experiment, data)
    everyone = plan.federation.everyone
    if PartOfTests.read(client) is None and client not in everyone:
        raise BadInput(f"client = {client!r}: allowed: {everyone[0]} to {everyone[-1]}")
    kept = ClientStore(directory.clients / client).kept(saved[1].get(client))
    method, s = experiment.method.innermost(saved[0])
    me = plan.world(directory).client("predict", client, s.round, kept)
    with torch.no_grad():
        predict = method.predictor(me, s)
    return Ready(predict, _of(data)).eval()


def _frame(directory: RunDir, experiment: Experiment, dataset: Dataset | None) -> Frame:
    if not experiment.setting.at_sites:
        return _of(dataset or data_again(experiment.setting, "run.model(dataset=...)"))
    try:
        said = json.loads((directory.folder / "sites.json").read_text(encoding="utf-8"))["facts"]
        facts = facts_from(next(iter(said.values())))
    except (OSError, ValueError, KeyError, AttributeError, StopIteration):
        raise BadInput(f"'{directory.folder}': sites.json does not say what data are") from None
    return Frame(facts.shape, len(facts.classes), facts.mean, facts.std)


def _of(dataset: Dataset) -> Frame:
    return Frame(dataset.shape, len(dataset.classes), dataset.mean, dataset.std)


def predicted(model: nn.Module, inputs: object) -> Tensor:
    """Return the class of each input, as a number."""
    x = torch.as_tensor(inputs)
    with torch.no_grad():
        parts = [model(x[start : start + CHUNK]).argmax(1) for start in range(0, len(x), CHUNK)]
    return torch.cat([torch.zeros(0, dtype=torch.int64), *parts])


def export(folder: Path, file: Path, dataset: Dataset | None = None) -> Path:
    """Write the shared model, scaling included, as ONNX; inputs are single-precision numbers."""
    directory = RunDir.open(folder)
    experiment = directory.experiment()
    if file.suffix != ".onnx":
        raise BadInput(f"file = '{file}': must end with .onnx")
    if experiment.method.answers != "network":
        raise BadInput("export: this method's model is more than a network; use run.model()")
    frame = _frame(directory, experiment, dataset)
    model = _network(directory, experiment, dataset)
    try:
        import onnxscript  # noqa: F401  # what torch writes with
    except ImportError:
        raise BadInput("export: needs the packages onnx and onnxscript: tacit[onnx]") from None
    with warnings.catch_warnings():  # those of torch about its own parts
        warnings.simplefilter("ignore")
        made = torch.onnx.export(
            model,
            (torch.zeros(2, *frame.shape),),
            dynamo=True,
            dynamic_shapes=({0: torch.export.Dim("examples")},),
            input_names=["inputs"],
            output_names=["scores"],
            verbose=False,
        )
    assert made is not None
    file.parent.mkdir(parents=True, exist_ok=True)
    codec.write_atomically(file, made.model_proto.SerializeToString())
    return file
