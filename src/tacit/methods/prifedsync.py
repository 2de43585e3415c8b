"""PriFedSync (Zheng et al. 2021) on PFLDyn, as CUAG-PFL's paper compares it.

Gaussian noise with fixed sigma and C.

`paper`: the update is clipped to C and gets noise 2 C sigma / B, as if it were the mean of a batch;
2C/B is not the sensitivity of trained weights, so the ledger says inf. `certified`: the same clip,
noise sigma C: client-level against the server, 2/sigma-GDP for each round that a client takes part
in (two updates are up to 2C apart), and g_n is made of what was released. sigma = 0 is `pfldyn`:
nothing is clipped, nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tacit.core import Client, Cohort, Params, Predictor, Reply, task
from tacit.local.prototypes import nearest
from tacit.methods.pfldyn import State, Update, debiased, steps
from tacit.methods.prifedsync_settings import Settings


@dataclass(frozen=True)
class PriFedSync(Settings):
    def init(self, x0: Params) -> State:
        return State(x0, g=x0.zeros())

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        return steps(self, cohort, s, lambda x: train(x=x, method=self))

    def predictor(self, me: Client, s: State) -> Predictor:
        return nearest(me, s.x)


@task
def train(me: Client, x: Params, method: PriFedSync) -> Reply[Update]:
    g_n: Params = me.kept.get("g", x.zeros())
    dx = debiased(me, x, g_n, method.alpha, method.local)
    sent = method.rule(me.id, me.size, 1, 0.0).send(me, dx)
    own = dx if method.mode == "paper" else sent
    return Reply(Update(sent), keep={"g": g_n - method.alpha * own})
