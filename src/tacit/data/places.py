"""A record's place: numbers that follow from the record itself and from a public seed alone.

Where own data are divided, into train and test or over clients, one record more or less must leave
all others where they are. Otherwise neighbouring files are no neighbouring training sets, and no
noise that is measured for one record hides the difference. So nothing here looks at how many
records there are, or at their order.

Of records that are alike, the first, the second and so on have places of their own: with one copy
more, less or other, the places of the others stay taken by as many.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from tacit.core.seeds import seed_for
from tacit.data.examples import Examples

Keys = NDArray[np.uint64]
Places = NDArray[np.float64]


def keys(examples: Examples, classes: Sequence[str], *, seed: int, use: str) -> Keys:
    """Return 64 bits for each record, as good as random and independent of those of other records.

    Args:
        examples: the records.
        classes: the names of the classes. A label counts by its name: its number may change when
            another class appears.
        seed: public; another one gives other bits.
        use: what the bits are for; those of two uses are independent.
    """
    secret = seed_for("record", seed, use).to_bytes(8, "big")
    seen: Counter[bytes] = Counter()
    found = np.empty(len(examples), np.uint64)
    for i, record in enumerate(_digests(examples, classes)):
        counted = record + seen[record].to_bytes(8, "big")
        digest = hashlib.blake2b(counted, digest_size=8, key=secret).digest()
        found[i] = int.from_bytes(digest, "big")
        seen[record] += 1
    return found


def places(examples: Examples, classes: Sequence[str], *, seed: int, use: str) -> Places:
    """Return a number from 0 up to, but not, 1 for each record; arguments as of :func:`keys`."""
    bits = keys(examples, classes, seed=seed, use=use) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53


def _digests(examples: Examples, classes: Sequence[str]) -> Iterator[bytes]:
    """Yield 128 bits that stand for a record: its values as they are stored, and its label."""
    values = examples.x.numpy()
    if values.dtype != np.uint8:
        values = values.astype("<f4") + np.float32(0.0)  # there is one zero, not two
    rows = np.ascontiguousarray(values).reshape(len(values), -1)
    for row, label in zip(rows, _labels(examples, classes), strict=True):
        yield hashlib.blake2b(row.tobytes() + label, digest_size=16).digest()


def _labels(examples: Examples, classes: Sequence[str]) -> list[bytes]:
    """Return each record's label as bytes: the name of its class, or its numbers."""
    if examples.y.is_floating_point():
        return [row.tobytes() for row in examples.y.numpy().astype("<f4") + np.float32(0.0)]
    names = [name.encode() for name in classes]
    return [names[label] for label in examples.y.tolist()]
