"""Randomness derived from where we are in a run: there is nothing to save, and engines agree."""

from __future__ import annotations

import hashlib
import json

import numpy as np


def seed_for(*path: object) -> int:
    """Return 63 bits derived from a path such as (seed, task, round, client)."""
    digest = hashlib.sha256(json.dumps([str(p) for p in path]).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def rng_for(*path: object) -> np.random.Generator:
    """Return a numpy generator derived from a path."""
    return np.random.default_rng(seed_for(*path))
