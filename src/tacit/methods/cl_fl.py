"""CL-FL (Geyer et al. 2017, Algorithm 1).

The server clips updates to their median norm and adds noise to the mean.

`paper`: the median is taken in the clear, so the clip, and with it the noise, depends on the data:
the ledger says inf for everybody. `certified` (the default): the median is followed privately
(Andrew et al. 2021), and the fixed-size sample is accounted as what it is, not as a Poisson one.
The server itself sees the raw updates in both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from tacit.core import Cohort, Params, some
from tacit.methods.cl_fl_settings import Settings
from tacit.methods.dp_fedavg import State, dx_of, train
from tacit.privacy.mechanisms import AdaptiveClip
from tacit.privacy.rules import ClaimedMean, NoisyMean


@dataclass(frozen=True)
class CLFL(Settings):
    def init(self, x0: Params) -> State:
        return State(x0, self.clip)

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        m = float(self.per_round or len(cohort.everyone))
        follow = AdaptiveClip(self.z, out_of=m)
        rule = self.server_rule(cohort.delta)
        for t in range(s.round, self.rounds):
            S_t = self.participants(cohort, t)
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
