"""Choosing among runs: by public data instead of the test data, and what it costs.

Whoever looks at several runs and keeps the best has released something of all of them, so the cost
is that of all together. (Papernot and Steinke 2022 have a smaller one where the number of runs is
drawn at random; a grid is not.)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import torch

from tacit import privacy
from tacit.core import BadInput, Ledger, Sampling
from tacit.data.examples import Dataset
from tacit.data.new_inputs import Wanted, as_wanted
from tacit.experiment.config import Setting, dataset_of, found_anywhere
from tacit.experiment.result import Run
from tacit.experiment.scoring import CHUNK
from tacit.experiment.signs import warn_of
from tacit.privacy.accounting import bill_epsilon, bills
from tacit.privacy.bill import Part


@dataclass(frozen=True)
class Validation:
    """How good the runs of each point are on public data, in the points' order."""

    name: str
    records: int
    accuracy: list[float]  # the mean over a point's runs; nan: there is no model

    @property
    def best(self) -> int:
        """The number of the point that is best there."""
        there = [-math.inf if math.isnan(a) else a for a in self.accuracy]
        return there.index(max(there))


def public_data(word: str, setting: Setting, dataset: Dataset) -> Dataset:
    """Return the data that a sweep is validated on; they must fit those that it trains on."""
    if found_anywhere(setting).data == found_anywhere(_at(setting, word)).data:
        raise BadInput(f"validate = {word!r}: must be other data than those that are trained on")
    found = dataset_of(_at(setting, word))
    if found.goal != "classes" or dataset.goal != "classes":
        raise BadInput("validate: chooses by accuracy, so labels must be classes")
    for what, theirs, ours in (
        ("inputs of shape", found.shape, dataset.shape),
        ("classes", found.classes, dataset.classes),
    ):
        if theirs != ours:
            raise BadInput(f"validate = {word!r}: has {what} {theirs}, must have {ours}")
    wanted = Wanted(dataset.shape, pixels=dataset.train.x.dtype == torch.uint8)
    as_wanted(found.train.x, wanted, f"validate = {word!r}")  # as models take them, before any runs
    _refuse_own(word, found, dataset)
    return found


def _refuse_own(word: str, found: Dataset, dataset: Dataset) -> None:
    """Refuse what is called public and is the run's own data, whatever their file is called."""
    own, theirs = _records(dataset), _records(found)
    known = sum(n for record, n in theirs.items() if record in own)
    if known == theirs.total():
        raise BadInput(
            f"validate = {word!r}: each of its {known:,} records is one that is trained or tested "
            "on, so they are not public; must be other data"
        )
    if known:
        some = f"{known:,} of its {theirs.total():,} records"
        warn_of(
            [
                f"validate = {word!r}: {some} are like ones that are trained or tested on; if they "
                "are the same, no eps covers choosing by them"
            ]
        )


def _records(data: Dataset) -> Counter[bytes]:
    """Return what tells each record from others, and how often it is there."""
    parts = [part for part in (data.train, data.test) if len(part)]
    pairs = ((p.x.flatten(1).numpy(), p.y.numpy()) for p in parts)
    return Counter(
        blake2b(x.tobytes() + y.tobytes(), digest_size=16).digest()
        for xs, ys in pairs
        for x, y in zip(xs, ys, strict=True)
    )


def _at(setting: Setting, word: str) -> Setting:
    return replace(setting, data=word)


def validated_on(public: Dataset, points: Sequence[Sequence[Run]]) -> Validation:
    """Score the runs of each point on all records of public data."""
    x, y = torch.cat([public.train.x, public.test.x]), torch.cat([public.train.y, public.test.y])
    each = [[_accuracy(run, x, y) for run in runs] for runs in points]
    return Validation(public.name, len(y), [sum(of) / len(of) for of in each])


def _accuracy(run: Run, x: torch.Tensor, y: torch.Tensor) -> float:
    try:
        model = run.model()
    except BadInput:  # it has stopped before there was one, or every client has its own
        return math.nan
    parts = zip(torch.split(x, CHUNK), torch.split(y, CHUNK), strict=True)
    right = [model.predict(a) == b for a, b in parts]
    return float(torch.cat(right).float().mean())


def together(runs: Sequence[Run], delta: float) -> float:
    """Return the epsilon of several runs on the same data, for one unit of what they protect.

    Infinite where no such unit is the same in all runs: a client whose records another seed deals
    to others, or a record that is public in one run and not in another. Who holds a record differs
    between seeds, so where a run charges its clients unlike, it counts with its own epsilon at an
    even share of delta, and they are added. Clients are drawn by the seed, alike in runs of the
    same one: that they are drawn at all is no help then. Infinite, too, where clients answer with
    models of their own, which no noise protects: how good these are tells of their records.
    """
    unit, observer = runs[0].experiment.method.protects
    methods = [run.experiment.method for run in runs]
    if any(m.answers == "personal" for m in methods):
        return math.inf
    dealt = {(s.seed, s.split, s.clients) for s in (run.experiment.setting for run in runs)}
    same = len(dealt) == 1
    if any(m.protects != (unit, observer) for m in methods):
        return math.inf
    if not same and (unit == "client" or any(m.needs_public for m in methods)):
        return math.inf
    ledgers = [_without_lots(run.ledger) if len(runs) > 1 else run.ledger for run in runs]
    each = [set(bills(ledger, unit=unit, observer=observer).values()) for ledger in ledgers]
    if not all(each):
        return math.inf
    if any(len(kinds) > 1 for kinds in each):
        own = delta / len(runs)
        return sum(
            privacy.epsilon(ledger, unit=unit, observer=observer, delta=own, quick=True)
            for ledger in ledgers
        )
    parts: Counter[Part] = Counter()
    for (bill,) in each:
        parts.update(dict(bill))
    return bill_epsilon(frozenset(parts.items()), "zero-out", delta, quick=True)


def _without_lots(ledger: Ledger) -> Ledger:
    """Return a ledger in which clients were not drawn by lot; examples in a batch still are."""
    return Ledger(
        replace(line, sampling=Sampling()) if line.unit == "client" else line for line in ledger
    )
