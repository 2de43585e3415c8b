"""LDP-FL (Kang and Ji 2022): local differential privacy on every update.

`paper`: E epochs of SGD with every example's gradient clipped to C (algorithm 2), then noise
(2C/m) sqrt(2 q T ln(1/delta)) / eps on the weights. 2C/m is the sensitivity of one averaged
full-batch gradient, not of E epochs, so the ledger says inf. Certified, observer server, K rounds
of a client:
- `gradient`: one full-batch gradient a round, clipped example by example: the only case in which
  2C/m is right;
- `dp-sgd`: local DP-SGD, all its steps accounted together;
- `update`: the whole update clipped to C, noise 2C sqrt(K)/mu: protects the client, not only the
  example. Each client may have its own eps (`epsilons`, dealt out in turn) and, in paper mode,
  its own delta (`deltas`).

The paper's mean is plain. Weighted by size (`weights`), a mean of gradients is that of all records,
and a client with few, whose own mean is noise, harms nobody.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tacit.core import BadInput, Client, Cohort, Params, Reply, task
from tacit.local.gradients import private_step
from tacit.local.sgd import SGD
from tacit.methods import ldp_fl_update as hidden
from tacit.methods.fedavg import Moving, State, Update
from tacit.methods.ldp_fl_settings import Settings
from tacit.privacy.rules import Noised


@dataclass(frozen=True)
class LDPFL(Settings):
    def init(self, x0: Params) -> State:
        return Moving(x0, v=x0.zeros()) if self.server_momentum else State(x0)

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        N = len(cohort.everyone)
        q = (self.per_round or N) / N
        K = self.most_rounds(cohort)
        for t in range(s.round, self.rounds):
            who = self.participants(cohort, t)
            if self.how == "update":
                whole = cohort.ask(hidden.train(x=s.x, method=self, K=K, delta=cohort.delta), who)
                dx = cohort.mean(r.dx for r in whole)
            else:
                call = train(x=s.x, method=self, K=K, q=q, delta=cohort.delta)
                replies = cohort.ask(call, who)
                by_size = self.weights == "size"
                dx = cohort.mean((r.dx, r.n) if by_size else r.dx for r in replies)
            s = s.after(dx, self.server_momentum)
            yield s


@task
def train(me: Client, x: Params, method: LDPFL, K: int, q: float, delta: float) -> Reply[Update]:
    if method.how == "update":
        raise BadInput("mode = 'update': a client's size is not told")
    return Reply(Update(update(me, x, method, K, q, delta), me.size))


def update(me: Client, x: Params, method: LDPFL, K: int, q: float, delta: float) -> Params:
    rule = method.rule(me.id, me.size, K, delta, q)
    if isinstance(rule, SGD):  # every step is released
        y, _ = rule.fit(me, x)
        return y - x
    if isinstance(rule, Noised):  # one gradient
        return private_step(me, x, rule, method.sgd)
    y, _ = method.sgd.fit(me, x, bound=method.C)  # algorithm 2: every data pair
    return rule.send(me, y) - x
