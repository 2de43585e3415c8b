"""CUAG-PFL (Li et al. 2024, Algorithms 1-4).

PFLDyn whose updates are compressed layer by layer, then noised.

`paper`: as printed. Rates follow from the last global update; nothing is clipped, so the ledger
says inf. Certified, with mu (or eps) for all rounds of a client together, `unit = "example"`,
`unit = "client"`, or with `observer = "clients"` noise on the sum of the clipped updates: against
the server that holds only if secure aggregation shows it nothing but the sum, an assumption. Each
is a rule in cuag_rules.py. Whatever a rule clips, g_n is made of it. With `head = "gaussian"`, the
default at the example level with public features, no network is trained: see cuag_gaussian.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from tacit.core import Client, Cohort, Params, Predictor, Reply, task
from tacit.local.prototypes import nearest
from tacit.methods import cuag_gaussian as gaussian
from tacit.methods import cuag_rules as rules
from tacit.methods import pfldyn
from tacit.methods.cuag_sending import Sending
from tacit.privacy.layers import shared_out
from tacit.synthesis import personal


@dataclass(frozen=True)
class State:
    x: Params  # w, the meta model
    g: Params
    rates: dict[str, float]  # of the layers, in the next round
    c: dict[str, float]  # bounds of the layers, where updates are clipped
    round: int = 0


@dataclass(frozen=True)
class CUAG(Sending):
    averages = True

    def init(self, x0: Params) -> State:
        if self.kind == "gaussian":  # what is shared is no network
            return State(Params({}), Params({}), {}, {})
        return State(x0, x0.zeros(), self.compressor.rates(x0), shared_out(self.clip, x0))

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        if self.kind == "gaussian":
            for t in range(s.round, self.rounds):
                x = s.x if t else gaussian.shared(cohort, self)
                s = State(x, Params({}), {}, {}, t + 1)
                yield s
            return
        yield from self.trained(cohort, s)

    def trained(self, cohort: Cohort, s: State) -> Iterator[State]:
        """Train a network, round by round."""
        drawn = [self.participants(cohort, t).ids for t in range(self.rounds)]  # by no data
        K = self.most_rounds(cohort)
        for t in range(s.round, self.rounds):
            S = self.participants(cohort, t)
            lam = len(S.ids) / len(cohort.everyone)
            turns = turns_in(t, drawn)
            call = train(
                x=s.x, rates=s.rates, c=s.c, method=self, turns=turns, lam=lam, delta=cohort.delta
            )
            rule = self.sender("0", 0, K, cohort.delta, rules.Turn(c=s.c))
            if isinstance(rule, rules.LayeredSum):
                rule.noisy.afford(cohort, S)
                like = self.compressor.compress(s.x.zeros(), s.rates)
                d, c = rule.mean(cohort, cohort.ask(call, S, need=0.0), like)
                part = lam
            else:
                replies = cohort.ask(call, S)
                d = cohort.mean(r.dx for r in replies)
                c = s.c
                part = len(replies) / len(cohort.everyone)
            d = self.compressor.expand(d, s.x, s.rates)
            x, g = pfldyn.stepped(s.x, s.g, d, self.alpha, part if self.share else 1.0)
            s = State(x, g, self.compressor.rates(d), c, t + 1)
            yield s

    @property
    def takes_aggregate(self) -> bool:
        # there the noise is on the sum, and here nothing is trained
        return self.kind not in ("sum", "gaussian")

    def predictor(self, me: Client, s: State) -> Predictor:
        if self.kind == "gaussian":
            return personal.predictor(me, s.x if s.round else None)
        return nearest(me, s.x, self.radius if self.kind == "example" else None)


def turns_in(t: int, drawn: Sequence[Sequence[str]]) -> dict[str, list[int]]:
    """Return for everybody in round t which of its rounds this is, and how many it has in all."""
    so_far = Counter(chain(*drawn[: t + 1]))
    in_all = Counter(chain(*drawn))
    return {n: [so_far[n], in_all[n]] for n in drawn[t]}


@task
def train(
    me: Client,
    x: Params,
    rates: dict[str, float],
    c: dict[str, float],
    method: CUAG,
    turns: dict[str, list[int]],
    lam: float,
    delta: float,
) -> Reply[pfldyn.Update]:
    g_n: Params = me.kept.get("g", x.zeros())
    k, K = turns[me.id]
    rule = method.sender(me.id, me.size, K, delta, rules.Turn(k, K, lam, c))
    private = rule.private(me.size, K) if isinstance(rule, rules.ExampleLevel) else None
    own = pfldyn.debiased(me, x, g_n, method.alpha, method.local, private)
    v = method.compressor.compress(own, rates)
    sent = rule.send(me, v)
    if isinstance(rule, rules.LayeredUpdate):
        own = method.compressor.expand(sent, x, rates)
    if isinstance(rule, rules.LayeredSum):
        own = method.compressor.expand(rule.own(v), x, rates)
    return Reply(pfldyn.Update(sent), keep={"g": g_n - method.alpha * own})
