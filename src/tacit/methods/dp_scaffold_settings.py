"""DP-SCAFFOLD's settings, the rule that follows from them, and what its paper claims."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal, Self

from tacit.core import Accounted, BadInput, Claim, Client, ClientId, Known, NotPrivate, Sizes
from tacit.local.sgd import SGD, Trains
from tacit.privacy.claimed import other_of
from tacit.privacy.mechanisms import ClaimedSteps
from tacit.privacy.rules import Open

USUAL_BATCH = 64
NAME = "dp_scaffold steps"
WARM = "dp_scaffold warm start"
WHY = "the clip is the median of the batch's own norms, which bounds no example's part"


@dataclass(frozen=True)
class Settings(Trains):
    """What can be set, and how clients send because of it."""

    server_lr: float = 1.0  # the server's step along the mean update
    # certified: with proof; paper: as published, whatever it really spends
    mode: Literal["certified", "paper"] = "certified"
    # local DP-SGD; in paper mode z is the paper's sigma, and clip means nothing; auto is chosen by
    # rules with an epsilon and a linear model of public features; else batch is 64
    sgd: SGD = field(
        default_factory=lambda: SGD(lr="auto", epochs="auto", batch="auto", clip=1.0, z=1.0)
    )
    warm: bool = False  # paper: before the first round all send a variate, at the first model

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.sgd.clip:
            raise BadInput(f"sgd.clip = {self.sgd.clip}: dp_scaffold needs a clip above 0")
        if self.mode == "paper" and not self.sgd.z:
            raise BadInput(f"sgd.z = {self.sgd.z}: must be above 0 in mode = 'paper'")
        if self.mode == "paper" and (given := self.epsilon or self.sgd.epsilon):
            name = "epsilon" if self.epsilon else "sgd.epsilon"
            raise NotPrivate(f"{name} = {given:g}: means nothing in mode = 'paper'")
        if self.warm and self.mode == "certified":
            raise BadInput("warm = True: means nothing in mode = 'certified'")
        self.sgd.refuse_adam("a control variate is the mean gradient of the steps")

    @property
    def prefers_features(self) -> bool:
        return self.mode == "certified" and super().prefers_features

    def tuned(self, known: Known) -> Self:
        if self.prefers_features and known.linear:
            return super().tuned(known)
        batch = USUAL_BATCH if self.sgd.batch == "auto" else self.sgd.batch
        return replace(self, sgd=replace(self.sgd, batch=batch).as_usual())

    @property
    def per_example(self) -> bool:
        return self.mode == "certified"  # as published, each example goes through by itself

    def rule(self, client: ClientId, n: int, K: int, delta: float) -> Accounted:
        return Open(NAME, WHY) if self.mode == "paper" else super().rule(client, n, K, delta)

    def first_rule(self, client: ClientId, n: int, delta: float) -> Open | None:
        return Open(WARM, WHY) if self.warm else None

    def claims(self, sizes: Sizes, delta: float) -> list[Claim]:
        if self.mode == "certified":
            return []
        spent = self.claimed(self.rounds, sizes, delta)
        formula = "sqrt(2 q T ln(1/delta)) / sigma, as CUAG-PFL's paper counts it"
        formula += ", without the warm start" if self.warm else ""
        published = [(f"published, round {self.rounds}", spent[1], formula)] if spent else []
        return [*published, ("certified", math.inf, WHY)]

    def claimed(self, t: int, sizes: Sizes, delta: float) -> tuple[float, float] | None:
        q = (self.per_round or len(sizes)) / max(1, len(sizes))
        z = self.sgd.z
        return (z, other_of(z, t, q, delta=delta)) if self.mode == "paper" else None


def claimed_steps(me: Client, what: str = NAME) -> ClaimedSteps:
    """Return what draws the published noise, and says in the ledger that it proves nothing."""
    return ClaimedSteps(me, what, WHY)
