"""How often a property is tried: a third of it in `make test`, all of it in `make slow`."""

import os

from hypothesis import settings

ALL = os.environ.get("TACIT_EXAMPLES") == "all"


def often(examples, **how):
    """Return settings for a property whose examples are dear."""
    return settings(max_examples=examples if ALL else max(5, examples // 3), deadline=None, **how)
