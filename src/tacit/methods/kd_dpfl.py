"""KD-DPFL (Tan et al. 2024).

A public set with private pseudo-labels is in every round, as a special client.

Phase 1 (algorithm 1): the m large clients label the public images. Phase 2 (algorithm 2): every
round takes the special client and N - 1 of the n general ones, and averages by data volume. Nobody
is in both groups and sizes are public, so an example pays eps_1 or eps_2, never both: the total is
their maximum. With `large_join` a large client pays both.
`paper`: votes with noise; then weights, never clipped, with noise for eps_pub and eps_pri, while
the sum of all of them is below eps_2: the ledger says inf. The published formula lacks its
sensitivity; 2 C / n_k is taken, as in NbAFL.
`certified`: pseudo-labels from private moments by default; the special client needs no noise, as
its images are public and its labels paid for; a general client runs DP-SGD, takes part at most
K_max times and pays for its own rounds only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from torch import Tensor

from tacit.core import (
    BadInput,
    Claim,
    Client,
    ClientId,
    Cohort,
    Everyone,
    Fixed,
    NonPrivate,
    Observer,
    Params,
    Release,
    Reply,
    Sample,
    Sizes,
    Times,
    Unit,
    check_clip,
    check_number,
    check_rounds,
    task,
)
from tacit.data.examples import Examples
from tacit.local.sgd import SGD
from tacit.local.teachers import Teaching
from tacit.methods.fedavg import Update
from tacit.methods.fedavg import train as train_openly
from tacit.methods.moments import Moments
from tacit.methods.pate import known_sizes, winners
from tacit.privacy.claimed import kd_dpfl_round, kd_dpfl_sigma
from tacit.privacy.mechanisms import claimed_gaussian, public_noise
from tacit.privacy.schedule import Turns
from tacit.synthesis.moments import lines as moment_lines


@dataclass(frozen=True)
class State:
    x: Params
    sizes: dict[str, int] = field(default_factory=dict)  # of the clients that are known
    labels: Tensor | None = None  # of the public images
    right: float = 0.0  # share of labels that are right, for the report
    spent: float = 0.0  # what the paper counts: eps_pub + (N - 1) eps_pri in every round
    round: int = 0


@dataclass(frozen=True)
class KDDPFL(Teaching):
    averages = True
    can_follow: ClassVar[bool] = False
    rounds: int = 10  # communication rounds of phase 2, at most
    per_round: int = 6  # N: the special client and N - 1 others; 0: all of them
    # certified: with proof; paper: as published, whatever it really spends
    mode: Literal["certified", "paper"] = "certified"
    # auto: moments if certified, else vote
    labels: Literal["auto", "moments", "sub-teachers", "vote"] = "auto"
    # features of the images, for `moments`: hog, colour-hog, dct, raw, or yours: module:function
    features: str = "auto"
    epsilon: float = 8.0  # what every client spends over the whole run
    eps_1: float = 0.0  # epsilon of large clients, for the pseudo-labels; 0: epsilon
    eps_2: float = 0.0  # epsilon of general clients, for phase 2; 0: epsilon
    # paper mode: epsilon of the special client in a round; 0: eps_2 lasts for all rounds
    eps_pub: float = 0.0
    ratio: float = 0.5  # eps_pri / eps_pub, in paper mode
    C: float = 1.0  # paper mode: norm in the published noise; nothing is clipped to it
    large_join: bool = False  # large clients take part in phase 2, too
    K_max: int = 0  # rounds that a general client takes part in, at most; 0: an equal share of all
    clip: float = 1.0  # clipping norm of an example's gradient at a general client
    # local training of general clients
    sgd: SGD = field(default_factory=lambda: SGD(lr=0.5, epochs=2, batch=250))
    special: SGD = field(default_factory=lambda: SGD(epochs=5))  # training of the special client

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rounds(self.rounds, self.per_round)
        check_number("epsilon", self.epsilon, above=0)
        for name in ("eps_1", "eps_2", "eps_pub", "C"):
            check_number(name, getattr(self, name), at_least=0)
        check_number("ratio", self.ratio, above=0)
        check_number("K_max", self.K_max, at_least=0, whole=True)
        check_clip("clip", self.clip)
        if self.mode == "paper" and self.labels not in ("auto", "vote"):
            raise BadInput(
                f"labels = {self.labels!r}: the paper has none; allowed with mode = paper: vote"
            )

    @property
    def how(self) -> str:
        """Where pseudo-labels come from."""
        return (
            self.labels if self.labels != "auto" else "vote" if self.mode == "paper" else "moments"
        )

    @property
    def budgets(self) -> tuple[float, float]:
        """eps_1 and eps_2."""
        return self.eps_1 or self.epsilon, self.eps_2 or self.epsilon

    @property
    def protects(self) -> tuple[Unit, Observer]:
        return ("example", "clients" if self.how == "vote" else "server")

    def groups(self, sizes: Sizes) -> dict[str, list[ClientId]]:
        large = self.large(sizes)
        general = [i for i in sizes if i not in large]
        if not general:
            raise BadInput(
                f"m = {self.m}: leaves no general client; sizes:kd-mnist, for one, has 4 large of 53"
            )
        return {"large": large, "general": general}

    def grouped(self, s: State) -> dict[str, list[ClientId]]:
        return self.groups(s.sizes)

    def measured(self, s: State) -> dict[str, float]:
        return {"pseudo-labels": s.right}

    @property
    def per_example(self) -> bool:
        return self.mode == "certified"

    def check_inputs(self, shape: tuple[int, ...]) -> None:
        if self.how == "moments":
            self.moments.check_inputs(shape)

    def init(self, x0: Params) -> State:
        return State(x0)

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        public = self.asked(cohort)
        if s.labels is None:
            s = self.phase_1(cohort, s, public)
            yield s
        assert s.labels is not None
        c_pub, (_, eps_2) = Examples(public.x, s.labels), self.budgets
        plan = self.plan(cohort, s.sizes)
        K = Counter(i for chosen in plan for i in chosen)
        for t in range(s.round, self.rounds):
            if s.spent >= eps_2 or (self.per_round != 1 and not plan[t]):
                return
            N = len(plan[t]) + 1
            eps_pub, eps_pri, cost = kd_dpfl_round(eps_2 / self.rounds, N, self.ratio, self.eps_pub)
            w_pub = self.special_client(cohort, s.x, c_pub, eps_pub, t)
            call = train(x=s.x, method=self, eps_pri=eps_pri, K=dict(K), delta=cohort.delta)
            replies = cohort.ask(call, Sample(tuple(plan[t]), t, Fixed(N - 1)))
            x = s.x + cohort.mean([(w_pub - s.x, len(c_pub)), *((r.dx, r.n) for r in replies)])
            s = replace(s, x=x, spent=s.spent + cost if self.mode == "paper" else 0.0, round=t + 1)
            yield s

    def special_client(
        self, cohort: Cohort, x: Params, c_pub: Examples, eps_pub: float, t: int
    ) -> Params:
        """Return w_pub: with noise in the paper only."""
        w_pub = x + cohort.own(train_openly(x=x, sgd=self.special), c_pub, t).dx
        if self.mode == "certified":
            return w_pub
        return public_noise(
            cohort, w_pub, sd=kd_dpfl_sigma(self.C, len(c_pub), eps_pub, cohort.delta), t=t
        )

    def phase_1(self, cohort: Cohort, s: State, public: Examples) -> State:
        sizes = known_sizes(cohort)
        large = self.groups(sizes)["large"]
        if self.how == "moments":
            labels = self.moments.labels(cohort, Sample(tuple(large), 0, Everyone()), public.x)
        else:
            labels = winners(self, cohort, s.x, large, self.how, self.budgets[0])
        return replace(
            s, sizes=sizes, labels=labels, right=float((labels == public.y).double().mean())
        )

    def turns(self, sizes: Mapping[ClientId, int]) -> Turns:
        """Any N - 1 of the pool in the paper; else any of those drawn least, at most K_max times."""
        groups = self.groups(sizes)
        pool = groups["general"] + groups["large"] * self.large_join
        N = self.per_round or len(pool) + 1
        return Turns(pool, N - 1, self.rounds, fair=self.mode == "certified", most=self.K_max)

    def plan(self, cohort: Cohort, sizes: Mapping[ClientId, int]) -> list[list[ClientId]]:
        """Return who takes part in each round."""
        turns = self.turns(sizes)
        return turns.drawn(
            [cohort.rng("kd_dpfl", t).permutation(len(turns.pool)) for t in range(self.rounds)]
        )

    @property
    def moments(self) -> Moments:
        """What the large clients release for `labels = moments`.

        Few of them, so more of it goes to the means.
        """
        eps_1, _ = self.budgets
        return Moments(eps_1, self.features, head="lda" if eps_1 < 2 else "auto", share=0.5)

    def private(self, n: int, K: int, delta: float) -> SGD:
        """The training of a general client with n examples that takes part K times."""
        return self.sgd.costing(self.budgets[1], clip=self.clip, n=n, times=K, delta=delta)

    def releases(self, sizes: Sizes, times: Times, delta: float) -> list[Release]:
        large, turns = self.large(sizes), self.turns(sizes)
        if self.how == "moments":
            lines = [line for i in large for line in moment_lines(i, self.moments.terms(delta))]
        else:
            lines = self.vote_lines(large, self.how, self.budgets[0], delta)
        if self.mode == "paper":
            why = NonPrivate(NO_CLIPPING)
            return lines + [
                Release("weights", "example", i, "server", why, ((0, 0),)) for i in turns.pool
            ]
        K = turns.at_most()
        private = {i: self.private(sizes[i], K, delta) for i in turns.pool if K}
        return lines + [line for i, sgd in private.items() for line in sgd.lines(i, sizes[i], K)]

    def claims(self, sizes: Sizes, delta: float) -> list[Claim]:
        return [
            (
                "published",
                max(self.budgets),
                "max(eps_1, eps_2), where eps_2 adds up over the clients of a round",
            ),
            ("certified", math.inf, NO_CLIPPING),
        ]


NO_CLIPPING = "no clipping: noise on weights that nothing bounds proves nothing"


@task
def train(
    me: Client, x: Params, method: KDDPFL, eps_pri: float, K: dict[str, int], delta: float
) -> Reply[Update]:
    if method.mode == "paper":
        y, _ = method.sgd.fit(me, x)
        sd = kd_dpfl_sigma(method.C, me.size, eps_pri, delta)
        dx = claimed_gaussian(me, "kd_dpfl weights", y, sd=sd, why=NO_CLIPPING) - x
    else:
        y, _ = method.private(me.size, K[me.id], delta).fit(me, x)
        dx = y - x
    return Reply(Update(dx, me.size))
