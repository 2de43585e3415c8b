"""Types that leave something open on purpose, each with its reason; nowhere else are they spelt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

# shape and kind of the numbers vary, and numpy's own functions do not tell the checker of them
Array: TypeAlias = np.ndarray[Any, Any]
# an object of JSON or TOML: whoever reads one checks each value, and then has a type for it
Json: TypeAlias = dict[str, Any]
# what a client has kept of a method's own: each task knows what it has put there
Kept: TypeAlias = Mapping[str, Any]
# keywords of a call that are gathered before it is made: each has the type of its parameter
Keywords: TypeAlias = dict[str, Any]
