"""CL-FL's settings, the noise that is solved from them, and what its paper claims."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass, field, replace
from typing import Literal, Self

from tacit.core import BadInput, Claim, Known, Method, Sizes, Times, check
from tacit.local.sgd import SGD
from tacit.methods.ldp_fl_claims import performance_loss
from tacit.privacy import claimed
from tacit.privacy.calibrate import noise_for


@dataclass(frozen=True)
class Settings(Method):
    """What can be set, and what follows from it."""

    protects = ("client", "clients")
    rounds: int = 20  # communication rounds
    per_round: int = 0  # m, clients sampled in each round; 0: everyone
    # certified: with proof; paper: as published, whatever it really spends
    mode: Literal["certified", "paper"] = "certified"
    z: float = 1.0  # noise multiplier sigma, where no epsilon is given
    # solve z so that all rounds cost a client this much, in paper mode by the paper's accountant
    epsilon: float = 0.0
    # paper: keep z, and end before the round with which the paper's accountant would pass epsilon
    stop: bool = False
    clip: float = 1.0  # the first clip; afterwards the median
    sgd: SGD = field(default_factory=SGD)  # local training

    def __post_init__(self) -> None:
        check.rounds(self.rounds, self.per_round)
        check.number("z", self.z, at_least=0)
        check.number("epsilon", self.epsilon, at_least=0)
        if self.stop and (self.mode, self.epsilon > 0, self.z > 0) != ("paper", True, True):
            raise BadInput("stop = true: needs mode = 'paper', epsilon above 0 and z above 0")
        check.clip("clip", self.clip)
        self.sgd.refuse_clip()

    @property
    def prefers_features(self) -> bool:
        return self.mode == "certified"

    def tuned(self, known: Known) -> Self:
        """Choose how many rounds epsilon lasts for, with `stop`: Algorithm 1 ends there."""
        if not self.stop:
            return self
        q = (self.per_round or len(known.sizes)) / len(known.sizes)

        def over(rounds: int) -> bool:
            cost = claimed.moments_epsilon(1 / self.z, rounds, q, delta=known.delta)
            return cost > self.epsilon

        lasts = bisect.bisect_left(range(1, self.rounds + 1), True, key=over)
        if lasts == 0:
            raise BadInput(f"z = {self.z:g}: one round alone costs more than epsilon")
        return replace(self, rounds=lasts)

    def solved(self, sizes: Sizes, times: Times, delta: float) -> Self:
        if not self.epsilon or self.stop:
            return self
        q = (self.per_round or len(sizes)) / len(sizes)
        if self.mode == "certified":
            z = noise_for(self.epsilon, self.rounds, q, delta=delta, law="fixed")
            return replace(self, z=z)
        return replace(self, z=claimed.moments_noise(self.epsilon, self.rounds, q, delta=delta))

    def performance_loss(self, t: int, sizes: Sizes, delta: float) -> float | None:
        z = self.solved(sizes, {}, delta).z
        q = (self.per_round or len(sizes)) / len(sizes)
        return q * performance_loss([1 / z] * len(sizes), t, q) if z else None

    def claims(self, sizes: Sizes, delta: float) -> list[Claim]:
        q = (self.per_round or len(sizes)) / len(sizes)
        z = self.solved(sizes, {}, delta).z
        epsilon = claimed.moments_epsilon(1 / z, self.rounds, q, delta=delta) if z else math.inf
        model = f"Poisson sampling at q = {q:g}, clip treated as public"
        raw = "the clip is the median of the raw norms, so it depends on every client's data"
        return [
            ("moments", epsilon, f"as published, {self.rounds} rounds: {model}"),
            ("certified", math.inf, raw),
        ]
