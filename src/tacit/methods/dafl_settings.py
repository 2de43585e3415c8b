"""DA-FL's settings, the method that its main phase is, and what is released because of them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import ClassVar, Self

from tacit.core import Known, Method, Release, Sizes, Times, Unnoised, check
from tacit.local.sgd import SGD, Trains
from tacit.methods.fedavg import FedAvg
from tacit.privacy.rules import once
from tacit.synthesis import choices, shares
from tacit.synthesis.augment import Augment


@dataclass(frozen=True)
class Settings(Augment, Method):
    """What can be set, and what belongs to the method inside."""

    can_follow: ClassVar[bool] = False
    # the main phase, such as scaffold or fedprox:mu=0.1; its rounds, per_round and sgd are these
    method: Method = field(default_factory=FedAvg)
    rounds: int = 20  # communication rounds of the main phase
    per_round: int = 0  # clients sampled in each round; 0: everyone
    # local training in the main phase; lr auto: 0.5 on samples of public features alone
    sgd: SGD = field(default_factory=lambda: SGD(lr="auto", epochs="auto", batch="auto"))
    # what every client spends in the whole run: with main = dp-sgd half of it on its samples,
    # unless pool_epsilon says how much; 0: as pool_epsilon and sgd say
    epsilon: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check.rounds(self.rounds, self.per_round)
        if self.main == "dp-sgd":
            self.sgd.need_clip("main = 'dp-sgd'")
        if self.phase != "dp-sgd":
            self.sgd.refuse_clip(f"must be 0 with main = {self.phase!r}; 'dp-sgd' takes a clip")
        shares.check_follows(self.method)
        shares.check_shares(self, self.sgd, self.epsilon, self.unshared)
        ours = {name: getattr(self, name) for name in shared_with(self.method)}
        object.__setattr__(self, "method", replace(self.method, **ours))

    @classmethod
    def in_front_of(cls, main: Method, how: Augment) -> Self:
        """Return it with a method as its main phase, which keeps its rounds and its training."""
        ours = {f.name: getattr(how, f.name) for f in fields(Augment)}
        theirs = {name: getattr(main, name) for name in shared_with(main)}
        return cls(**ours, method=main, **theirs)

    @property
    def sharing(self) -> Augment:
        """What is shared before the main phase."""
        return Augment(**{f.name: getattr(self, f.name) for f in fields(Augment)})

    @property
    def per_example(self) -> bool:
        return self.phase == "dp-sgd" or self.method.per_example

    @property
    def prefers_features(self) -> bool:
        return self.in_feature_space and self.phase != "open"

    @property
    def features_network(self) -> str:
        return choices.HEAD if self.trains_on_samples else self.method.features_network

    @property
    def trains_on_samples(self) -> bool:
        """Whether the main phase sees samples alone, and has no noise of its own."""
        return self.phase == "synthetic" and isinstance(self.method, Trains)

    def tuned(self, known: Known) -> Self:
        """Choose what nobody has said, here and in the main phase."""
        alone = known.features and self.in_feature_space and self.trains_on_samples
        usual = choices.GAMMA if alone else choices.USUAL_GAMMA
        gamma = usual if self.gamma == "auto" else self.gamma
        ours = {name: getattr(self, name) for name in shared_with(self.method)}
        if isinstance(self.method, Trains):  # its own rules know nothing of samples
            ours["sgd"] = choices.steps_on_features(self.sgd, alone=alone).as_usual()
        inner = replace(self.method, **ours).tuned(known)
        theirs = ours | {name: getattr(inner, name) for name in ours}
        theirs["sgd"] = theirs.get("sgd", self.sgd).as_usual()
        return replace(self, gamma=gamma, method=inner, **theirs)

    def solved(self, sizes: Sizes, times: Times, delta: float) -> Self:
        known = shares.Facts(sizes, times, delta)
        later = shares.grown(self.sgd, self.ratio, known)
        return shares.shared_out(self, self.sgd, self.epsilon, known, later)

    @property
    def unshared(self) -> str:
        """Why the main phase takes no part of epsilon, if it should."""
        if self.phase == "open":
            return "main = 'open' sends updates without noise"
        return "" if isinstance(self.method, Trains) else "the main phase has an epsilon of its own"

    @property
    def takes_aggregate(self) -> bool:
        return self.method.takes_aggregate

    def releases(self, sizes: Sizes, times: Times, delta: float) -> list[Release]:
        lines = once(self.pool_rule(delta), sizes, sizes)
        if self.phase == "synthetic" and isinstance(self.method, Trains):
            return lines  # it trains on the pool alone
        if isinstance(self.method, Trains) and self.phase == "dp-sgd":
            sizes = shares.with_pool(self.sgd, self.ratio, shares.Facts(sizes, times, delta))
        lines += self.method.releases(sizes, times, delta)
        if self.phase != "synthetic" and self.method.protects[1] != "server":
            lines += once(Unnoised.of(self.method), sizes, sizes)  # the server sees the updates
        return lines


def shared_with(main: Method) -> set[str]:
    """Return the settings that DA-FL has and its main phase, too."""
    return {f.name for f in fields(main)} & {"rounds", "per_round", "sgd"}
