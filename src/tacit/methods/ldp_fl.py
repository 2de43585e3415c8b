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
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tacit.core import (
    Claim,
    Client,
    ClientId,
    Cohort,
    Params,
    Reply,
    Sizes,
    most_rounds,
    some,
    task,
)
from tacit.local.sgd import SGD, clipped_gradient
from tacit.methods import ldp_fl_claims as paper
from tacit.methods.dp_fedavg import Update as Sent
from tacit.methods.fedavg import Moving, State
from tacit.methods.ldp_fl_settings import Settings
from tacit.privacy.claimed import other_of
from tacit.privacy.gdp import gdp_mu
from tacit.privacy.rules import AsPublished, Noised
from tacit.privacy.updates import UpdateRule, update_rule


@dataclass(frozen=True)
class LDPFL(Settings):
    def check_inputs(self, shape: tuple[int, ...]) -> None:
        if self.mode == "update":
            update_rule(self.mechanism, "ldp_fl update", self.clip, 1.0)

    def init(self, x0: Params) -> State:
        return Moving(x0, v=x0.zeros()) if self.momentum else State(x0)

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        N = len(cohort.everyone)
        q = (self.per_round or N) / N
        K = most_rounds(cohort, some(self.per_round), self.rounds)
        for t in range(s.round, self.rounds):
            call = train(x=s.x, method=self, K=K, q=q, delta=cohort.delta)
            replies = cohort.ask(call, cohort.sample(some(self.per_round), t))
            s = s.after(cohort.mean(r.dx for r in replies), self.momentum)
            yield s

    def rule(
        self, client: ClientId, n: int, K: int, delta: float, q: float = 1.0
    ) -> SGD | AsPublished | Noised | UpdateRule:
        """Return how a client sends; q, the share of clients in a round, is for the paper only."""
        eps = self.epsilon_of(client)
        if self.mode == "dp-sgd":
            return self.sgd.costing(eps, clip=self.clip, n=n, times=K, delta=delta)
        if self.mode == "paper":
            sd = paper.sigma(self.clip, n, self.rounds, q, eps, self.delta_of(client, delta))
            return AsPublished("ldp_fl weights", sd, paper.why(eps, self.sgd.epochs))
        mu = float(gdp_mu(eps, delta) / K**0.5)
        if self.mode == "update":
            return update_rule(self.mechanism, "ldp_fl update", self.clip, mu)
        # if an example is replaced, the sum moves by 2C
        return Noised("ldp_fl gradient", self.clip, (2 if self.relation == "replace" else 1) / mu)

    def claims(self, sizes: Sizes, delta: float) -> list[Claim]:
        return paper.published(self.rounds, self.epsilon, self.sgd.epochs, delta)

    def performance_loss(self, t: int, sizes: Sizes, delta: float) -> float:
        q, T = (self.per_round or len(sizes)) / len(sizes), self.rounds
        own = ((self.epsilon_of(i), self.delta_of(i, delta)) for i in sizes)
        ratios = [1 / other_of(e, T, q, delta=d) for e, d in own]
        return q * paper.performance_loss(ratios, t, q)  # of k = q N clients


@task
def train(me: Client, x: Params, method: LDPFL, K: int, q: float, delta: float) -> Reply[Sent]:
    sgd = method.sgd
    rule = method.rule(me.id, me.size, K, delta, q)
    if isinstance(rule, SGD):  # every step is released
        y, _ = rule.fit(me, x)
        return Reply(Sent(y - x))
    if method.mode == "gradient":
        g = rule.send(me, clipped_gradient(me, x, method.clip)) / me.size
        return Reply(Sent(-sgd.lr_in(me.round) * g))
    if method.mode == "update":
        y, _ = sgd.fit(me, x)
        return Reply(Sent(rule.send(me, y - x)))
    y, _ = sgd.fit(me, x, bound=method.clip)  # algorithm 2: every data pair
    return Reply(Sent(rule.send(me, y) - x))
