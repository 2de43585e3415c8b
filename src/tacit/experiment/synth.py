"""A private synthetic copy of a data set, with a certificate of what it cost.

No federation, one owner.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from torch import nn

from tacit import codec, privacy
from tacit.core import BadInput, Client, Json, Keywords, Ledger, Noise, check, rng_for
from tacit.data.examples import Dataset, Examples
from tacit.data.federated import LocalData
from tacit.engines.store import to_json
from tacit.experiment.samples import SAMPLES, write_samples
from tacit.privacy.rules import Open
from tacit.synthesis.labels import cut, pls, shares, spelled_out
from tacit.synthesis.source import Source


@dataclass(frozen=True)
class Synthetic:
    """Examples that are nobody's, and what was released on the way to them."""

    examples: Examples
    ledger: Ledger
    delta: float

    def epsilons(self) -> dict[str, float]:
        """Return the certified epsilon for one example, by relation."""
        how: Keywords = {"unit": "example", "observer": "server", "delta": self.delta}
        return {r: privacy.epsilon(self.ledger, relation=r, **how) for r in privacy.RELATIONS}


def synthesise(
    dataset: Dataset,
    source: Source,
    *,
    samples: int = 0,
    delta: float = 1e-5,
    seed: int = 0,
    noise: Noise = "os",
    watch: Callable[[int, int], object] | None = None,
) -> Synthetic:
    """Fit a generator to a training set and draw ``samples``, by default about as many."""
    check.number("samples", samples, at_least=0, whole=True)
    check.number("delta", delta, above=0, below=1)
    data = LocalData(dataset.train, np.arange(len(dataset.train)), dataset.mean, dataset.std)
    rng, classes = rng_for(seed, "synth"), len(dataset.classes)
    me = Client(
        dataset.name, 0, data, data, nn.Identity(), {}, rng, noise, task="synth", classes=classes
    )
    if dataset.inferred:
        Open("classes", "the classes are those found in the data, not stated ones").note(me)
    fitted = source.fit(me, delta, watch)
    counts = fitted.counts
    if counts is None:  # the paper's way
        counts = pls(me, classes=classes, gamma=1.0, epsilon=source.label_epsilon)
    n = samples or round(float(np.sum(counts.value)))
    if n < 1:
        raise BadInput("samples = 0: the noisy counts are all zero; say how many you want")
    labels = counts.map(lambda noisy: spelled_out(cut(n, shares(noisy))))
    drawn = fitted.draw(labels, rng)
    return Synthetic(Examples(drawn.value, labels.value), me.spent, delta)


def save(made: Synthetic, dataset: Dataset, source: Source, folder: Path) -> Json:
    """Write ``synthetic.npz`` and its ``certificate.json``; return the certificate."""
    folder.mkdir(parents=True, exist_ok=True)
    blob = write_samples(folder, made.examples, dataset.classes)
    certificate = {
        "file": SAMPLES,
        "sha256": hashlib.sha256(blob).hexdigest(),
        "samples": len(made.examples),
        "data": dataset.name,
        "unit": "example",
        "delta": made.delta,
        "epsilon": {k: "inf" if v == math.inf else v for k, v in made.epsilons().items()},
        "why": privacy.reason(made.ledger),
        "releases": [to_json(line) for line in made.ledger],
        "settings": asdict(source),
    }
    codec.write_atomically(
        folder / "certificate.json", (json.dumps(certificate, indent=1) + "\n").encode()
    )
    return certificate
