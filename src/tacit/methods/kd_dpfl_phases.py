"""The two phases that follow from KD-DPFL's settings, and what is released in them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

from tacit.core import BadInput, Claim, ClientId, Protects, Release, Sizes, Times, check
from tacit.local import teachers
from tacit.methods import kd_dpfl_choices as choices
from tacit.methods.kd_dpfl_labelling import Labelling
from tacit.methods.kd_dpfl_rounds import Rounds
from tacit.methods.kd_dpfl_settings import Settings
from tacit.privacy import phases

# settings that are those of phase 2
SAME = ("rounds", "per_round", "eps_pub", "ratio", "C", "K_max", "special")


@dataclass(frozen=True)
class Phases(Settings):
    """Who does what in which phase, and at what cost."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.phase_1, self.phase_2  # whose settings are checked

    @property
    def phase_1(self) -> Labelling:
        """Where pseudo-labels come from."""
        usual = "vote" if self.mode == "paper" else "moments"
        how = usual if self.labels == "auto" else self.labels
        voting = teachers.Voting(
            how, self.budgets[0], self.queries, self.vote_noise, self.sub, self.teacher
        )
        return Labelling(how, self.budgets[0], voting)

    @property
    def phase_2(self) -> Rounds:
        """The rounds with the special client."""
        return Rounds(
            paper=self.mode == "paper",
            gradients=self.sends_gradients,
            epsilon=self.budgets[1],
            clip=choices.USUAL_CLIP if self.clip == "auto" else self.clip,
            sgd=self.usual_sgd,
            **{name: getattr(self, name) for name in SAME},
        )

    @property
    def protects(self) -> Protects:
        return ("example", "clients" if self.phase_1.how == "vote" else "server")

    @property
    def per_example(self) -> bool:
        return self.mode == "certified"

    def groups(self, sizes: Sizes) -> dict[str, list[ClientId]]:
        large = teachers.large_clients(sizes, self.m)
        general = [i for i in sizes if i not in large]
        if not general:
            kind = "sizes:kd-mnist, for one, has 4 large of 53"
            raise BadInput(f"m = {self.m}: leaves no general client; {kind}")
        return {"large": large, "general": general}

    def pool(self, sizes: Sizes) -> list[ClientId]:
        """Return who may be in phase 2: general clients and, if they join, large ones."""
        groups = self.groups(sizes)
        return groups["general"] + groups["large"] * self.large_join

    def solved(self, sizes: Sizes, times: Times, delta: float) -> Self:
        if self.mode == "paper" or not self.large_join:
            return self
        if self.eps_1 and self.eps_2:  # given, or solved before: in the config.toml of a run
            if self.most < math.inf:
                spent = phases.cost_of(self.releases(sizes, times, delta), self.protects, delta)
                check.number("eps_1 and eps_2 together cost eps", spent, at_most=1.001 * self.most)
            return self
        one, two = phases.parts_of(self.epsilon, self.eps_1, self.eps_2, delta)
        first = bool(self.eps_2)  # what was given stays
        return phases.cheapened(
            lambda c: replace(
                self, eps_1=(c if first else 1) * one, eps_2=(1 if first else c) * two
            ),
            lambda made: made.releases(sizes, times, delta),
            self.protects,
            self.epsilon,
            delta,
        )

    def releases(self, sizes: Sizes, times: Times, delta: float) -> list[Release]:
        """Return what large clients release once, and then the pool, each as often as can be."""
        large = self.groups(sizes)["large"]
        labels = self.phase_1.releases(large, sizes, delta)
        return labels + self.phase_2.releases(self.pool(sizes), sizes, delta)

    def claims(self, sizes: Sizes, delta: float) -> list[Claim]:
        return self.phase_2.claims(self.budgets[0])
