"""What made a run: versions, commit, date and command, for each time that it was started."""

from __future__ import annotations

import json
import platform
import shlex
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

import tacit
from tacit import codec
from tacit.core import Json

FILE = "about.json"
MOST_BYTES = 1_000_000  # of a list that is read


def note_start(folder: Path) -> None:
    """Add a start to the list in a run directory; a list that cannot be read is begun anew."""
    text = json.dumps({"starts": [*starts(folder), this_start()]}, indent=1)
    codec.write_atomically(folder / FILE, (text + "\n").encode())


def starts(folder: Path) -> list[Json]:
    """Return what is known of each start of a run, the first one first."""
    file = folder / FILE
    try:
        if file.stat().st_size > MOST_BYTES:
            return []
        found = json.loads(file.read_text(encoding="utf-8"))["starts"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []
    return found if isinstance(found, list) else []


def this_start() -> Json:
    """Return what runs here and now."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command(sys.argv),
        "tacit": tacit.__version__,
        "commit": commit(Path(tacit.__file__).parents[2]),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
    }


def command(argv: list[str]) -> str:
    """Return the command line of tacit, or the name of the program that called it from Python.

    >>> command(["/usr/bin/tacit", "run", "fedavg", "--out", "my run"])
    "tacit run fedavg --out 'my run'"
    >>> command(["analysis/study.py", "--secret", "x"])
    'study.py'
    """
    name = Path(argv[0]).name if argv else ""
    return shlex.join([name, *argv[1:]]) if name == "tacit" else name


@lru_cache(maxsize=8)
def commit(root: Path) -> str | None:
    """Return the commit of the checkout that the package runs from, if it does.

    With "-dirty" where files differ from it.
    """
    git = shutil.which("git")
    if git is None or not (root / ".git").exists():
        return None
    asked = [git, "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
