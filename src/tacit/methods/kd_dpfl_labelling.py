"""Phase 1 of KD-DPFL: how the public set gets its labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from tacit.core import Accounted, ClientId, Cohort, Params, Release, Sample, Sizes
from tacit.local.teachers import Voting
from tacit.methods.moments import Moments
from tacit.methods.pate import winners
from tacit.privacy.rules import once


@dataclass(frozen=True)
class Labelling:
    """Phase 1 (algorithm 1): large clients label the public images, by moments or by votes."""

    how: str  # moments, sub-teachers or vote
    epsilon: float  # eps_1, what it costs a large client
    voting: Voting

    @property
    def moments(self) -> Moments:
        """What large clients release; as there are few of them, more of it goes to the means."""
        head = "lda" if self.epsilon < 2 else "auto"
        return Moments(self.epsilon, head=head, share=0.5)  # type: ignore[arg-type]

    def rule(self, delta: float) -> Accounted:
        """Return the rule of what a large client releases, once."""
        return self.moments.terms(delta) if self.how == "moments" else self.voting.rule(delta)

    def releases(self, large: Sequence[ClientId], sizes: Sizes, delta: float) -> list[Release]:
        """Return what the large clients release."""
        return once(self.rule(delta), sizes, large)

    def labels(self, cohort: Cohort, x: Params, large: Sample, images: Tensor) -> Tensor:
        """Ask the large clients; return the pseudo-labels of the images.

        Args:
            cohort: whom to ask
            x: where teachers start from
            large: who teaches
            images: the public ones
        """
        if self.how == "moments":
            return self.moments.labels(cohort, large, images)
        return winners(self.voting, cohort, x, large, images)
