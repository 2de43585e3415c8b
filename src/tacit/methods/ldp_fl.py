"""LDP-FL (Kang and Ji 2022): local differential privacy on every update.

`paper`: E epochs of SGD with every example's gradient clipped to C (algorithm 2), then noise
(2C/m) sqrt(2 q T ln(1/delta)) / eps on the weights. 2C/m is the sensitivity of one averaged
full-batch gradient, not of E epochs, so the ledger says inf. Certified, observer server, K rounds
of a client:
- `gradient`: one full-batch gradient a round, clipped example by example: the only case in which
  2C/m is right;
- `dp-sgd`: local DP-SGD, all its steps accounted together;
- `update`: the whole update clipped to C, noise 2C sqrt(K)/mu: protects the client, not only the
  example. Each client may have its own eps (`epsilons`, dealt out in turn).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from tacit.core import (
    BadInput,
    Claim,
    Client,
    ClientId,
    Cohort,
    Method,
    Params,
    Protects,
    Reply,
    Sizes,
    check_choice,
    check_clip,
    check_number,
    check_rounds,
    most_rounds,
    some,
    task,
)
from tacit.local.sgd import SGD, clipped_gradient
from tacit.methods import ldp_fl_claims as paper
from tacit.methods.dp_fedavg import Update as Sent
from tacit.methods.fedavg import State
from tacit.privacy.gdp import gdp_mu
from tacit.privacy.rules import AsPublished, Noised
from tacit.privacy.updates import UpdateRule, check_mechanism, update_rule


@dataclass(frozen=True)
class LDPFL(Method):
    averages = True
    rounds: int = 20  # T, communication rounds
    per_round: int = 0  # clients sampled in each round; 0: everyone
    # what is released, and with which guarantee
    mode: Literal["dp-sgd", "gradient", "update", "paper"] = "dp-sgd"
    epsilon: float = 4.0  # what every client spends over all rounds
    epsilons: tuple[float, ...] = ()  # one epsilon for each client in turn, instead
    # C, clipping norm: of an example's gradient, or of the whole update (update)
    clip: float = 1.0
    # neighbouring relation of mode `gradient`; replace is the paper's 2C/m
    relation: Literal["zero-out", "replace"] = "zero-out"
    # how mode `update` clips: flat, layers, or a mechanism of your own as module:function
    mechanism: str = "flat"
    sgd: SGD = field(default_factory=lambda: SGD(batch=64))  # local training

    def __post_init__(self) -> None:
        check_rounds(self.rounds, self.per_round)
        check_choice("mode", self.mode, ("dp-sgd", "gradient", "update", "paper"))
        for epsilon in (self.epsilon, *self.epsilons):
            check_number("epsilon", epsilon, above=0)
        check_clip("clip", self.clip)
        if self.epsilons and self.epsilon != LDPFL.epsilon:
            own = "clients have an epsilon of their own already (epsilons)"
            raise BadInput(f"epsilon = {self.epsilon:g}: {own}")
        check_mechanism(self.mechanism)
        for name, mode in (("relation", "gradient"), ("mechanism", "update")):
            given = getattr(self, name)
            if self.mode != mode and given != getattr(LDPFL, name):
                only = f"means nothing in mode = {self.mode!r}, only in {mode!r}"
                raise BadInput(f"{name} = {given!r}: {only}")
        self.sgd.refuse_clip("must be 0; ldp_fl has its own clip and solves the noise from epsilon")

    @property
    def protects(self) -> Protects:
        return ("client" if self.mode == "update" else "example", "server")

    @property
    def per_example(self) -> bool:
        return self.mode != "update"

    def check_inputs(self, shape: tuple[int, ...]) -> None:
        if self.mode == "update":
            update_rule(self.mechanism, "ldp_fl update", self.clip, 1.0)

    def init(self, x0: Params) -> State:
        return State(x0)

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        N = len(cohort.everyone)
        q = (self.per_round or N) / N
        K = most_rounds(cohort, some(self.per_round), self.rounds)
        for t in range(s.round, self.rounds):
            call = train(x=s.x, method=self, K=K, q=q, delta=cohort.delta)
            replies = cohort.ask(call, cohort.sample(some(self.per_round), t))
            s = State(x=s.x + cohort.mean(r.dx for r in replies), round=t + 1)
            yield s

    def rule(
        self, client: ClientId, n: int, K: int, delta: float, q: float = 1.0
    ) -> SGD | AsPublished | Noised | UpdateRule:
        """Return how a client sends; q, the share of clients in a round, is for the paper only."""
        eps = self.epsilon_of(client)
        if self.mode == "dp-sgd":
            return self.sgd.costing(eps, clip=self.clip, n=n, times=K, delta=delta)
        if self.mode == "paper":
            sd = paper.sigma(self.clip, n, self.rounds, q, eps, delta)
            return AsPublished("ldp_fl weights", sd, paper.why(eps, self.sgd.epochs))
        mu = float(gdp_mu(eps, delta) / K**0.5)
        if self.mode == "update":
            return update_rule(self.mechanism, "ldp_fl update", self.clip, mu)
        # if an example is replaced, the sum moves by 2C
        return Noised("ldp_fl gradient", self.clip, (2 if self.relation == "replace" else 1) / mu)

    def epsilon_of(self, client: ClientId) -> float:
        """Return a client's own epsilon."""
        return self.epsilons[int(client) % len(self.epsilons)] if self.epsilons else self.epsilon

    def claims(self, sizes: Sizes, delta: float) -> list[Claim]:
        return paper.published(self.rounds, self.epsilon, self.sgd.epochs, delta)

    def performance_loss(self, sizes: Sizes, delta: float) -> float:
        """The paper's own diagnostic, P = sum_i exp(sum_t alpha(1)); not a privacy quantity."""
        ratio = paper.ratio(self.rounds, self.epsilon, delta)
        return paper.performance_loss([ratio] * len(sizes), self.rounds)


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
