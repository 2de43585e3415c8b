"""PFLDyn with prototypes (Acar et al. 2021): a shared meta model, debiased.

Every client answers by its own prototypes.

Client n: P steps on the episode loss - <w, g_n> + alpha/2 ||w - w_t||^2; g_n <- g_n - alpha (w_n -
w_t) stays with it. Server: g <- g - alpha d, w <- w + d - g/alpha, d the mean difference. With
`share` the step of g is scaled by the share of clients that took part, which makes g the mean of
all g_n, as in FedDyn and in the authors' code; CUAG-PFL's paper prints the rule without it.
Differences from the authors' code: an episode whose second batch has a class that the first has not
is not drawn anew, such examples do not count; images are not augmented; w itself is evaluated, not
w + d.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

from tacit.core import Call, Client, Cohort, Method, Params, Predictor, Reply, Sample, check, task
from tacit.local.prototypes import Episodes, Private, nearest


@dataclass(frozen=True)
class State:
    x: Params  # w, the meta model
    g: Params
    round: int = 0


@dataclass(frozen=True)
class PFLDyn(Method[State]):
    averages = True
    answers = "personal"
    rounds: int = 20  # communication rounds
    per_round: int = 0  # clients sampled in each round; 0: everyone
    alpha: float = 0.1  # weight of the quadratic term
    share: bool = True  # scale the step of g by the share of clients that took part
    local: Episodes = field(default_factory=Episodes)  # local training

    def __post_init__(self) -> None:
        check.rounds(self.rounds, self.per_round)
        check.number("alpha", self.alpha, above=0)

    def init(self, x0: Params) -> State:
        return State(x0, g=x0.zeros())

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        return steps(self, cohort, s, lambda x: train(x=x, alpha=self.alpha, local=self.local))

    def predictor(self, me: Client, s: State) -> Predictor:
        return nearest(me, s.x)


@dataclass(frozen=True)
class Update:
    dx: Params


@task
def train(me: Client, x: Params, alpha: float, local: Episodes) -> Reply[Update]:
    g_n: Params = me.kept.get("g", x.zeros())
    dx = debiased(me, x, g_n, alpha, local)
    return Reply(Update(dx), keep={"g": g_n - alpha * dx})


def debiased(
    me: Client,
    x: Params,
    g_n: Params,
    alpha: float,
    local: Episodes,
    private: Private | None = None,
) -> Params:
    """Return w_n - w_t after local training with -<w, g_n> + alpha/2 ||w - w_t||^2."""
    return local.fit(me, x, grad=lambda g, y: g - g_n + alpha * (y - x), private=private) - x


class Debiased(Protocol):
    """What a method with PFLDyn's server has."""

    @property
    def rounds(self) -> int: ...
    @property
    def share(self) -> bool: ...
    @property
    def alpha(self) -> float: ...
    def participants(self, cohort: Cohort, t: int) -> Sample: ...


def steps(
    method: Debiased, cohort: Cohort, s: State, call: Callable[[Params], Call[Update]]
) -> Iterator[State]:
    """Yield the server's states, given what it asks of clients."""
    for t in range(s.round, method.rounds):
        replies = cohort.ask(call(s.x), method.participants(cohort, t))
        part = len(replies) / len(cohort.everyone) if method.share else 1.0
        x, g = stepped(s.x, s.g, cohort.mean(r.dx for r in replies), method.alpha, part)
        s = replace(s, x=x, g=g, round=t + 1)
        yield s


def stepped(x: Params, g: Params, d: Params, alpha: float, part: float) -> tuple[Params, Params]:
    """Return the server's next w and g."""
    g = g - (alpha * part) * d
    return x + d - g / alpha, g
