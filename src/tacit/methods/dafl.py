"""DA-FL (Tang et al. 2023).

Private synthetic samples, shared between clients in front of a federated method.

Before the main phase each client fits a generator under differential privacy, draws m_i = gamma
|D_i| labelled samples S_i and uploads them; client i goes on with D_i and the union of S_j, j != i.
`mode = paper` is the published algorithm (labels by PLS, images by PSG, then an open main phase).
`certified` takes labels from noisy counts, and says what the main phase does with the real data:
`synthetic` never looks at it again (the pool is dealt out evenly instead), `dp-sgd` trains on it
privately, `open` without noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Self

from tacit.core import (
    BadInput,
    Claim,
    Client,
    ClientId,
    Cohort,
    Everyone,
    Method,
    Params,
    Pure,
    Release,
    Reply,
    Sample,
    Sizes,
    Times,
    check_number,
    check_rounds,
    task,
    unnoised,
)
from tacit.data.examples import Examples, Pool
from tacit.local.sgd import SGD, Trains
from tacit.synthesis.gan import claims
from tacit.synthesis.labels import pls, spelled_out, wanted
from tacit.synthesis.pool import AT_ONCE, Joined, Share, even, next_shares, others
from tacit.synthesis.source import Source

# need all data, or the real ones, to begin with
ALONE = ("centralised", "moments", "dafl", "gfl", "kd_dpfl", "pate")


@dataclass(frozen=True)
class State:
    inner: Any  # the main method's state
    # S_i by client, until they are dealt out
    shares: dict[str, Examples] = field(default_factory=dict)
    asked: int = 0  # clients asked for samples so far
    joined: tuple[str, ...] | None = None  # the clients that have their part of the pool

    @property
    def x(self) -> Params:
        return self.inner.x  # type: ignore[no-any-return]

    @property
    def round(self) -> int:
        return self.inner.round  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Augment(Source):
    """What is shared before the main phase, and what the main phase may see."""

    gamma: float = 0.05  # samples for each example that a client has
    # auto: synthetic if certified, else open
    main: Literal["auto", "synthetic", "dp-sgd", "open"] = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("gamma", self.gamma, above=0)

    def lines(self, client: ClientId, n: int, delta: float) -> list[Release]:
        """Return what the ledger will say of a client's samples; the paper's have labels by PLS."""
        lines = super().lines(client, n, delta)
        if self.mode == "certified":
            return lines
        event, when = Pure(self.label_epsilon), ((0, 0),)
        labels = Release("pls", "example", client, "server", event, when, relation="replace")
        return [labels, *lines]

    def in_front_of(self, method: str, main: Method) -> DAFL:
        """Return DA-FL with another method's main phase, given as a word and as it is."""
        ours = {f.name: getattr(self, f.name) for f in fields(Augment)}
        shared = {f.name for f in fields(main)} & {"rounds", "per_round", "sgd"}
        theirs = {name: getattr(main, name) for name in shared}
        return DAFL(**ours, method=method, **theirs)


@dataclass(frozen=True)
class DAFL(Augment, Method):
    method: str = "fedavg"  # the main phase, such as scaffold or fedprox:mu=0.1
    rounds: int = 20  # communication rounds of the main phase
    per_round: int = 0  # clients sampled in each round; 0: everyone
    sgd: SGD = field(default_factory=SGD)  # local training in the main phase

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rounds(self.rounds, self.per_round)
        if self.main == "dp-sgd" and not self.sgd.clip:
            raise BadInput("main = 'dp-sgd': needs sgd.clip above 0, and sgd.z or sgd.epsilon")
        if self.phase != "dp-sgd":
            self.sgd.refuse_clip(
                f"must be 0 with main = {self.phase!r}; main = 'dp-sgd' takes a clip"
            )
        if self.main_name in ALONE:
            raise BadInput(
                f"method = {self.method!r}: must be one that trains at the clients in every round"
            )
        _ = self.inner  # refuses what the main method refuses

    @property
    def phase(self) -> str:
        """What the main phase does with the real data."""
        return (
            {"certified": "synthetic", "paper": "open"}[self.mode]
            if self.main == "auto"
            else self.main
        )

    @property
    def main_name(self) -> str:
        """The name of the main phase's method."""
        return self.method.partition(":")[0]

    @property
    def inner(self) -> Method:
        """The method of the main phase, with these rounds and this local training."""
        from tacit.methods.spec import method_from_spec  # it knows this class

        inner = method_from_spec(self.method)
        ours = {name: getattr(self, name) for name in ("rounds", "per_round", "sgd")}
        return replace(inner, **{f.name: ours[f.name] for f in fields(inner) if f.name in ours})

    @property
    def per_example(self) -> bool:
        return self.phase == "dp-sgd" or self.inner.per_example

    def solved(self, sizes: Sizes, times: Times, delta: float) -> Self:
        return replace(self, sgd=self.sgd.solved(sizes, times, delta))

    def innermost(self, s: State) -> tuple[Method, Any]:
        return self.inner.innermost(s.inner)

    def init(self, x0: Params) -> State:
        return State(self.inner.init(x0))

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        ids = cohort.everyone
        while s.asked < len(ids):
            got = next_shares(cohort, synthesise(how=self, delta=cohort.delta), s.asked)
            s = replace(s, shares=s.shares | got, asked=s.asked + AT_ONCE)
            yield s
        if s.joined is None:
            parts = (
                even(s.shares, ids, cohort.rng("deal"))
                if self.phase == "synthetic"
                else others(s.shares, ids)
            )
            asks = {i: join(Pool(parts[i], instead=self.phase == "synthetic")) for i in ids}
            back = [cohort.ask(asks[i], Sample((i,), 0, Everyone()), need=0.0) for i in ids]
            s = replace(s, shares={}, joined=tuple(i for r in back for i in r.clients))
            yield s
        assert s.joined is not None
        for inner in self.inner.run(Joined(cohort, s.joined), s.inner):
            yield replace(s, inner=inner)

    def releases(self, sizes: Sizes, times: Times, delta: float) -> list[Release]:
        lines = [line for c, n in sizes.items() for line in self.lines(c, n, delta)]
        inner = self.inner
        if self.phase == "synthetic" and isinstance(inner, Trains):
            return lines  # it trains on the pool alone
        lines += inner.releases(sizes, times, delta)
        if self.phase != "synthetic" and inner.protects[1] != "server":
            lines += [unnoised(self.main_name, c) for c in sizes]
        return lines

    def claims(self, sizes: Sizes, delta: float) -> list[Claim]:
        return claims(sizes, delta, self.gan, replace(self, mode="paper", generator="gan").cost)


@dataclass(frozen=True)
class Done:
    """Nothing to say."""


@task
def synthesise(me: Client, how: DAFL, delta: float) -> Reply[Share]:
    fitted = how.fit(me, delta)
    if fitted.counts is None or how.mode == "paper":
        m = pls(me, classes=me.classes, gamma=how.gamma, epsilon=how.label_epsilon)
    else:
        m = fitted.counts.map(lambda counts: wanted(counts, how.gamma))
    y = m.map(spelled_out)
    return Reply(Share(fitted.draw(y, me.rng), y))


@task
def join(me: Client, pool: Pool) -> Reply[Done]:
    return Reply(Done(), keep={**me.kept, "pool": pool})
