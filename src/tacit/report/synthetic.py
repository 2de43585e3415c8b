"""A private synthetic data set in a folder: its certificate and a sheet of its samples."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path

from tacit.report.metric_lines import plain_json

MOST_BYTES = 1_000_000  # of the picture that goes into a page


@dataclass(frozen=True)
class Sheet:
    """What a folder of `tacit synth` shows."""

    folder: str
    samples: int
    data: str
    epsilon: str
    why: str
    picture: str  # as a data: address; empty where there is none


def synthetic_of(folder: Path) -> Sheet | None:
    """Return what a folder shows of its synthetic samples; nothing where it has none."""
    try:
        said = plain_json((folder / "certificate.json").read_text(encoding="utf-8"))
        epsilon = ", ".join(f"{k} {v}" for k, v in said["epsilon"].items())
        made = (int(said["samples"]), str(said["data"]), epsilon, str(said["why"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return Sheet(folder.name, *made, _picture(folder / "sheet.png"))


def _picture(file: Path) -> str:
    try:
        blob = file.read_bytes() if file.stat().st_size <= MOST_BYTES else b""
    except OSError:
        return ""
    is_png = blob.startswith(b"\x89PNG")
    return f"data:image/png;base64,{base64.b64encode(blob).decode()}" if is_png else ""
