"""predict, export: use what was trained, on new data here or in another program."""

from __future__ import annotations

import csv
import io
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol

import tyro
from torch import Tensor

from tacit.cli.flags import parse
from tacit.codec import write_atomically
from tacit.core import BadInput
from tacit.data.columns import own_encoder
from tacit.data.new_inputs import NewInputs, read_new
from tacit.experiment.exporting import SUFFIX, Format, cost_in_words, export
from tacit.experiment.model_file import Ready
from tacit.experiment.result import Run
from tacit.experiment.trained import load

FEW = 20  # inputs from which on it is worth a word that all get the same answer


class Which(Protocol):
    """Flags that say which model."""

    @property
    def run(self) -> Path: ...
    @property
    def client(self) -> str | None: ...
    @property
    def model(self) -> str: ...
    @property
    def trust_code(self) -> bool: ...


def chosen(given: Which) -> Ready:
    """Return the model that flags name."""
    return load(given.run, client=given.client, model=given.model, trust_code=given.trust_code)


@dataclass(frozen=True)
class PredictFlags:
    """Flags of ``tacit predict``."""

    # the folder of a run, or a file that `tacit export --to safetensors` wrote
    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    # new inputs: a .csv or .parquet table, a .npz with x, an image, or a folder of images
    inputs: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="INPUTS")]
    out: Path | None = None  # where the table of answers goes; default: standard output
    client: str | None = None  # whose model, where each client has its own, such as 3
    model: str = ""  # your own network as file.py:Name, where the run does not keep its source
    # run the network's source that the run keeps, although somebody else has started the run
    trust_code: bool = False
    encoder: str = ""  # your own encoder of texts in a table, as file.py:function


def predict(args: Sequence[str]) -> None:
    """Answer for new inputs."""
    given = parse(
        PredictFlags,
        args or ["--help"],
        prog="tacit predict",
        about="Answer for new inputs with a trained model: labels and probabilities, as CSV.",
        examples=["tacit predict runs/mine new.csv --out predictions.csv"],
    )
    model = chosen(given)
    new = read_new(given.inputs, model.description.wanted, own_encoder(given.encoder))
    shares = model.predict_proba(new.x)
    text = as_csv(new, shares, model.classes)
    if given.out is None:
        sys.stdout.write(text)
    else:
        write(given.out, text.encode())
        print(f"{len(shares):,} answers in {given.out}")
    if said := all_alike(shares, model.classes):
        print(f"warning: {said}", file=sys.stderr)


def as_csv(new: NewInputs, shares: Tensor, classes: Sequence[str]) -> str:
    """Return a table: which input, its label, and the probability of each class."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow([new.kind, "label", *(f"p({name})" for name in classes)])
    for name, row, best in zip(new.names, shares.tolist(), shares.argmax(1).tolist(), strict=True):
        table.writerow([name, classes[best], *(f"{p:.6f}" for p in row)])
    return text.getvalue()


def all_alike(shares: Tensor, classes: Sequence[str]) -> str:
    """Say that all of many inputs get one answer; nothing if they do not."""
    counts = Counter(shares.argmax(1).tolist())
    if len(shares) < FEW or len(counts) > 1:
        return ""
    return (
        f"every one of {len(shares)} inputs is {classes[next(iter(counts))]!r}: are they scaled as "
        "the data that the model was trained on, and was it any good there (`tacit report`)?"
    )


def write(file: Path, blob: bytes) -> None:
    """Write a file for the user."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, blob)
    except OSError as e:
        raise BadInput(f"out = '{file}': cannot be written ({e.strerror})") from None


@dataclass(frozen=True)
class ExportFlags:
    """Flags of ``tacit export``."""

    # the folder of a run, or a file that `tacit export --to safetensors` wrote
    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    # onnx: for runtimes of any language; torch: a program of torch.export; safetensors: the
    # numbers, with a description
    to: Format
    out: Path | None = None  # default: model.onnx, model.pt2 or model.safetensors in this folder
    client: str | None = None  # whose model, where each client has its own, such as 3
    model: str = ""  # your own network as file.py:Name, where the run does not keep its source
    # run the network's source that the run keeps, although somebody else has started the run
    trust_code: bool = False


def export_command(args: Sequence[str]) -> None:
    """Write a model for other programs."""
    given = parse(
        ExportFlags,
        args or ["--help"],
        prog="tacit export",
        about="Write a trained model for other programs, the scaling of its inputs included.",
        examples=["tacit export runs/mine --to onnx --out model.onnx"],
    )
    model = chosen(given)
    about = model.description
    own = given.run.is_dir()
    said = cost_in_words(Run(given.run), given.client) if own else about.privacy
    file = export(model, given.out or Path(f"model{SUFFIX[given.to]}"), given.to, said)
    shape = ", ".join(map(str, about.shape))
    how = " (pixels from 0 to 1)" if about.pixels else ""
    print(f"{file}: takes numbers of shape (n, {shape}){how}, gives {len(about.classes)} scores")
    print(said)
