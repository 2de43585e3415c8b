"""What this processor can do, as far as torch tells."""

from __future__ import annotations

import torch


def capabilities() -> dict[str, object]:
    """Return what torch says of the processor; nothing, where its version cannot say (before 2.11).

    >>> isinstance(capabilities().get("avx2", False), bool)
    True
    """
    said: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return said
