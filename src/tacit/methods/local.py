"""Every client alone: nothing is shared. The floor that any personal method has to beat."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, Self

from tacit.core import (
    Client,
    ClientId,
    Cohort,
    Known,
    Params,
    Predictor,
    Reply,
    task,
)
from tacit.local.sgd import SGD, Trains, network
from tacit.methods.fedavg import State
from tacit.privacy import rules
from tacit.synthesis import personal


@dataclass(frozen=True)
class Local(Trains[State]):
    goals = ("classes",)
    answers = "personal"
    shares = False
    # what clients answer with: the network that they train, or a Gaussian for each of their classes
    head: Literal["network", "gaussian"] = "network"
    without_clip = "nothing leaves a client, which costs 0; sgd.clip = 1, say, is DP-SGD"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.head == "gaussian":
            self.sgd.refuse_clip("must be 0; head = 'gaussian' is in closed form, not trained")

    @property
    def wants_features(self) -> bool:
        return self.head == "gaussian"

    @property
    def prefers_features(self) -> bool:
        return self.wants_features or super().prefers_features

    def tuned(self, known: Known) -> Self:
        """Fit once what is in closed form; else choose what nobody has said of training."""
        once = self.head == "gaussian" and self.rounds == Local.rounds
        return replace(super().tuned(known), rounds=1) if once else super().tuned(known)

    def init(self, x0: Params) -> State:
        return State(x0)

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        """Let clients train in the rounds in which they are sampled, as under other methods."""
        for t in range(s.round, self.rounds):
            call = train(x=s.x, sgd=self.sgd) if self.head == "network" else fit()
            cohort.ask(call, self.participants(cohort, t))
            s = State(x=s.x, round=t + 1)
            yield s

    def rule(self, client: ClientId, n: int, K: int, delta: float) -> rules.Together:
        """Return that nothing leaves; but the steps of DP-SGD, if that is how it trains, count."""
        asked = train if self.head == "network" else fit
        return rules.Together((rules.Silent(asked.name), self.sgd))

    def predictor(self, me: Client, s: State) -> Predictor:
        if self.head == "gaussian":
            return personal.predictor(me)
        return network(me, me.kept.get("y", s.x))


@dataclass(frozen=True)
class Done:
    """Says only that the work is done."""


@task
def train(me: Client, x: Params, sgd: SGD) -> Reply[Done]:
    y, _ = sgd.fit(me, me.kept.get("y", x))
    return Reply(Done(), keep={"y": y})


@task
def fit(me: Client) -> Reply[Done]:
    """Leave all to the predictor, which is in closed form: nothing has to be kept."""
    return Reply(Done())
