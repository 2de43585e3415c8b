"""PATE's settings, and what large clients release because of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from tacit.core import ClientId, Method, Protects, Release, Sizes, Times, check
from tacit.local import teachers
from tacit.local.sgd import SGD
from tacit.privacy.rules import once


@dataclass(frozen=True)
class Settings(Method):
    """What can be set, who is large, and how the votes are released because of it."""

    needs_public: ClassVar[bool] = True
    can_follow: ClassVar[bool] = False
    # large clients, which teach; 0: those nearer in size to the largest client than to the smallest
    m: int = 0
    queries: int = 0  # public images that are voted on; 0: all
    vote_noise: Literal["gaussian", "laplace"] = "gaussian"  # noise on the counts of votes
    sub: int = 50  # sub-teachers of each large client
    # training of a teacher
    teacher: SGD = field(default_factory=lambda: SGD(lr=0.1, epochs=20, batch=16))
    rounds: int = 20  # rounds of the student's training
    epsilon: float = 8.0  # what every large client spends on all queries
    # who adds the noise: each large client, or the server
    labels: Literal["sub-teachers", "vote"] = "sub-teachers"
    sgd: SGD = field(default_factory=SGD)  # the student's training in a round

    def __post_init__(self) -> None:
        check.number("m", self.m, at_least=0, whole=True)
        check.number("epsilon", self.epsilon, above=0)
        check.rounds(self.rounds, 0)
        self.sgd.refuse_clip(teachers.SOLVED)
        _ = self.voting  # which checks the others

    @property
    def voting(self) -> teachers.Voting:
        """How public images get their labels."""
        how = (self.labels, self.epsilon, self.queries, self.vote_noise, self.sub)
        return teachers.Voting(*how, self.teacher)

    @property
    def protects(self) -> Protects:
        return ("client", "clients") if self.labels == "vote" else ("example", "server")

    def groups(self, sizes: Sizes) -> dict[str, list[ClientId]]:
        large = teachers.large_clients(sizes, self.m)
        return {"large": large, "other": [i for i in sizes if i not in large]}

    def releases(self, sizes: Sizes, times: Times, delta: float) -> list[Release]:
        return once(self.voting.rule(delta), sizes, self.groups(sizes)["large"])
