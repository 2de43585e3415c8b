"""The released samples of all clients.

How the server gets them, who is handed which, and who takes part then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacit.core import BadInput, Call, Cohort, Law, Released, Sample, TooFewReplies
from tacit.data.examples import Examples, union

AT_ONCE = 8  # clients asked for samples at a time: all that a kill can cost


@dataclass(frozen=True)
class Share:
    """A client's samples."""

    x: Released[Tensor]
    y: Released[Tensor]


def next_shares(cohort: Cohort, call: Call[Share], asked: int) -> tuple[dict[str, Examples], int]:
    """Ask the next few clients for their samples; return these and how many are asked by then."""
    up_to = asked + AT_ONCE
    replies = cohort.ask(call, Sample.of(cohort.everyone[asked:up_to]))
    got = zip(replies.clients, replies, strict=True)
    return {i: Examples(r.x.value, r.y.value) for i, r in got}, up_to


def dealt(
    shares: Mapping[str, Examples], ids: Sequence[str], rng: np.random.Generator | None
) -> dict[str, Examples]:
    """Return each client's part of the pool.

    Args:
        shares: the samples, by the client whose data they are like
        ids: who gets a part
        rng: deals the whole pool out evenly; None: everybody gets all samples but its own
    """
    return others(shares, ids) if rng is None else even(shares, ids, rng)


def others(shares: Mapping[str, Examples], ids: Sequence[str]) -> dict[str, Examples]:
    """Return for each client i the union of S_j, j != i."""
    return {i: union([s for j, s in shares.items() if j != i]) for i in ids}


def even(
    shares: Mapping[str, Examples], ids: Sequence[str], rng: np.random.Generator
) -> dict[str, Examples]:
    """Return the whole pool, shuffled and dealt out.

    It has no secrets, so nothing says who should train on what.
    """
    pool = union(list(shares.values()))
    if len(pool) < len(ids):
        raise BadInput(
            f"gamma: the pool has {len(pool)} samples for {len(ids)} clients; "
            "a larger gamma gives more"
        )
    hands = np.array_split(rng.permutation(len(pool)), len(ids))
    return {i: pool.take(torch.from_numpy(rows)) for i, rows in zip(ids, hands, strict=True)}


class Joined:
    """A cohort in which only those take part that have their pool.

    The others would train on something else.
    """

    def __init__(self, cohort: Cohort, ids: tuple[str, ...]) -> None:
        self.cohort = cohort
        self.ids = ids

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cohort, name)

    def sample(self, law: Law, round: int) -> Sample:
        """Return those of a sample that have their pool."""
        S = self.cohort.sample(law, round)
        ids = tuple(i for i in S.ids if i in self.ids)
        if S.ids and not ids:
            raise TooFewReplies(
                f"round {round + 1}: none of the sampled clients has its part of the pool"
            )
        return replace(S, ids=ids)
