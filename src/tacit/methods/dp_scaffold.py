"""DP-SCAFFOLD (Noble et al. 2022, Algorithm 1): SCAFFOLD whose local steps are DP-SGD.

`certified`: the clients' variates are made of the same noised gradients, so they cost nothing more
and may leave the client; the shared model and the variates go up as in `scaffold`, whose task this
is. Given `sgd.epsilon`, the noise is solved. `paper`: as in the authors' code, each tensor of each
example's gradient is clipped to the median norm in its batch, which is of fixed size, and gets
noise 2 sigma C/B with sigma = `sgd.z`. A clip that follows the data bounds nothing: the ledger says
inf. Its warm start is in dp_scaffold_warm.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tacit.core import Client, Cohort, Params, Reply, task
from tacit.local.median_clip import noisy_steps
from tacit.local.sgd import SGD
from tacit.methods.dp_scaffold_settings import Settings, claimed_steps
from tacit.methods.dp_scaffold_warm import Start
from tacit.methods.scaffold import Scaffold, State, Update, stepped


@dataclass(frozen=True)
class DPScaffold(Settings):
    def init(self, x0: Params) -> State:
        return Start(x0, c=x0.zeros()) if self.warm else State(x0, c=x0.zeros())

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        if self.mode == "certified":
            same = Scaffold(self.rounds, self.per_round, self.sgd, self.server_lr)
            yield from same.run(cohort, s)
            return
        N = len(cohort.everyone)
        if isinstance(s, Start) and not s.warm:
            s = s.warmed(cohort, self.sgd)
            yield s
        for t in range(s.round, self.rounds):
            replies = cohort.ask(train(x=s.x, c=s.c, sgd=self.sgd), self.participants(cohort, t))
            s = stepped(cohort, s, replies, self.server_lr, N)
            yield s


@task
def train(me: Client, x: Params, c: Params, sgd: SGD) -> Reply[Update]:
    c_i: Params = me.kept.get("c", c.zeros())
    drift = c - c_i
    release = claimed_steps(me)
    plain = replace(sgd, clip=0.0, z=0.0, steps=sgd.steps_on(me.size))
    y, K = plain.fit(
        me,
        x,
        grad=lambda g, y: g + drift,
        gradients=lambda weights: noisy_steps(me, weights, plain, sgd.z, release),
    )
    y = y.as_released()  # as far as the paper goes
    c_plus = (x - y) / (sgd.reach(K) * sgd.lr_in(me.round)) - drift
    return Reply(Update(dy=y - x, dc=c_plus - c_i), keep={"c": c_plus})
