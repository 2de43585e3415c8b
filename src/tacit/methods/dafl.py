"""DA-FL (Tang et al. 2023): private synthetic samples, shared in front of a federated method.

Before the main phase each client fits a generator under differential privacy, draws m_i = gamma
|D_i| labelled samples S_i and uploads them; client i goes on with D_i and the union of S_j, j != i.
`mode = paper` is the published algorithm (labels by PLS, images by PSG, then an open main phase).
`certified` takes labels from noisy counts, and says what the main phase does with the real data:
`synthetic` never looks at it again (the pool is dealt out evenly instead), `dp-sgd` trains on it
privately, `open` without noise. Samples, their cost and claims: synthesis/augment.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self

from tacit.core import (
    BadInput,
    Client,
    Cohort,
    Everyone,
    Method,
    Nested,
    Outer,
    Params,
    Release,
    Reply,
    Sample,
    Sizes,
    Times,
    Unnoised,
    check,
    task,
)
from tacit.data.examples import Examples, Pool
from tacit.local.sgd import SGD, Trains
from tacit.methods.fedavg import FedAvg
from tacit.methods.local import Done
from tacit.privacy.rules import once
from tacit.synthesis.augment import Augment
from tacit.synthesis.pool import AT_ONCE, Joined, Share, dealt, next_shares
from tacit.synthesis.shares import Facts, check_shares, shared_out


@dataclass(frozen=True)
class State(Outer):  # around the main method's
    # S_i by client, until they are dealt out
    shares: dict[str, Examples] = field(default_factory=dict)
    asked: int = 0  # clients asked for samples so far
    joined: tuple[str, ...] | None = None  # the clients that have their part of the pool


@dataclass(frozen=True)
class DAFL(Augment, Method):
    can_follow: ClassVar[bool] = False
    # the main phase, such as scaffold or fedprox:mu=0.1; its rounds, per_round and sgd are these
    method: Method = field(default_factory=FedAvg)
    rounds: int = 20  # communication rounds of the main phase
    per_round: int = 0  # clients sampled in each round; 0: everyone
    sgd: SGD = field(default_factory=SGD)  # local training in the main phase
    # what every client spends in the whole run: with main = dp-sgd half of it on its samples,
    # unless pool_epsilon says how much; 0: as pool_epsilon and sgd say
    epsilon: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check.rounds(self.rounds, self.per_round)
        if self.main == "dp-sgd" and not self.sgd.clip:
            raise BadInput("main = 'dp-sgd': needs sgd.clip above 0, and sgd.z or sgd.epsilon")
        if self.phase != "dp-sgd":
            self.sgd.refuse_clip(f"must be 0 with main = {self.phase!r}; 'dp-sgd' takes a clip")
        check_follows(self.method)
        check_shares(self, self.sgd, self.epsilon, self.unshared)
        ours = {name: getattr(self, name) for name in shared_with(self.method)}
        object.__setattr__(self, "method", replace(self.method, **ours))

    @property
    def per_example(self) -> bool:
        return self.phase == "dp-sgd" or self.method.per_example

    def solved(self, sizes: Sizes, times: Times, delta: float) -> Self:
        return shared_out(self, self.sgd, self.epsilon, Facts(sizes, times, delta))

    @property
    def unshared(self) -> str:
        """Why the main phase takes no part of epsilon, if it should."""
        if self.phase == "open":
            return "main = 'open' sends updates without noise"
        return "" if isinstance(self.method, Trains) else "the main phase has an epsilon of its own"

    def innermost(self, s: State) -> tuple[Method, Any]:
        return self.method.innermost(s.inner.opened_by(self.method))

    def synthetic(self, s: State) -> list[Examples]:
        return list(s.shares.values())

    @property
    def takes_aggregate(self) -> bool:
        return self.method.takes_aggregate

    def init(self, x0: Params) -> State:
        return State(Nested.of(self.method, self.method.init(x0)))

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        ids = cohort.everyone
        how = Augment(**{f.name: getattr(self, f.name) for f in fields(Augment)})
        while s.asked < len(ids):
            got = next_shares(cohort, synthesise(how=how, delta=cohort.delta), s.asked)
            s = replace(s, shares=s.shares | got, asked=s.asked + AT_ONCE)
            yield s
        if s.joined is None:
            instead = self.phase == "synthetic"
            parts = dealt(s.shares, ids, cohort.rng("deal") if instead else None)
            asks = {i: join(Pool(parts[i], instead=instead)) for i in ids}
            back = [cohort.ask(asks[i], Sample((i,), 0, Everyone()), need=0.0) for i in ids]
            s = replace(s, shares={}, joined=tuple(i for r in back for i in r.clients))
            yield s
        assert s.joined is not None
        rest = Joined(cohort, s.joined)
        for inner in self.method.run(rest, s.inner.opened_by(self.method)):
            yield replace(s, inner=s.inner.then(inner))

    def releases(self, sizes: Sizes, times: Times, delta: float) -> list[Release]:
        lines = once(self.pool_rule(delta), sizes, sizes)
        if self.phase == "synthetic" and isinstance(self.method, Trains):
            return lines  # it trains on the pool alone
        lines += self.method.releases(sizes, times, delta)
        if self.phase != "synthetic" and self.method.protects[1] != "server":
            lines += once(Unnoised.of(self.method), sizes, sizes)  # the server sees the updates
        return lines


def in_front_of(main: Method, how: Augment) -> DAFL:
    """Return DA-FL with a method as its main phase, which keeps its rounds and its training."""
    ours = {f.name: getattr(how, f.name) for f in fields(Augment)}
    theirs = {name: getattr(main, name) for name in shared_with(main)}
    return DAFL(**ours, method=main, **theirs)


def shared_with(main: Method) -> set[str]:
    """Return the settings that DA-FL has and its main phase, too."""
    return {f.name for f in fields(main)} & {"rounds", "per_round", "sgd"}


def check_follows(main: Method) -> None:
    """Refuse as a main phase what is no method, or does not train at the clients all the time."""
    if not isinstance(main, Method):
        raise BadInput(f"method = {main!r}: must be an instance of a method, such as FedAvg()")
    if not main.can_follow:
        name = type(main).__name__.lower()
        raise BadInput(f"method = {name!r}: must be one that trains at the clients in every round")


@task
def synthesise(me: Client, how: Augment, delta: float) -> Reply[Share]:
    return Reply(how.share(me, delta))


@task
def join(me: Client, pool: Pool) -> Reply[Done]:
    return Reply(Done(), pool=pool)
