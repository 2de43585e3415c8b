"""KD-DPFL's settings, and the two phases that follow from them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Self

from tacit.core import BadInput, Claim, ClientId, Method, Protects, Release, Sizes, Times, check
from tacit.local import teachers
from tacit.local.sgd import SGD
from tacit.methods.kd_dpfl_labelling import Labelling
from tacit.methods.kd_dpfl_rounds import Rounds
from tacit.privacy import phases

# settings that are those of phase 2
SAME = ("rounds", "per_round", "eps_pub", "ratio", "C", "K_max", "clip", "sgd", "special")


@dataclass(frozen=True)
class Settings(Method):
    """What can be set, and what follows from it."""

    can_follow: ClassVar[bool] = False
    needs_public: ClassVar[bool] = True
    # large clients, which teach; 0: those nearer in size to the largest client than to the smallest
    m: int = 0
    queries: int = 0  # public images that are voted on; 0: all
    vote_noise: Literal["gaussian", "laplace"] = "gaussian"  # noise on the counts of votes
    sub: int = 50  # sub-teachers of each large client
    # training of a teacher
    teacher: SGD = field(default_factory=lambda: SGD(lr=0.1, epochs=20, batch=16))
    rounds: int = 10  # communication rounds of phase 2, at most
    per_round: int = 6  # N: the special client and N - 1 others; 0: all of them
    # certified: with proof; paper: as published, whatever it really spends
    mode: Literal["certified", "paper"] = "certified"
    # auto: moments if certified, else vote
    labels: Literal["auto", "moments", "sub-teachers", "vote"] = "auto"
    epsilon: float = 8.0  # what every client spends over the whole run, in both phases together
    # epsilon of large clients, for the pseudo-labels; 0: epsilon, or with large_join half of it, or
    # what eps_2 leaves
    eps_1: float = 0.0
    # epsilon of phase 2; 0: epsilon, or with large_join half of it, or what eps_1 leaves
    eps_2: float = 0.0
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
        check.rounds(self.rounds, self.per_round)
        check.number("m", self.m, at_least=0, whole=True)
        check.number("epsilon", self.epsilon, above=0)
        for name in ("eps_1", "eps_2"):
            check.number(name, getattr(self, name), at_least=0, at_most=self.most)
        if self.mode == "paper" and self.labels not in ("auto", "vote"):
            raise BadInput(
                f"labels = {self.labels!r}: the paper has none; allowed with mode = paper: vote"
            )
        self.sgd.refuse_clip(teachers.SOLVED)
        _ = self.phase_1, self.phase_2  # whose settings are checked

    @property
    def phase_1(self) -> Labelling:
        """Where pseudo-labels come from."""
        usual = "vote" if self.mode == "paper" else "moments"
        how = usual if self.labels == "auto" else self.labels
        voting = teachers.Voting(
            how, self.budgets[0], self.queries, self.vote_noise, self.sub, self.teacher
        )
        return Labelling(how, self.budgets[0], voting)

    @property
    def phase_2(self) -> Rounds:
        """The rounds with the special client."""
        return Rounds(
            paper=self.mode == "paper",
            epsilon=self.budgets[1],
            **{name: getattr(self, name) for name in SAME},
        )

    @property
    def most(self) -> float:
        """What phases may be said to cost; the usual epsilon stands back where they say it."""
        usual = self.epsilon == Settings.epsilon
        return math.inf if usual or self.mode == "paper" else self.epsilon

    @property
    def budgets(self) -> tuple[float, float]:
        """eps_1 and eps_2."""
        return self.eps_1 or self.epsilon, self.eps_2 or self.epsilon

    @property
    def protects(self) -> Protects:
        return ("example", "clients" if self.phase_1.how == "vote" else "server")

    @property
    def per_example(self) -> bool:
        return self.mode == "certified"

    def groups(self, sizes: Sizes) -> dict[str, list[ClientId]]:
        large = teachers.large_clients(sizes, self.m)
        general = [i for i in sizes if i not in large]
        if not general:
            kind = "sizes:kd-mnist, for one, has 4 large of 53"
            raise BadInput(f"m = {self.m}: leaves no general client; {kind}")
        return {"large": large, "general": general}

    def pool(self, sizes: Sizes) -> list[ClientId]:
        """Return who may be in phase 2: general clients and, if they join, large ones."""
        groups = self.groups(sizes)
        return groups["general"] + groups["large"] * self.large_join

    def solved(self, sizes: Sizes, times: Times, delta: float) -> Self:
        if self.mode == "paper" or not self.large_join:
            return self
        if self.eps_1 and self.eps_2:  # given, or solved before: in the config.toml of a run
            if self.most < math.inf:
                spent = phases.cost_of(self.releases(sizes, times, delta), self.protects, delta)
                check.number("eps_1 and eps_2 together cost eps", spent, at_most=1.001 * self.most)
            return self
        one, two = phases.parts_of(self.epsilon, self.eps_1, self.eps_2, delta)
        first = bool(self.eps_2)  # what was given stays
        return phases.cheapened(
            lambda c: replace(
                self, eps_1=(c if first else 1) * one, eps_2=(1 if first else c) * two
            ),
            lambda made: made.releases(sizes, times, delta),
            self.protects,
            self.epsilon,
            delta,
        )

    def releases(self, sizes: Sizes, times: Times, delta: float) -> list[Release]:
        """Return what large clients release once, and then the pool, each as often as can be."""
        large = self.groups(sizes)["large"]
        labels = self.phase_1.releases(large, sizes, delta)
        return labels + self.phase_2.releases(self.pool(sizes), sizes, delta)

    def claims(self, sizes: Sizes, delta: float) -> list[Claim]:
        return self.phase_2.claims(self.budgets[0])
