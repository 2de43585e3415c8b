"""What is sent in place of an update, and how it is read again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from tacit.compress import binary, sensing
from tacit.compress.rates import check_bounds, dynamic
from tacit.core import BadInput, Params, check

MATRICES = ("binary", "gaussian", "bernoulli")
Rates = Mapping[str, float]  # the rate of each layer, by its name


@dataclass(frozen=True)
class Compressor:
    """A measurement matrix and its rates.

    ``rate`` for every layer, or dynamic ones where that is 0.

    At rate 1 a layer travels as it is, whatever the matrix.

    >>> Compressor.of("binary:0.3")
    Compressor(matrix='binary', rate=0.3, r_max=0.5, r_min=0.2)
    """

    matrix: str = "none"
    rate: float = 0.0
    r_max: float = 0.5
    r_min: float = 0.2

    @classmethod
    def of(
        cls, word: str, r_max: float = 0.5, r_min: float = 0.2, *, field: str = "compress"
    ) -> Compressor:
        """Read ``none``, ``binary:dynamic``, ``gaussian:0.3``, ``bernoulli:dynamic`` and the like.

        Args:
            word: the matrix and its rate
            r_max: the highest dynamic rate
            r_min: the share of the norms below which a layer has little weight
            field: the setting that an error names
        """
        check_bounds(r_max, r_min)
        if word == "none":
            return cls()
        matrix, _, rate = word.partition(":")
        share = 0.0 if rate == "dynamic" else _number(rate)
        if matrix not in MATRICES or share is None:
            raise BadInput(
                f"{field} = {word!r}: must be none, or one of {', '.join(MATRICES)} with a rate, "
                "such as binary:dynamic or binary:0.3"
            )
        if rate != "dynamic":
            check.number(f"rate of {field} = {word!r}", share, above=0, at_most=1)
        return cls(matrix, share, r_max, r_min)

    def rates(self, reference: Params) -> dict[str, float]:
        """Return the rate of each layer.

        Dynamic ones follow from the norms of a public ``reference``.
        """
        if self.matrix == "none":
            return {}
        if self.rate:
            return dict.fromkeys(reference, self.rate)
        return dynamic(reference, self.r_max, self.r_min)

    def compress(self, dx: Params, rates: Rates) -> Params:
        """Return the measurements of each layer: linear in ``dx``, and free to leave if it is."""
        if self.matrix == "none":
            return dx
        return Params({k: self._measure(v, rates[k]) for k, v in dx.items()}).as_released(
            dx.released
        )

    def expand(self, small: Params, like: Params, rates: Rates) -> Params:
        """Return an update of the shape of ``like`` with these measurements."""
        if self.matrix == "none":
            return small
        whole = {
            k: self._rebuild(small[k], v.numel(), rates[k]).view(v.shape) for k, v in like.items()
        }
        return Params(whole).as_released(small.released)

    def _measure(self, x: Tensor, rate: float) -> Tensor:
        if rate == 1:
            return x.detach().reshape(-1)
        return (
            binary.measure(x, rate)
            if self.matrix == "binary"
            else sensing.measure(self.matrix, x, rate)
        )

    def _rebuild(self, y: Tensor, numbers: int, rate: float) -> Tensor:
        if rate == 1:
            return y
        if self.matrix == "binary":
            return binary.rebuild(y, numbers)
        return sensing.recover(self.matrix, y, numbers, rate)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
