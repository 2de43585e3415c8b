"""The model of a run as a file for other programs: ONNX, torch.export, or safetensors."""

from __future__ import annotations

import io
import logging
import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from tacit.codec import write_atomically
from tacit.core import BadInput, check
from tacit.experiment.model_file import Description, Ready, taken_apart, to_bytes
from tacit.experiment.result import Run
from tacit.privacy import show_epsilon

Format = Literal["onnx", "torch", "safetensors"]
SUFFIX: dict[Format, str] = {"onnx": ".onnx", "torch": ".pt2", "safetensors": ".safetensors"}
EXAMPLES = 7  # that a model is followed with: no number that means anything else in it
REVEALS = "this file may reveal training examples"


def cost_in_words(run: Run, client: str | None) -> str:
    """Say what whoever gets a model may learn of those whose data it was trained on."""
    if client is not None:
        return f"eps inf: a client's own model, which no mechanism has released; {REVEALS}"
    unit, _ = run.experiment.method.protects
    spent = run.costing("public")
    if spent == math.inf:
        return f"eps inf: {REVEALS} ({run.why})"
    delta = run.experiment.setting.delta
    return f"eps {show_epsilon(spent)} for one {unit} against whoever gets it, delta {delta:g}"


def format_of(file: Path) -> Format:
    """Return the format that a file's name asks for."""
    for name, suffix in SUFFIX.items():
        if file.suffix == suffix:
            return name
    raise BadInput(f"file = '{file}': must end with {', '.join(SUFFIX.values())}")


def export(model: Ready, file: Path, to: Format, privacy: str = "") -> Path:
    """Write a model, the scaling of its inputs included; inputs are single-precision numbers.

    Args:
        model: as :func:`tacit.load` returns it
        file: where it goes
        to: the format
        privacy: what its training has cost, in words, to stand in the file
    """
    check.choice("to", to, get_args(Format))
    about = replace(model.description, privacy=privacy)
    write: Callable[[Ready, Description], bytes] = {
        "onnx": _onnx,
        "torch": _torch,
        "safetensors": _safetensors,
    }[to]
    blob = write(model, about)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, blob)
    except OSError as e:
        raise BadInput(f"out = '{file}': cannot be written ({e.strerror})") from None
    return file


def _safetensors(model: Ready, about: Description) -> bytes:
    known = taken_apart(model.answers, about, about.network)
    if known is None:
        raise BadInput(
            "to = 'safetensors': this model is a method's own code; allowed: onnx, torch"
        )
    return to_bytes(*known)


def _example(model: Ready) -> Tensor:
    """Return inputs to follow a model with; what it computes once is computed before that."""
    x = torch.zeros(EXAMPLES, *model.description.shape)
    with torch.no_grad():
        model(x)
    return x


def _torch(model: Ready, about: Description) -> bytes:
    """Return a program of torch.export, which needs neither this package nor pickled code."""
    made = _followed(model)
    blob = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of torch about its own parts
        torch.export.save(made, blob, extra_files={"tacit.json": about.to_json()})
    return blob.getvalue()


def _followed(model: Ready) -> torch.export.ExportedProgram:
    x = _example(model)
    try:
        # a product whose order is chosen by the number of examples would hold for that number only
        fixed = torch.backends.opt_einsum.flags(enabled=False)
        with torch.no_grad(), fixed, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            many = torch.export.Dim("examples")
            return torch.export.export(model, (x,), dynamic_shapes=({0: many},), strict=False)
    except Exception as e:  # the network may be the user's own: anything can happen
        why = " ".join(str(e).split())[:200]
        raise BadInput(
            f"export: torch cannot follow this model ({type(e).__name__}: {why}); "
            "--to safetensors keeps its numbers"
        ) from None


def _hypot(a: Tensor, b: Tensor) -> Tensor:
    """Return what ONNX has no word for."""
    return (a.square() + b.square()).sqrt()


def _onnx(model: Ready, about: Description) -> bytes:
    try:
        import onnxscript  # noqa: F401  # what torch writes with
    except ImportError:
        raise BadInput("export: needs the packages onnx and onnxscript: tacit[onnx]") from None
    more = {**torch.export.default_decompositions(), torch.ops.aten.hypot.default: _hypot}
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it misses packages nobody needs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of torch about its own parts
        try:
            made = torch.onnx.export(
                _followed(model).run_decompositions(more),
                (_example(model),),
                dynamo=True,
                input_names=["inputs"],
                output_names=["scores"],
                verbose=False,
            )
        except torch.onnx.OnnxExporterError as e:
            why = " ".join(str(e).split())[:200]
            raise BadInput(f"to = 'onnx': cannot be written ({why}); --to torch may do") from None
    assert made is not None
    proto = made.model_proto
    note = proto.metadata_props.add()
    note.key, note.value = "tacit", about.to_json()
    blob: bytes = proto.SerializeToString()
    return blob
