"""What a coordinator or a site writes is for the eyes of one account."""

from __future__ import annotations

import os
from pathlib import Path

OTHERS = 0o077


def keep_private(folder: Path) -> None:
    """Let nobody else read what this process and its children write, nor what is there already."""
    os.umask(OTHERS)
    folder.mkdir(parents=True, exist_ok=True)
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink() and path.stat().st_mode & OTHERS:
            path.chmod(path.stat().st_mode & ~OTHERS & 0o777)
