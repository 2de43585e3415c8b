"""DP-SCAFFOLD (Noble et al. 2022, Algorithm 1): SCAFFOLD whose local steps are DP-SGD.

The clients' variates are made of the same noised gradients, so they cost nothing more and may leave
the client; the shared model and the variates go up as in `scaffold`, whose task this is. Given
`sgd.epsilon`, the noise is solved.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tacit.core import BadInput, Cohort, Params
from tacit.local.sgd import SGD, Trains
from tacit.methods.scaffold import Scaffold, State


@dataclass(frozen=True)
class DPScaffold(Trains):
    server_lr: float = 1.0  # the server's step along the mean update
    sgd: SGD = field(default_factory=lambda: SGD(batch=64, clip=1.0, z=1.0))  # local DP-SGD

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.sgd.clip:
            raise BadInput(f"sgd.clip = {self.sgd.clip}: dp_scaffold needs a clip above 0")
        self.sgd.refuse_adam("a control variate is the mean gradient of the steps")

    def init(self, x0: Params) -> State:
        return State(x0, c=x0.zeros())

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        same = Scaffold(self.rounds, self.per_round, self.sgd, self.server_lr)
        return same.run(cohort, s)
