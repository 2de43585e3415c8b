"""GFL's settings, and what is released because of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Self

from tacit.core import Accounted, BadInput, ClientId, Known, Method, Sizes, Times, Unnoised, check
from tacit.local.sgd import SGD
from tacit.privacy.rules import Together
from tacit.synthesis import choices, shares
from tacit.synthesis.source import Source


@dataclass(frozen=True)
class Settings(Source, Method):
    """What can be set, and what clients do and release because of it."""

    can_follow: ClassVar[bool] = False
    COST: ClassVar[dict[str, float]] = {"certified": 1.0, "paper": 0.1}
    n_k: int = 500  # samples from each client
    E_s: float = 10.0  # epochs of the server's training in the first round
    # epoch decay; 0: the same in every round, inf: the server does not train, -inf: only it trains
    tau: float = 0.1
    # auto: open in paper mode, dp-sgd with sgd.clip
    online: Literal["auto", "none", "dp-sgd", "open"] = "auto"
    rounds: int = 20  # communication rounds
    per_round: int = 0  # clients sampled in each round; 0: everyone
    # training at the clients and, without noise, at the server; lr auto: 0.5 where the server alone
    # trains, on public features
    sgd: SGD = field(default_factory=lambda: SGD(lr="auto"))
    # what every client spends in the whole run: with sgd.clip half of it on its samples, unless
    # pool_epsilon says how much; 0: as pool_epsilon and sgd say
    epsilon: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check.rounds(self.rounds, self.per_round)
        check.number("n_k", self.n_k, at_least=1, whole=True)
        check.number("E_s", self.E_s, at_least=0)
        bare = (self.work == "open" and f"online = {self.work!r} sends updates without noise") or ""
        shares.check_shares(self, self.sgd, self.epsilon, bare)
        if abs(self.tau) != math.inf:
            check.number("tau", self.tau, at_least=0)
        if self.online == "dp-sgd" and not self.sgd.clip:
            raise BadInput("online = 'dp-sgd': needs sgd.clip above 0, and sgd.z or sgd.epsilon")
        if self.tau == -math.inf and self.online not in ("auto", "none"):
            raise BadInput(f"online = {self.online!r}: with tau = -inf only the server trains")
        if self.work != "dp-sgd":
            self.sgd.refuse_clip(
                f"must be 0 where clients' work is {self.work!r}; online = 'dp-sgd' takes a clip"
            )

    @property
    def prefers_features(self) -> bool:
        return self.in_feature_space and self.work != "open"

    @property
    def features_network(self) -> str:
        return choices.HEAD if self.work == "none" else super().features_network

    def tuned(self, known: Known) -> Self:
        """Choose what nobody has said."""
        alone = known.features and self.in_feature_space and self.work == "none"
        return replace(self, sgd=choices.steps_on_features(self.sgd, alone=alone))

    @property
    def work(self) -> str:
        """What clients do in the online stage."""
        if self.online != "auto":
            return self.online
        if self.tau == -math.inf:
            return "none"
        if self.mode == "paper":
            return "open"
        return "dp-sgd" if self.sgd.clip else "none"

    def epochs_in(self, t: int) -> float:
        """Return the server's epochs in round t, counted from 0."""
        if abs(self.tau) == math.inf:
            return self.E_s if self.tau < 0 else 0.0
        return self.E_s * math.exp(-self.tau * t)

    @property
    def per_example(self) -> bool:
        return self.sgd.clip > 0

    @property
    def labels_cost(self) -> float:
        """Nothing in paper mode: GFL's labels are random, and no counts are released."""
        return 0.0 if self.mode == "paper" else self.label_epsilon

    def solved(self, sizes: Sizes, times: Times, delta: float) -> Self:
        return shares.shared_out(self, self.sgd, self.epsilon, shares.Facts(sizes, times, delta))

    def first_rule(self, client: ClientId, n: int, delta: float) -> Accounted:
        """Return the rule of the offline stage: everybody's samples."""
        return self.pool_rule(delta)

    def rule(self, client: ClientId, n: int, K: int, delta: float) -> Accounted:
        """Return the rule of the online stage: nothing, DP-SGD, or updates as they are.

        In paper mode labels go up in the clear, whatever updates are.
        """
        bare = self.work == "open" or (self.mode == "paper" and self.work != "none")
        return Together((Unnoised("gfl"), self.sgd) if bare else (self.sgd,))
