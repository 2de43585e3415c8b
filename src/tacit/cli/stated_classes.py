"""Data whose classes somebody states, for commands that tell others of them."""

from __future__ import annotations

from tacit.core import BadInput
from tacit.data import Dataset, Reading, load


def load_stated(name_or_path: str, classes: str, reading: Reading | None = None) -> Dataset:
    """Return a data set with the classes of ``--classes``, which own data must have.

    Args:
        name_or_path: a known data set, or the path of own data.
        classes: names with commas between them, a number N for 0..N-1, or ``folders``.
        reading: of a table: which columns, and by which schema, which states the classes.
    """
    dataset = load(name_or_path, classes=classes or None, reading=reading)
    if dataset.schema is not None and dataset.schema.draft:
        raise BadInput(
            "--schema: is a draft: its ranges and categories are of private data; put public ones "
            "in their place and delete the line `draft = true`"
        )
    if dataset.goal != "classes":
        raise BadInput(f"task = {dataset.goal!r}: must be classes, for sites and synthetic copies")
    if dataset.inferred:
        raise BadInput(
            "--classes: needed, since those found in the data would tell of single records; write "
            "--classes NAME,NAME,... (all there can be, in order), or N for 0..N-1, "
            "or folders for those of a folder of images"
        )
    return dataset
