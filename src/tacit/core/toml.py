"""Plain values as TOML writes them."""

from __future__ import annotations

import json


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
