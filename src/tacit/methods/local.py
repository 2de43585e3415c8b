"""Every client alone: nothing is shared. The floor that any personal method has to beat."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tacit.core import Client, ClientId, Cohort, Params, Predictor, Reply, task
from tacit.local.sgd import SGD, Trains, network
from tacit.methods.fedavg import State
from tacit.privacy import rules


@dataclass(frozen=True)
class Local(Trains[State]):
    goals = ("classes",)
    answers = "personal"
    shares = False
    without_clip = "nothing leaves a client, which costs 0; sgd.clip = 1, say, is DP-SGD"

    def init(self, x0: Params) -> State:
        return State(x0)

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        """Let clients train in the rounds in which they are sampled, as under other methods."""
        for t in range(s.round, self.rounds):
            cohort.ask(train(x=s.x, sgd=self.sgd), self.participants(cohort, t))
            s = State(x=s.x, round=t + 1)
            yield s

    def rule(self, client: ClientId, n: int, K: int, delta: float) -> rules.Together:
        """Return that nothing leaves; but the steps of DP-SGD, if that is how it trains, count."""
        return rules.Together((rules.Silent(train.name), self.sgd))

    def predictor(self, me: Client, s: State) -> Predictor:
        return network(me, me.kept.get("y", s.x))


@dataclass(frozen=True)
class Done:
    """Says only that the work is done."""


@task
def train(me: Client, x: Params, sgd: SGD) -> Reply[Done]:
    y, _ = sgd.fit(me, me.kept.get("y", x))
    return Reply(Done(), keep={"y": y})
