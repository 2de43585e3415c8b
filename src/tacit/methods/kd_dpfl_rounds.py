"""Phase 2 of KD-DPFL: the rounds with the special client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tacit.core import Claim, ClientId, Cohort, Params, Release, Sizes, check
from tacit.data.examples import Examples
from tacit.local.sgd import SGD
from tacit.methods import kd_dpfl_claims as paper
from tacit.methods.fedavg import train
from tacit.methods.kd_dpfl_sending import Sending
from tacit.privacy.mechanisms import public_noise
from tacit.privacy.schedule import Turns


@dataclass(frozen=True)
class Rounds(Sending):
    """Phase 2 (algorithm 2): the special client and some general ones, by lot."""

    rounds: int
    per_round: int  # N, the special client included; 0: all
    eps_pub: float  # paper: of the special client in a round; 0: eps_2 lasts for all rounds
    ratio: float  # paper: eps_pri / eps_pub
    K_max: int  # rounds of a general client, at most; 0: an equal share of all
    special: SGD  # of the special client

    def __post_init__(self) -> None:
        super().__post_init__()
        check.number("eps_pub", self.eps_pub, at_least=0)
        check.number("ratio", self.ratio, above=0)
        check.number("K_max", self.K_max, at_least=0, whole=True)

    def turns(self, pool: Sequence[ClientId]) -> Turns:
        """Any N - 1 of the pool in the paper; else of those drawn least, at most K_max times."""
        N = self.per_round or len(pool) + 1
        return Turns(pool, N - 1, self.rounds, fair=not self.paper, most=self.K_max)

    def plan(self, cohort: Cohort, pool: Sequence[ClientId]) -> list[list[ClientId]]:
        """Return who of the pool takes part in each round."""
        lots = [cohort.rng("kd_dpfl", t) for t in range(self.rounds)]
        return self.turns(pool).drawn([rng.permutation(len(pool)) for rng in lots])

    def releases(self, pool: Sequence[ClientId], sizes: Sizes, delta: float) -> list[Release]:
        """Return what the pool releases, each client as often as can be."""
        K = 1 if self.paper else self.turns(pool).at_most()
        rules = {i: self.rule(sizes[i], K, delta, 1.0) for i in pool if K}
        return [line for i, rule in rules.items() for line in rule.lines(i, sizes[i], K)]

    def costs(self, N: int) -> tuple[float, float, float]:
        """Return the paper's eps_pub, eps_pri, and what it counts for a round of N."""
        return paper.round_costs(self.epsilon / self.rounds, N, self.ratio, self.eps_pub)

    def claims(self, eps_1: float) -> list[Claim]:
        """Return what the paper claims, given the epsilon of phase 1, and what is wrong."""
        return paper.published(max(eps_1, self.epsilon))

    def begun(self, cohort: Cohort, x: Params, c_pub: Examples) -> Params:
        """Return the model before the first round.

        Where gradients are sent, the special client, which needs nobody else, has done by then all
        the training that it would do in the rounds.
        """
        if not self.gradients or not self.rounds:
            return x
        T, its = self.rounds, self.special
        at_once = replace(its, epochs=T * its.usual_epochs, steps=T * its.steps)
        return x + cohort.own(train(x=x, sgd=at_once), c_pub, 0).dx

    def special_client(self, cohort: Cohort, x: Params, c_pub: Examples, t: int, N: int) -> Params:
        """Return w_pub in round t of N participants: with noise in the paper only."""
        w_pub = x + cohort.own(train(x=x, sgd=self.special), c_pub, t).dx
        if not self.paper:
            return w_pub
        eps_pub, _, _ = self.costs(N)
        sd = paper.sigma(self.C, len(c_pub), eps_pub, cohort.delta)
        return public_noise(cohort, w_pub, sd=sd, t=t)
