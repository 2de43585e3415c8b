"""How the server makes one update of many: the mean, or a rule that a few liars cannot move far.

None of them looks at anything but the replies, so none changes what is released: it is
post-processing of what clients send, and costs nothing.

- `trimmed:B` (Yin et al. 2018): in each coordinate, the mean without the share B of the largest and
  of the smallest values.
- `median` (Yin et al. 2018): the median of each coordinate.
- `clipped:TAU` (Karimireddy et al. 2021): the mean of the differences from a centre, each clipped
  to TAU, three times over. The paper's centre is the last round's; here it is the median of each
  coordinate, as nothing but a method's state survives a round.
- `krum:F` (Blanchard et al. 2017): the one update that is nearest to its n - F - 2 neighbours.

All of these count every client alike: a client cannot gain weight by saying that it has more data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.core import check
from tacit.core.errors import BadInput, TooFewReplies
from tacit.core.params import Params, mean

WORDS = ("mean", "trimmed", "median", "clipped", "krum")
STEPS = 3  # of centred clipping


@dataclass(frozen=True)
class Aggregate:
    """A rule, as it is written: `mean`, `trimmed:0.2`, `median`, `clipped:1.0` or `krum:1`."""

    rule: str = "mean"
    amount: float = 0.0

    @classmethod
    def of(cls, word: str) -> Aggregate:
        """Read a rule.

        >>> Aggregate.of("trimmed:0.2")
        Aggregate(rule='trimmed', amount=0.2)
        """
        rule, colon, number = word.partition(":")
        check.choice("aggregate", rule, WORDS)
        if bool(colon) == (rule in ("mean", "median")):
            forms = "mean, trimmed:0.2, median, clipped:1.0 or krum:1"
            raise BadInput(f"aggregate = {word!r}: must be such as {forms}")
        try:
            amount = float(number or 0.0)
        except ValueError:
            raise BadInput(f"aggregate = {word!r}: {number!r} is not a number") from None
        if rule == "trimmed":
            check.number("aggregate: trimmed", amount, above=0, below=0.5)
        if rule == "clipped":
            check.number("aggregate: clipped", amount, above=0, below=math.inf)
        if rule == "krum":
            check.number("aggregate: krum", amount, at_least=0, at_most=1e6, whole=True)
        return cls(rule, amount)

    @property
    def least(self) -> int:
        """How many updates it needs: Krum 2 F + 3, for F liars."""
        return 2 * int(self.amount) + 3 if self.rule == "krum" else 1

    def __call__(self, parts: Iterable[Params | tuple[Params, float]]) -> Params:
        """Return one point for many, or for pairs of a point and its weight in the mean.

        >>> x = [Params(w=torch.tensor([v])) for v in (1.0, 2.0, 3.0, 1e30)]
        >>> [Aggregate.of(a)(x)["w"].item() for a in ("median", "trimmed:0.25", "krum:0")]
        [2.5, 2.5, 2.0]
        """
        if self.rule == "mean":
            return mean(parts)
        points = [p[0] if isinstance(p, tuple) else p for p in parts]
        if len(points) < self.least:
            raise TooFewReplies(
                f"aggregate: {self.rule} needs {self.least} replies, and {len(points)} came"
            )
        rows = torch.stack([_flat(p) for p in points])
        return _shaped(self._one(rows), points)

    def _one(self, rows: Tensor) -> Tensor:
        """Return one row for many."""
        if self.rule == "trimmed":
            k = math.floor(self.amount * len(rows))
            return rows.sort(0).values[k : len(rows) - k].mean(0)
        if self.rule == "median":
            return _median(rows)
        if self.rule == "clipped":
            return _clipped(rows, self.amount)
        return rows[_krum(rows, int(self.amount))]


def _median(rows: Tensor) -> Tensor:
    """Return the median of each column; of an even number, the middle between two."""
    ordered, n = rows.sort(0).values, len(rows)
    return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2


def _clipped(rows: Tensor, tau: float) -> Tensor:
    """Return the centre that is left where no row pulls by more than tau."""
    centre = _median(rows)
    for _ in range(STEPS):
        apart = rows - centre
        norms = apart.norm(dim=1, keepdim=True)
        centre = centre + (apart * (tau / norms.clamp(min=tau))).mean(0)
    return centre


def _krum(rows: Tensor, liars: int) -> int:
    """Return which row is nearest to its neighbours; the first of several."""
    n = len(rows)
    squares = torch.stack([(rows - row).square().sum(1) for row in rows])
    squares.fill_diagonal_(math.inf)  # a row is not its own neighbour
    return int(squares.sort(1).values[:, : max(1, n - liars - 2)].sum(1).argmin())


def _flat(x: Params) -> Tensor:
    """Return all entries in double precision, where squares of single numbers are finite."""
    return torch.cat([v.detach().double().reshape(-1) for v in x.values()])


def _shaped(row: Tensor, points: Sequence[Params]) -> Params:
    """Return a row in the shape of the points that it was made of; released if all of them are."""
    like, at = points[0], 0
    found: dict[str, Tensor] = {}
    for name, v in like.items():
        found[name] = row[at : at + v.numel()].reshape(v.shape).to(v.dtype)
        at += v.numel()
    return Params(found).as_released(all(p.released for p in points))
