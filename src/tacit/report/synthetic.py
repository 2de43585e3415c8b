"""A private synthetic data set in a folder: its certificate and a sheet of its samples."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path

from tacit.privacy import show_epsilon
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


def _picture(file: Path) -> str:
    try:
        blob = file.read_bytes() if file.stat().st_size <= MOST_BYTES else b""
    except OSError:
        return ""
    is_png = blob.startswith(b"\x89PNG")
    return f"data:image/png;base64,{base64.b64encode(blob).decode()}" if is_png else ""
