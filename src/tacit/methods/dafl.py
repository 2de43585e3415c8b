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
from dataclasses import dataclass, field, replace

from tacit.core import Client, Cohort, Innermost, Outer, Params, Reply, Sample, task
from tacit.data.examples import Examples, Pool
from tacit.methods.dafl_settings import Settings
from tacit.methods.local import Done
from tacit.synthesis import pool as pools
from tacit.synthesis.augment import Augment


@dataclass(frozen=True)
class State(Outer):  # around the main method's
    # S_i by client, until they are dealt out
    shares: dict[str, Examples] = field(default_factory=dict)
    asked: int = 0  # clients asked for samples so far
    joined: tuple[str, ...] | None = None  # the clients that have their part of the pool


@dataclass(frozen=True)
class DAFL(Settings):
    def innermost(self, s: State) -> Innermost:
        return self.method.innermost(s.inner.opened_by(self.method))

    def synthetic(self, s: State) -> list[Examples]:
        return list(s.shares.values())

    def init(self, x0: Params) -> State:
        return State.around(self.method, x0)

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        ids = cohort.everyone
        while s.asked < len(ids):
            got, asked = pools.next_shares(
                cohort, synthesise(how=self.sharing, delta=cohort.delta), s.asked
            )
            s = replace(s, shares=s.shares | got, asked=asked)
            yield s
        if s.joined is None:
            instead = self.phase == "synthetic"
            parts = pools.dealt(s.shares, ids, cohort.rng("deal") if instead else None)
            asks = {i: join(Pool(parts[i], instead=instead)) for i in ids}
            back = [cohort.ask(asks[i], Sample.of([i]), need=0.0) for i in ids]
            s = replace(s, shares={}, joined=tuple(i for r in back for i in r.clients))
            yield s
        assert s.joined is not None
        rest = pools.Joined(cohort, s.joined)
        for inner in self.method.run(rest, s.inner.opened_by(self.method)):
            yield replace(s, inner=s.inner.then(inner))


@task
def synthesise(me: Client, how: Augment, delta: float) -> Reply[pools.Share]:
    return Reply(how.share(me, delta))


@task
def join(me: Client, pool: Pool) -> Reply[Done]:
    return Reply(Done(), pool=pool)
