"""TOML: plain values as it writes them, and files that are read with one-line refusals."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tacit.core.errors import BadInput
from tacit.core.loose import Json

T = TypeVar("T")


def read_toml(file: Path, make: Callable[[Json], T], place: str = "") -> T:
    """Return what a file says, made into something; whatever is wrong with it names the file.

    Args:
        file: what to read
        make: from plain values; its refusals are about the file's contents
        place: the setting that names the file, where one does
    """
    try:
        return make(tomllib.loads(file.read_text(encoding="utf-8")))
    except OSError as e:
        raise BadInput(f"{place or file}: cannot be read ({e.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise BadInput(f"{place or file}: not TOML ({e})") from None
    except BadInput as e:
        raise BadInput(f"{file}: {e}") from None


def toml_value(v: object) -> str:
    """Return a value as it stands behind an equals sign.

    >>> toml_value(["a", 1.5, True])
    '["a", 1.5, true]'
    """
    if isinstance(v, bool):
        return str(v).lower()
    if isinstance(v, str):
        return json.dumps(v, ensure_ascii=False)  # its escapes are those of TOML
    if isinstance(v, list | tuple):
        return f"[{', '.join(map(toml_value, v))}]"
    return repr(v)
