"""predict, export: use what was trained, on new data here or in another program."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol

import tyro
from torch import Tensor

from tacit.cli.flags import parse
from tacit.codec import write_atomically
from tacit.core import BadInput
from tacit.core.data import Goal
from tacit.data.columns import own_encoder
from tacit.data.new_inputs import NewInputs, read_new
from tacit.experiment.exporting import SUFFIX, Format, cost_in_words, export
from tacit.experiment.model_file import Ready
from tacit.experiment.result import Run
from tacit.experiment.trained import load

FEW = 20  # inputs from which on it is worth a word that all get the same answer


GIVES: dict[Goal, str] = {
    "classes": "scores",
    "regression": "numbers, in the labels' own units",
    "multilabel": "scores, above 0 for yes",
}


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
    head, rows = answers(model, new.x)
    text = as_csv(new, head, rows)
    if given.out is None:
        sys.stdout.write(text)
    else:
        write(given.out, text.encode())
        print(f"{len(rows):,} answers in {given.out}")
    if said := all_alike([row[0] for row in rows], model):
        print(f"warning: {said}", file=sys.stderr)


def answers(model: Ready, x: Tensor) -> tuple[list[str], list[list[str]]]:
    """Return the names of columns and a row for each input: what it is, and how likely."""
    names, about = list(model.classes), model.description
    if about.goal == "regression":
        return names, [[f"{v:.6g}" for v in row] for row in model.predict(x).tolist()]
    shares = model.predict_proba(x)
    likely = [[f"{p:.6f}" for p in row] for row in shares.tolist()]
    if about.goal == "classes":
        best = [[names[i]] for i in shares.argmax(1).tolist()]
        head = ["label"]
    else:
        yes = (shares > 0.5).long().tolist()
        best = [[about.answer(i, v) for i, v in enumerate(row)] for row in yes]
        head = names
    rows = [[*b, *p] for b, p in zip(best, likely, strict=True)]
    return [*head, *(f"p({name})" for name in names)], rows


def as_csv(new: NewInputs, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table: which input, and what is answered for it."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow([new.kind, *head])
    table.writerows([name, *row] for name, row in zip(new.names, rows, strict=True))
    return text.getvalue()


def all_alike(best: Sequence[str], model: Ready) -> str:
    """Say that all of many inputs get one class, or one number; nothing if they do not."""
    if len(best) < FEW or len(set(best)) > 1 or model.description.goal == "multilabel":
        return ""
    return (
        f"every one of {len(best)} inputs is {best[0]!r}: are they scaled as the data that the "
        "model was trained on, and was it any good there (`tacit report`)?"
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
    what = GIVES[about.goal]
    print(f"{file}: takes numbers of shape (n, {shape}){how}, gives {len(about.classes)} {what}")
    print(said)
