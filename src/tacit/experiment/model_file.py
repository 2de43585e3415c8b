"""A trained model as a file that describes itself, and back: no run, no data, no pickle needed.

Its numbers are safetensors; its description is JSON, beside them in a run directory and inside the
file where a model was exported.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from tacit import __version__
from tacit.core import BadInput, Json, Params, Predictor
from tacit.core.data import Goal
from tacit.core.own_code import anywhere
from tacit.data.examples import Dataset
from tacit.data.new_inputs import Wanted, as_wanted
from tacit.data.schema import Schema
from tacit.experiment.encoding import NONE, as_inputs, shape_of
from tacit.local.prototypes import Nearest, Prototypes
from tacit.methods.spec import validated
from tacit.models import build
from tacit.synthesis.classifiers import OfFeatures, Scaling
from tacit.synthesis.features import encoder

CHUNK = 500  # examples at a time
FORMAT = 1
KEY = "tacit"  # of the description in the header of a safetensors file
POINTS, KNOWN, HEAD = "prototypes/points", "prototypes/known", "head/"


# own, personal: what only a method makes of its state, for everybody or for a client; no such file
Kind = Literal["network", "prototypes", "features", "own", "personal"]


@dataclass(frozen=True)
class Description:
    """What the numbers of a model mean, and what its inputs and answers are: public facts."""

    kind: Kind
    shape: tuple[int, ...]  # of one input
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    network: str = ""  # a network of this package, or code as file.py:Name; with its arguments
    features: str = ""  # features: what the classifier sees of an input
    front: str = ""  # public features, by name, that a network gets in place of inputs; empty: none
    radius: float | None = None  # prototypes: of the sphere that features are scaled to
    order: tuple[int, ...] = ()  # for each class the score that is its own, where a client renames
    pixels: bool = False  # inputs are whole numbers from 0 to 255, or from 0 to 1
    columns: tuple[str, ...] = ()  # of a table: the names of the numbers of an input
    schema: Json | None = None  # of a table: how its cells become numbers
    goal: Goal = "classes"  # what is predicted
    seed: int = 0
    method: str = ""
    data: str = ""
    client: str = ""  # whose model it is, if not everybody's
    privacy: str = ""  # what its training has cost, in words; in files that were exported
    tacit: str = __version__
    format: int = FORMAT

    def to_json(self) -> str:
        """Return it as JSON, to be read by people too."""
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"

    @property
    def wanted(self) -> Wanted:
        """What inputs must be."""
        return Wanted(self.shape, self.pixels, self.columns, self.table)

    @property
    def table(self) -> Schema | None:
        """The schema, if there is one."""
        return None if self.schema is None else Schema.from_dict(self.schema)

    @property
    def scaled(self) -> bool:
        """Whether a schema has brought the numbers that are predicted from a range to -1..1."""
        return self.goal == "regression" and self.schema is not None

    @property
    def units(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Of each label: what 0 is in its own unit, and how much 1 is more."""
        table = self.table
        if table is None or not self.scaled:
            return (0.0,) * len(self.classes), (1.0,) * len(self.classes)
        ends = [table[name].unscaled(np.array([0.0, 1.0])) for name in self.classes]
        return tuple(float(e[0]) for e in ends), tuple(float(e[1] - e[0]) for e in ends)

    def answer(self, label: int, yes: int) -> str:
        """Return the word for no (0) or yes (1) of one of several labels."""
        table = self.table
        return str(yes) if table is None else table[self.classes[label]].categories[yes]


def described(dataset: Dataset, *, method: str, seed: int) -> Description:
    """Return what is known of a model before it is one: its inputs and classes."""
    return Description(
        "network",
        dataset.shape,
        dataset.classes,
        dataset.mean,
        dataset.std,
        pixels=dataset.train.x.dtype == torch.uint8,
        columns=dataset.columns,
        schema=None if dataset.schema is None else dataset.schema.to_dict(),
        goal=dataset.goal,
        seed=seed,
        method=method,
        data=dataset.name,
    )


class Ready(nn.Module):
    """A trained model with the scaling of its inputs in front of it."""

    mean: Tensor
    std: Tensor
    middle: Tensor
    width: Tensor

    def __init__(self, answers: Predictor, description: Description, front: str = "") -> None:
        """Make a model ready.

        Args:
            answers: what makes scores of what a network gets
            description: what inputs and answers are
            front: the word to load the features in front by, if not the one in the description
        """
        super().__init__()
        word = front or description.front
        self.encode = encoder(word, description.shape) if word else None
        self.answers = answers
        self.description = description
        self.image = len(description.shape) == 3
        self.register_buffer("mean", torch.tensor(description.mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(description.std).view(-1, 1, 1))
        middle, width = description.units
        self.register_buffer("middle", torch.tensor(middle))
        self.register_buffer("width", torch.tensor(width))

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, or of labels: answer number i is ``classes[i]``."""
        return self.description.classes

    def forward(self, inputs: Tensor) -> Tensor:
        """Return a score for each class; whole numbers are taken as pixels from 0 to 255.

        Of regression it is each label's number, in its own unit.
        """
        x = inputs.float() / 255.0 if inputs.dtype == torch.uint8 else inputs
        if self.encode is not None:
            x = as_inputs(self.encode, x)
        elif self.image:
            x = (x - self.mean) / self.std
        scores: Tensor = self.answers(x)
        order = self.description.order
        scores = scores[:, list(order)] if order else scores
        return scores * self.width + self.middle if self.description.scaled else scores

    def predict_proba(self, inputs: object) -> Tensor:
        """Return the probability of each class (column) for each input (row).

        Of several labels it is that of yes, for each. Inputs are as they are in the data; what
        does not fit is refused by :class:`tacit.core.BadInput`.
        """
        goal = self.description.goal
        if goal == "regression":
            raise BadInput("task = 'regression': numbers have no probabilities; use predict")
        scores = self._scores(inputs)
        return scores.softmax(1) if goal == "classes" else scores.sigmoid()

    def predict(self, inputs: object) -> Tensor:
        """Return the class of each input, as a number.

        Of regression a row of numbers, in the labels' own units; of several labels a row of 0 (no)
        and 1 (yes).
        """
        if self.description.goal == "regression":
            return self._scores(inputs)
        shares = self.predict_proba(inputs)
        return shares.argmax(1) if self.description.goal == "classes" else (shares > 0.5).long()

    def _scores(self, inputs: object) -> Tensor:
        x = as_wanted(inputs, self.description.wanted)
        parts = [torch.zeros(0, len(self.classes))]
        with torch.no_grad():
            parts += [self(x[i : i + CHUNK]) for i in range(0, len(x), CHUNK)]
        return torch.cat(parts)


def whole_network(network: nn.Module, x: Params) -> dict[str, Tensor]:
    """Return all numbers of a network with these parameters, those that are not trained too."""
    return {k: x.get(k, v).detach().cpu().contiguous() for k, v in network.state_dict().items()}


def taken_apart(
    predict: Predictor, about: Description, network: str
) -> tuple[Description, dict[str, Tensor]] | None:
    """Return a model as a description and numbers; None: it is something of a method's own.

    Args:
        predict: what a method answers with
        about: what is known of its inputs and classes
        network: the word that names the network
    """
    if isinstance(predict, Nearest):
        own = replace(about, kind="prototypes", network=network, radius=predict.radius)
        parts = _numbers(predict.network) | {POINTS: predict.points, KNOWN: predict.known}
        return own, {k: v.detach().cpu().contiguous() for k, v in parts.items()}
    if isinstance(predict, OfFeatures):
        # features of the experiment are its own: what it is put together from takes inputs
        word = anywhere(predict.features)
        own = replace(about, kind="features", network="", features=word, front="")
        return own, {f"{HEAD}{k}": v.contiguous() for k, v in predict.x.items()}
    if isinstance(predict, nn.Module):
        return replace(about, network=network), _numbers(predict)
    return None


def _numbers(network: nn.Module) -> dict[str, Tensor]:
    return whole_network(network, Params({}))


def put_together(
    about: Description, numbers: Mapping[str, Tensor], network: str = "", front: str = ""
) -> Ready:
    """Return a model from its description and numbers.

    Args:
        about: the description
        numbers: of the same file
        network: the word to load the network by, where that is not the one in the description
        front: the same of features in front of it
    """
    try:
        return Ready(_answers(about, dict(numbers), network, front), about, front).eval()
    except (RuntimeError, KeyError, ValueError, TypeError) as e:
        why = " ".join(str(e).split())[:200]
        raise BadInput(f"model: its numbers do not fit its description ({why})") from None


def _answers(about: Description, numbers: dict[str, Tensor], network: str, front: str) -> nn.Module:
    if about.kind == "features":
        x = Params({k.removeprefix(HEAD): v for k, v in numbers.items()})
        scaling = Scaling(about.mean, about.std)
        return OfFeatures(x, network or about.features, about.shape, scaling)
    shape = shape_of(front or about.front or NONE, about.shape)
    made = build(network or about.network, shape, len(about.classes), about.seed)
    if about.kind == "network":
        made.load_state_dict(numbers)
        return made.eval()
    points = Prototypes(numbers.pop(POINTS), numbers.pop(KNOWN))
    made.load_state_dict(numbers)
    return Nearest(made, points, about.radius)


def read_description(text: str | bytes, where: object) -> Description:
    """Return a description from JSON, or refuse it."""
    try:
        raw: Json = json.loads(text)
        about: Description = validated(Description, raw)
    except (ValueError, AttributeError, RecursionError) as e:
        raise BadInput(f"'{where}': not the description of a model ({e})") from None
    if about.format != FORMAT:
        raise BadInput(f"'{where}': format = {about.format}: this version reads {FORMAT}")
    if not about.classes or not all(side > 0 for side in about.shape):
        raise BadInput(f"'{where}': shape = {about.shape}, {len(about.classes)} classes: none")
    try:
        _check(about)
    except BadInput as e:
        raise BadInput(f"'{where}': {e}") from None
    return about


def _check(about: Description) -> None:
    """Refuse a description that contradicts itself."""
    if (table := about.table) and (table.task, table.classes) != (about.goal, about.classes):
        raise BadInput("its schema predicts something else than the model")
    if about.order and sorted(about.order) != list(range(len(about.classes))):
        raise BadInput(f"order = {str(about.order)[:80]}: must have each class once")
    channels = about.shape[0] if len(about.shape) == 3 else 1
    for name, values in {"mean": about.mean, "std": about.std}.items():
        good = all(math.isfinite(v) and (name == "mean" or v > 0) for v in values)
        if len(values) not in (1, channels) or not good:
            raise BadInput(f"{name} = {str(values)[:80]}: must be a number for each channel")


def to_bytes(about: Description, numbers: Mapping[str, Tensor]) -> bytes:
    """Return one safetensors file with everything in it."""
    return save_tensors(dict(numbers), metadata={KEY: about.to_json()})


def tensors_from(blob: bytes, where: object) -> dict[str, Tensor]:
    """Return the numbers of a safetensors file, or refuse it."""
    try:
        return load_tensors(blob)
    except (SafetensorError, ValueError, TypeError) as e:
        raise BadInput(f"'{where}': not a safetensors file ({e})") from None


def read_file(file: Path) -> tuple[Description, dict[str, Tensor]]:
    """Return what a model file that was exported holds."""
    try:
        with safe_open(str(file), framework="pt") as opened:
            said = (opened.metadata() or {}).get(KEY)
        blob = file.read_bytes()
    except OSError as e:
        raise BadInput(f"'{file}': cannot be read ({e.strerror or e})") from None
    except SafetensorError as e:
        raise BadInput(f"'{file}': not a safetensors file ({e})") from None
    if said is None:
        raise BadInput(
            f"'{file}': does not say what it is; give the folder of the run, or a file "
            "that `tacit export --to safetensors` wrote"
        )
    return read_description(said, file), tensors_from(blob, file)
