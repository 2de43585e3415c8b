"""UDP (Wei et al. 2022, Algorithm 1): client-level privacy against the server, one eps in all.

`paper`: local SGD whose gradients are clipped to C example by example, then noise of
(2 eta C/|D|) sqrt(2 q T ln(1/delta)) / eps on the update. That is the sensitivity of one full-batch
step to one example, not of a client's training to all its data: the ledger says inf.
`certified`, ours: each client clips its update to C and adds noise; a round's noise follows from
what is left of eps and of the rounds, so that the total is eps however often a client took part
(equal shares of mu^2). The paper's discounting of rounds (CRD) is in udp_discount.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tacit.core import Client, Cohort, Params, Reply, task
from tacit.methods.dp_fedavg import Update
from tacit.methods.fedavg import State
from tacit.methods.udp_discount import Discounting, discounted
from tacit.methods.udp_settings import EqualShares, Settings


@dataclass(frozen=True)
class UDP(Settings):
    def init(self, x0: Params) -> State:
        return State(x0) if self.discount == 1 else Discounting(x0, T=self.rounds)

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        if isinstance(s, Discounting):
            yield from discounted(self, cohort, s)
            return
        N = len(cohort.everyone)
        q = (self.per_round or N) / N
        for t in range(s.round, self.rounds):
            call = train(x=s.x, method=self, left=self.rounds - t, q=q, delta=cohort.delta)
            replies = cohort.ask(call, self.participants(cohort, t))
            s = State(x=s.x + cohort.mean(r.dx for r in replies), round=t + 1)
            yield s


@task
def train(me: Client, x: Params, method: UDP, left: int, q: float, delta: float) -> Reply[Update]:
    rule = method.rule(me.id, me.size, left, delta, q)
    if not isinstance(rule, EqualShares):
        y, _ = method.sgd.fit(me, x, bound=method.clip)
        return Reply(Update(method.published(me.size, q, delta).send(me, y - x)))
    y, _ = method.sgd.fit(me, x)
    share = replace(rule, mu2=me.kept.get("mu2", rule.mu2), left=left)
    return Reply(Update(share.now().send(me, y - x)), keep={"mu2": share.next().mu2})
