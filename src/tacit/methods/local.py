"""Every client alone: nothing is shared. The floor that any personal method has to beat."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tacit.core import (
    Client,
    Cohort,
    Nothing,
    Params,
    Predictor,
    Release,
    Reply,
    check_rounds,
    some,
    task,
)
from tacit.local.sgd import SGD, network
from tacit.methods.fedavg import State


@dataclass(frozen=True)
class Local:
    # a client trains in the rounds in which it is sampled, as under the other methods
    rounds: int = 20
    per_round: int = 0  # clients sampled in each round; 0: everyone
    sgd: SGD = field(default_factory=SGD)  # local training

    def __post_init__(self) -> None:
        check_rounds(self.rounds, self.per_round)

    def init(self, x0: Params) -> State:
        return State(x0)

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        for t in range(s.round, self.rounds):
            cohort.ask(train(x=s.x, sgd=self.sgd), cohort.sample(some(self.per_round), t))
            s = State(x=s.x, round=t + 1)
            yield s

    def releases(
        self, sizes: Mapping[str, int], times: Mapping[str, int], delta: float
    ) -> list[Release]:
        """Return the steps of DP-SGD, which count although nothing leaves a client, or that there is nothing."""
        said = [
            Release("local.train", "example", c, "server", Nothing(), ((0, k - 1),))
            for c, k in times.items()
        ]
        return said + [line for c, k in times.items() for line in self.sgd.lines(c, sizes[c], k)]

    def predictor(self, me: Client, s: State) -> Predictor:
        return network(me, me.kept.get("y", s.x))


@dataclass(frozen=True)
class Done:
    """Says only that the work is done."""


@task
def train(me: Client, x: Params, sgd: SGD) -> Reply[Done]:
    y, _ = sgd.fit(me, me.kept.get("y", x))
    return Reply(Done(), keep={"y": y})
