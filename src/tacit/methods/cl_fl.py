"""CL-FL (Geyer et al. 2017, Algorithm 1).

The server clips updates to their median norm and adds noise to the mean.

`paper`: the median is taken in the clear, so the clip, and with it the noise, depends on the data:
the ledger says inf for everybody. `certified` (the default): the median is followed privately
(Andrew et al. 2021), and the fixed-size sample is accounted as what it is, not as a Poisson one.
The server itself sees the raw updates in both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Literal, Self

from tacit.core import Claim, Cohort, Method, Params, Sizes, Times, check, some
from tacit.local.sgd import FOR_CLIENTS, SGD
from tacit.methods.dp_fedavg import State, dx_of, train
from tacit.methods.ldp_fl_claims import performance_loss
from tacit.privacy.calibrate import noise_for
from tacit.privacy.claimed import moments_epsilon, moments_noise
from tacit.privacy.mechanisms import AdaptiveClip
from tacit.privacy.rules import ClaimedMean, NoisyMean


@dataclass(frozen=True)
class CLFL(Method):
    protects = ("client", "clients")
    rounds: int = 20  # communication rounds
    per_round: int = 0  # m, clients sampled in each round; 0: everyone
    # certified: with proof; paper: as published, whatever it really spends
    mode: Literal["certified", "paper"] = "certified"
    z: float = 1.0  # noise multiplier sigma, where no epsilon is given
    # solve z so that all rounds cost a client this much, in paper mode by the paper's accountant
    epsilon: float = 0.0
    clip: float = 1.0  # the first clip; afterwards the median
    sgd: SGD = field(default_factory=SGD)  # local training

    def __post_init__(self) -> None:
        check.rounds(self.rounds, self.per_round)
        check.number("z", self.z, at_least=0)
        check.number("epsilon", self.epsilon, at_least=0)
        check.clip("clip", self.clip)
        self.sgd.refuse_clip(FOR_CLIENTS)

    def solved(self, sizes: Sizes, times: Times, delta: float) -> Self:
        if not self.epsilon:
            return self
        q = (self.per_round or len(sizes)) / len(sizes)
        if self.mode == "certified":
            z = noise_for(self.epsilon, self.rounds, q, delta=delta, law="fixed")
            return replace(self, z=z)
        return replace(self, z=moments_noise(self.epsilon, self.rounds, q, delta=delta))

    def init(self, x0: Params) -> State:
        return State(x0, self.clip)

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        m = float(self.per_round or len(cohort.everyone))
        follow = AdaptiveClip(self.z, out_of=m)
        rule = self.server_rule(cohort.delta)
        for t in range(s.round, self.rounds):
            S_t = cohort.sample(some(self.per_round), t)
            rule.afford(cohort, S_t)
            replies = cohort.ask(train(x=s.x, sgd=self.sgd), S_t)
            norms = [r.dx.norm() for r in replies]
            if isinstance(rule, ClaimedMean):
                clip = median(norms)
                step = rule.send(cohort, replies, dx_of, clip=clip, sd=self.z * clip)
            else:
                how = {"clip": s.clip, "out_of": m, "noise_z": follow.update_z}
                step = rule.send(cohort, replies, dx_of, like=s.x, **how)
                clip = follow.next(cohort, s.clip, [n <= s.clip for n in norms], t)
            s = State(s.x + step, clip, t + 1)
            yield s

    def server_rule(self, delta: float) -> ClaimedMean | NoisyMean:
        """Return the rule of the one thing that is released: the mean, to everybody."""
        if self.mode == "certified":
            return NoisyMean(train.name, some(self.per_round), self.z)
        why = f"the clip is the median of the raw norms; claimed by moments with z = {self.z:g}"
        return ClaimedMean(train.name, why)

    def performance_loss(self, t: int, sizes: Sizes, delta: float) -> float | None:
        z = self.solved(sizes, {}, delta).z
        q = (self.per_round or len(sizes)) / len(sizes)
        return q * performance_loss([1 / z] * len(sizes), t, q) if z else None

    def claims(self, sizes: Sizes, delta: float) -> list[Claim]:
        q = (self.per_round or len(sizes)) / len(sizes)
        z = self.solved(sizes, {}, delta).z
        claimed = moments_epsilon(1 / z, self.rounds, q, delta=delta) if z else math.inf
        model = f"Poisson sampling at q = {q:g}, clip treated as public"
        raw = "the clip is the median of the raw norms, so it depends on every client's data"
        return [
            ("moments", claimed, f"as published, {self.rounds} rounds: {model}"),
            ("certified", math.inf, raw),
        ]
