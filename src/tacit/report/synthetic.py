"""Private synthetic examples, of `tacit synth` or of a run: what they cost, and a sheet of them."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path

from tacit.data.examples import Examples
from tacit.experiment.samples import read_samples
from tacit.privacy import show_epsilon
from tacit.report.metric_lines import plain_json
from tacit.report.pictures import sheet_png
from tacit.report.reading import RunFacts

MOST_BYTES = 1_000_000  # of the picture that goes into a page
MOST_CLASSES = 50  # rows of a sheet


@dataclass(frozen=True)
class Sheet:
    """What a folder shows of its synthetic examples."""

    folder: str
    samples: int
    data: str
    epsilon: str
    why: str
    picture: str  # as a data: address; empty where there is none


def synthetic_in(folder: Path) -> list[Path]:
    """Return the folders of `tacit synth` that a folder is or holds; a run is none."""
    inside = sorted(folder.iterdir()) if folder.is_dir() else []
    return [f for f in (folder, *inside) if _is_synthetic(f)]


def _is_synthetic(folder: Path) -> bool:
    return (folder / "certificate.json").is_file() and not (folder / "config.toml").is_file()


def synthetic_of(folder: Path) -> Sheet | None:
    """Return what a folder shows of its synthetic samples; nothing where it has none."""
    try:
        said = plain_json((folder / "certificate.json").read_text(encoding="utf-8"))
        spent = {str(k): float(v) for k, v in said["epsilon"].items()}
        epsilon = ", ".join(f"{show_epsilon(v)} ({k})" for k, v in spent.items())
        if not spent or not all(v >= 0 for v in spent.values()):
            return None
        made = (int(said["samples"]), str(said["data"]), epsilon, str(said["why"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
    return Sheet(folder.name, *made, _picture(folder / "sheet.png"))


def pool_of(run: RunFacts) -> Sheet | None:
    """Return what a run shows of the samples that its clients have shared; None without any."""
    made = read_samples(run.folder)
    if made is None or not len(made):
        return None
    epsilon = f"{show_epsilon(run.spent)} ({'/'.join(run.protects)}, the whole run)"
    said, data = run.of_features.removeprefix(" of "), str(run.config.get("data"))
    data = f"{said} of {data}" if said else data  # no pictures, then
    return Sheet(run.folder.name, len(made), data, epsilon, run.why, _drawn(run, made))


def _drawn(run: RunFacts, made: Examples) -> str:
    """Return a sheet of images as a data: address; empty where they are no images."""
    x, y = made.x, made.y
    many = int(y.max()) + 1
    images = x.dim() == 4 and x.shape[1] in (1, 3) and x.numel() > 0 and not x.is_complex()
    if not images or int(y.min()) < 0 or many > MOST_CLASSES:
        return ""
    return _address(sheet_png(x, y, run.classes(many)))


def _picture(file: Path) -> str:
    try:
        return _address(file.read_bytes() if file.stat().st_size <= MOST_BYTES else b"")
    except OSError:
        return ""


def _address(blob: bytes) -> str:
    """Return a picture as a data: address; empty if it is no PNG."""
    is_png = blob.startswith(b"\x89PNG")
    return f"data:image/png;base64,{base64.b64encode(blob).decode()}" if is_png else ""
