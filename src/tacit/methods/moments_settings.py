"""The settings of `moments`, and what clients release because of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from tacit.core import Method, Release, Sizes, Times, check
from tacit.privacy.gdp import gdp_mu
from tacit.privacy.rules import once
from tacit.synthesis.moments import Terms


@dataclass(frozen=True)
class Settings(Method):
    """What can be set, and the terms of the one release."""

    answers = "shared"
    can_follow: ClassVar[bool] = False
    epsilon: float = 1.0  # what the release costs one example
    # auto: qda, with few records lda
    head: Literal["auto", "qda", "lda", "logistic", "mlp"] = "auto"
    share: float = 0.2  # share of the budget for counts and means
    s: float = 0.5  # weight of a record's count beside its features
    R: float = 0.5  # bound on a record's distance from its class mean
    # with colour-hog: an image and its mirror image are of one class, as in photographs, and not in
    # writing
    mirror: bool = True

    def __post_init__(self) -> None:
        check.number("epsilon", self.epsilon, above=0)
        check.number("share", self.share, above=0, below=1)
        check.clip("s", self.s)
        check.clip("R", self.R)

    @property
    def rounds(self) -> int:
        return 1

    @property
    def wants_features(self) -> bool:
        return True

    def terms(self, delta: float) -> Terms:
        return Terms(gdp_mu(self.epsilon, delta), self.share, self.s, self.R)

    def releases(self, sizes: Sizes, times: Times, delta: float) -> list[Release]:
        return once(self.terms(delta), sizes, sizes)
