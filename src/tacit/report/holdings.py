"""Who holds what, worked out again from the setting of a run, where that may be shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tacit import data
from tacit.core import BadInput
from tacit.data.federated import federate
from tacit.data.files import FILES, data_folder, locate
from tacit.data.splits import clients_of, is_own_split
from tacit.report.reading import RunFacts


@dataclass(frozen=True)
class Holdings:
    """How many training examples of each class each client has."""

    title: str
    clients: list[str]
    classes: list[str]
    counts: NDArray[np.int64]


def holdings_of(runs: Sequence[RunFacts]) -> Holdings | None:
    """Return who held what in the first run, if its data are a public set that is on this machine.

    What is said of own data would leave with the report, and no line of a ledger allows it; what
    sites hold, nobody but they know. Splits by code of the user's own are not run here.
    """
    if not runs:
        return None
    c = runs[0].config
    name, split, clients, seed = (c.get(key) for key in ("data", "split", "clients", "seed"))
    known = isinstance(name, str) and _on_this_machine(name)
    plain = isinstance(split, str) and isinstance(clients, int) and isinstance(seed, int)
    if not (known and plain) or is_own_split(str(split)):
        return None
    return _held(str(name), str(split), int(clients or 0), int(seed or 0))


@lru_cache(maxsize=8)
def _held(name: str, split: str, clients: int, seed: int) -> Holdings | None:
    try:
        dataset = data.load(name)
        made = federate(dataset, split, clients=clients_of(split, clients), seed=seed)
    except BadInput:  # an older version may have written what this one refuses
        return None
    title = f"{name}, {split}, seed {seed}"
    return Holdings(title, list(made.everyone), list(dataset.classes), made.counts())


def _on_this_machine(name: str) -> bool:
    """Tell whether a public data set can be read without a download."""
    if name in FILES:
        return all(locate(file, data_folder()) is not None for file in FILES[name])
    return name in data.KNOWN  # part of the package
