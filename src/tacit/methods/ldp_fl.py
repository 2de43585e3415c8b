"""LDP-FL (Kang and Ji 2022): local differential privacy on every update.

`paper`: E epochs of SGD with every batch gradient clipped to C, then noise (2C/m) sqrt(2 q T
ln(1/delta)) / eps on the weights. 2C/m is the sensitivity of one averaged full-batch gradient, not
of E epochs, so the ledger says inf. Certified, observer server, K rounds of a client:
- `gradient`: one full-batch gradient a round, clipped example by example: the only case in which
  2C/m is right;
- `dp-sgd`: local DP-SGD, all its steps accounted together;
- `update`: the whole update clipped to C, noise 2C sqrt(K)/mu: protects the client, not only the
  example. Each client may have its own eps (`epsilons`, dealt out in turn).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Literal

from tacit.core import (
    BadInput,
    Claim,
    Client,
    Cohort,
    Gaussian,
    Method,
    NonPrivate,
    Observer,
    Params,
    Release,
    Reply,
    Sizes,
    Times,
    Unit,
    check_choice,
    check_clip,
    check_number,
    check_rounds,
    mean,
    most_rounds,
    some,
    task,
)
from tacit.local.sgd import SGD, clipped_gradient
from tacit.methods.fedavg import State
from tacit.privacy import rules
from tacit.privacy.claimed import ldp_fl_claims, ldp_fl_ratio, ldp_fl_sigma, performance_loss
from tacit.privacy.gdp import gdp_mu
from tacit.privacy.mechanisms import (
    claimed_gaussian,
    gaussian,
    gaussian_update,
    update_z,
)

MODES = ("dp-sgd", "gradient", "update", "paper")


@dataclass(frozen=True)
class Promise:
    """What a client is promised, and how the noise for it is found."""

    mode: str
    epsilon: float
    delta: float
    clip: float
    T: int  # rounds
    K: int  # of which a client takes part in, at most
    q: float  # the share of clients in a round; used by the paper's formula only
    relation: str

    @property
    def z(self) -> float:
        """The noise multiplier of one release in each of K rounds.

        If an example is replaced, a sum moves by 2C, and so does an update by other data.
        """
        mu = float(gdp_mu(self.epsilon, self.delta) / self.K**0.5)
        twice = self.mode == "gradient" and self.relation == "replace"
        return update_z(mu) if self.mode == "update" or twice else 1 / mu

    def private(self, sgd: SGD, m: int) -> SGD:
        """The local training of a client with m examples as DP-SGD."""
        return sgd.costing(self.epsilon, clip=self.clip, n=m, times=self.K, delta=self.delta)


@dataclass(frozen=True)
class LDPFL(Method):
    rounds: int = 20  # T, communication rounds
    per_round: int = 0  # clients sampled in each round; 0: everyone
    # what is released, and with which guarantee
    mode: Literal["dp-sgd", "gradient", "update", "paper"] = "dp-sgd"
    epsilon: float = 4.0  # what every client spends over all rounds
    epsilons: tuple[float, ...] = ()  # one epsilon for each client in turn, instead
    # C, clipping norm: of an example's gradient; of the batch's (paper); of the update (update)
    clip: float = 1.0
    # neighbouring relation of mode `gradient`; replace is the paper's 2C/m
    relation: Literal["zero-out", "replace"] = "zero-out"
    sgd: SGD = field(default_factory=lambda: SGD(batch=64))  # local training

    def __post_init__(self) -> None:
        check_rounds(self.rounds, self.per_round)
        check_choice("mode", self.mode, MODES)
        for epsilon in (self.epsilon, *self.epsilons):
            check_number("epsilon", epsilon, above=0)
        check_clip("clip", self.clip)
        if self.epsilons and self.epsilon != LDPFL.epsilon:
            raise BadInput(
                f"epsilon = {self.epsilon:g}: clients have an epsilon of their own already (epsilons)"
            )
        if self.mode != "gradient" and self.relation != LDPFL.relation:
            raise BadInput(
                f"relation = {self.relation!r}: means nothing in mode = {self.mode!r}, only in 'gradient'"
            )
        self.sgd.refuse_clip("must be 0; ldp_fl has its own clip and solves the noise from epsilon")

    @property
    def protects(self) -> tuple[Unit, Observer]:
        return ("client" if self.mode == "update" else "example", "server")

    @property
    def per_example(self) -> bool:
        return self.mode in ("dp-sgd", "gradient")

    def init(self, x0: Params) -> State:
        return State(x0)

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        N = len(cohort.everyone)
        q = (self.per_round or N) / N
        K = most_rounds(cohort, some(self.per_round), self.rounds)
        promise = self.promise(K, q, cohort.delta)
        for t in range(s.round, self.rounds):
            S = cohort.sample(some(self.per_round), t)
            call = train(x=s.x, promise=promise, epsilons=list(self.epsilons), sgd=self.sgd)
            replies = cohort.ask(call, S)
            s = State(x=s.x + mean(r.dx for r in replies), round=t + 1)
            yield s

    def promise(self, K: int, q: float, delta: float) -> Promise:
        return Promise(self.mode, self.epsilon, delta, self.clip, self.rounds, K, q, self.relation)

    def releases(self, sizes: Sizes, times: Times, delta: float) -> list[Release]:
        each = zip(sizes, cycle(self.epsilons or (self.epsilon,)), strict=False)
        promise = self.promise(max(times.values()), 1.0, delta)
        promises = {client: replace(promise, epsilon=eps) for client, eps in each}
        return [
            line
            for c, p in promises.items()
            if times[c]
            for line in self._lines(p, c, sizes[c], times[c])
        ]

    def _lines(self, p: Promise, client: str, m: int, times: int) -> list[Release]:
        """What the ledger of a client with m examples will say after so many rounds."""
        if p.mode == "dp-sgd":
            return p.private(self.sgd, m).lines(client, m, times)
        rounds = ((0, times - 1),)
        if p.mode == "update":
            return rules.Update("ldp_fl update", p.clip, p.z).lines(client, m, times)
        event = NonPrivate(why(p.epsilon, self.sgd)) if p.mode == "paper" else Gaussian(p.z)
        return [Release(p.mode, "example", client, "server", event, rounds)]

    def claims(self, sizes: Sizes, delta: float) -> list[Claim]:
        return ldp_fl_claims(self.rounds, self.epsilon, self.sgd.epochs, delta)

    def performance_loss(self, sizes: Sizes, delta: float) -> float:
        """The paper's own diagnostic, P = sum_i exp(sum_t alpha(1)); not a privacy quantity."""
        return performance_loss(
            [ldp_fl_ratio(self.rounds, self.epsilon, delta)] * len(sizes), self.rounds
        )


def why(epsilon: float, sgd: SGD) -> str:
    return f"claimed eps {epsilon:g}, but 2C/m bounds one averaged full-batch gradient, not {sgd.epochs} epochs of SGD"


@dataclass(frozen=True)
class Update:
    dx: Params


@task
def train(
    me: Client, x: Params, promise: Promise, epsilons: list[float], sgd: SGD
) -> Reply[Update]:
    p = replace(promise, epsilon=epsilons[int(me.id) % len(epsilons)]) if epsilons else promise
    release = {
        "paper": as_published,
        "gradient": by_gradient,
        "dp-sgd": by_dp_sgd,
        "update": by_update,
    }[p.mode]
    return Reply(Update(release(me, x, p, sgd)))


def as_published(me: Client, x: Params, p: Promise, sgd: SGD) -> Params:
    y, _ = sgd.fit(me, x, grad=lambda g, y: g.clipped(p.clip))
    sd = ldp_fl_sigma(p.clip, me.size, p.T, p.q, p.epsilon, p.delta)
    return claimed_gaussian(me, "ldp_fl weights", y, sd=sd, why=why(p.epsilon, sgd)) - x


def by_gradient(me: Client, x: Params, p: Promise, sgd: SGD) -> Params:
    total = clipped_gradient(me, x, p.clip)
    g = gaussian(me, "ldp_fl gradient", total, sensitivity=p.clip, z=p.z) / me.size
    return (-sgd.lr) * g


def by_dp_sgd(me: Client, x: Params, p: Promise, sgd: SGD) -> Params:
    y, _ = p.private(sgd, me.size).fit(me, x)
    return y - x


def by_update(me: Client, x: Params, p: Promise, sgd: SGD) -> Params:
    y, _ = sgd.fit(me, x)
    return gaussian_update(me, "ldp_fl update", y - x, clip=p.clip, z=p.z)
