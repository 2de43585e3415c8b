"""KD-DPFL (Tan et al. 2024).

A public set with private pseudo-labels is in every round, as a special client.

Phase 1 (algorithm 1): the m large clients label the public images. Phase 2 (algorithm 2): every
round takes the special client and N - 1 of the n general ones, and averages by data volume. Nobody
is in both groups and sizes are public, so an example pays eps_1 or eps_2, never both: the total is
their maximum. With `large_join` a large client pays both: certified, each is half of epsilon then.
`paper`: votes with noise; then weights, never clipped, with noise for eps_pub and eps_pri, while
the sum of all of them is below eps_2: the ledger says inf. The published formula lacks its
sensitivity; 2 C / n_k is taken, as in NbAFL.
`certified`: pseudo-labels from private moments by default; the special client needs no noise, as
its images are public and its labels paid for; a general client sends one gradient, clipped example
by example, or runs DP-SGD, takes part at most K_max times and pays for its own rounds only. Where
gradients are sent, the special client trains before the first round and then sends gradients, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from torch import Tensor

from tacit.core import Client, ClientId, Cohort, Fixed, Params, Reply, Sample, task
from tacit.data.examples import Examples
from tacit.local import teachers
from tacit.methods.fedavg import Update
from tacit.methods.kd_dpfl_phases import Phases
from tacit.methods.moments import size


@dataclass(frozen=True)
class State:
    x: Params
    sizes: dict[str, int] = field(default_factory=dict)  # of the clients that are known
    labels: Tensor | None = None  # of the public images
    right: float = 0.0  # share of labels that are right, for the report
    spent: float = 0.0  # what the paper counts: eps_pub + (N - 1) eps_pri in every round
    round: int = 0
    v: Params = field(default_factory=Params)  # the last step of a server with momentum


@dataclass(frozen=True)
class KDDPFL(Phases):
    averages = True

    def grouped(self, s: State) -> dict[str, list[ClientId]]:
        return self.groups(s.sizes)

    def measured(self, s: State) -> dict[str, float]:
        return {"pseudo-labels": s.right}

    def init(self, x0: Params) -> State:
        return State(x0)

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        public = teachers.public_images(cohort, self.queries)
        if s.labels is None:
            s = self.labelled(cohort, s, public)
            yield s
        assert s.labels is not None
        c_pub = Examples(public.x, s.labels)
        plan = self.phase_2.plan(cohort, self.pool(s.sizes))
        K = dict(Counter(i for chosen in plan for i in chosen))
        for t in range(s.round, self.rounds):
            if s.spent >= self.budgets[1] or (self.per_round != 1 and not plan[t]):
                return
            N = len(plan[t]) + 1
            _, eps_pri, cost = self.phase_2.costs(N)
            call = train(x=s.x, method=self, eps_pri=eps_pri, K=K, delta=cohort.delta)
            replies = cohort.ask(call, Sample(tuple(plan[t]), t, Fixed(N - 1)))
            special = self.special_part(cohort, s, c_pub, t, N, [r.n for r in replies])
            dx = cohort.mean([special, *((r.dx, r.n) for r in replies)])
            spent = s.spent + cost if self.mode == "paper" else 0.0
            s = replace(self.moved(s, dx), spent=spent, round=t + 1)
            yield s

    def moved(self, s: State, dx: Params) -> State:
        """Return the state after a step, and after a share of the last one if there is momentum."""
        if not self.server_momentum:
            return replace(s, x=s.x + dx)
        v = self.server_momentum * s.v + dx if s.v else dx
        return replace(s, x=s.x + v, v=v)

    def special_part(
        self, cohort: Cohort, s: State, c_pub: Examples, t: int, N: int, others: list[int]
    ) -> tuple[Params, float]:
        """Return the special client's step in round t of N, and its weight beside others' sizes.

        Among gradients it weighs what it has of all data in the pool, whoever takes part.
        """
        if not self.sends_gradients:
            return self.phase_2.special_client(cohort, s.x, c_pub, t, N) - s.x, len(c_pub)
        dx = cohort.own(step(x=s.x, method=self), c_pub, t).dx
        every = sum(s.sizes[i] for i in self.pool(s.sizes))
        return dx, len(c_pub) * (sum(others) / every if others else 1)

    def labelled(self, cohort: Cohort, s: State, public: Examples) -> State:
        """Return the state after phase 1."""
        sizes = teachers.known_sizes(cohort, size())
        large = Sample.of(self.groups(sizes)["large"])
        labels = self.phase_1.labels(cohort, s.x, large, public.x)
        x = self.phase_2.begun(cohort, s.x, Examples(public.x, labels))
        right = teachers.share_right(labels, public)
        return replace(s, x=x, sizes=sizes, labels=labels, right=right)


@task
def train(
    me: Client, x: Params, method: KDDPFL, eps_pri: float, K: dict[str, int], delta: float
) -> Reply[Update]:
    how = method.phase_2
    rule = how.rule(me.size, K[me.id], delta, eps_pri)
    return Reply(Update(how.sent(me, x, rule), me.size))


@task(at="server")
def step(me: Client, x: Params, method: KDDPFL) -> Reply[Update]:
    """Return the special client's step in a round of gradients."""
    return Reply(Update(method.phase_2.public_step(me, x), me.size))
