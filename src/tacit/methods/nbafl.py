"""NbAFL (Wei et al. 2020, Algorithm 1): clients clip their weights and add noise.

The server adds noise if needed.

Local training adds mu/2 ||w - x||^2 to the loss. `paper`: uplink noise c L (2C/m) / eps, c = sqrt(2
ln(1.25/delta)), m the size of the smallest client; the mean weighs clients by their sizes (p_i);
downlink noise 2 c C sqrt(T^2/b^2 - L^2 K) / (m K eps), b = -(T/eps) ln(1 - N/K + (N/K) e^(-eps/T)),
where K of N clients take part (b = 1 if all do), and none where that is not defined. 2C/m bounds a
mean over m records of clipped quantities, not trained weights, so the ledger says inf. `certified`:
the weights' distance from the shared model is clipped to C and gets the noise that this needs, so
no downlink noise is left to add. Difference from the paper: weights w travel as w - x, which is the
same information and stands compression.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tacit.core import Client, Cohort, Params, Reply, task
from tacit.methods.fedavg import State, Update
from tacit.methods.nbafl_settings import Settings
from tacit.privacy.mechanisms import public_noise


@dataclass(frozen=True)
class NbAFL(Settings):
    def init(self, x0: Params) -> State:
        return State(x0)

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        K = self.most_rounds(cohort)
        for t in range(s.round, self.rounds):
            call = train(x=s.x, method=self, K=K, delta=cohort.delta)
            replies = cohort.ask(call, self.participants(cohort, t))
            if self.mode == "certified":
                x = s.x + cohort.mean(r.dx for r in replies)
            else:
                x = s.x + cohort.mean((r.dx, r.n) for r in replies)  # p_i
                m = self.m or min(r.n for r in replies)
                sd = self.downlink(m, len(replies), len(cohort.everyone), cohort.delta)
                x = public_noise(cohort, x, sd=sd, t=t)
            s = State(x=x, round=t + 1)
            yield s


@task
def train(me: Client, x: Params, method: NbAFL, K: int, delta: float) -> Reply[Update]:
    y, _ = method.sgd.fit(me, x, grad=lambda g, y: g + method.mu * (y - x))
    rule = method.rule(me.id, me.size, K, delta)
    dx = rule.send(me, y) - x if method.mode == "paper" else rule.send(me, y - x)
    return Reply(Update(dx, me.size))
