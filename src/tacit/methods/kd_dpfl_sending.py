"""How a general client of KD-DPFL sends in phase 2, and by which rule."""

from __future__ import annotations

from dataclasses import dataclass

from tacit.core import Client, Params, check
from tacit.local import gradients
from tacit.local.sgd import SGD
from tacit.methods import kd_dpfl_claims as paper
from tacit.privacy.rules import AsPublished, Noised


@dataclass(frozen=True)
class Sending:
    """Weights with the published noise, weights after DP-SGD, or one gradient a round."""

    paper: bool  # as published
    gradients: bool  # general clients send one gradient a round, else weights after DP-SGD
    epsilon: float  # eps_2, of a general client
    C: float  # paper: norm in the published noise
    clip: float  # clipping norm of an example's gradient
    sgd: SGD  # of general clients

    def __post_init__(self) -> None:
        check.number("C", self.C, at_least=0)
        check.clip("clip", self.clip)

    def rule(self, n: int, K: int, delta: float, eps_pri: float) -> SGD | AsPublished | Noised:
        """Return how a general client sends.

        Args:
            n: how many examples it has
            K: the rounds that it takes part in
            delta: of its epsilon
            eps_pri: paper: what the round costs it
        """
        if self.gradients:
            what = "kd_dpfl gradient"
            return gradients.gradient_rule(what, self.clip, self.epsilon, K, delta)
        if not self.paper:
            return self.sgd.costing(self.epsilon, clip=self.clip, n=n, times=K, delta=delta)
        sd = paper.sigma(self.C, n, eps_pri, delta)
        return AsPublished("kd_dpfl weights", sd, paper.NO_CLIPPING)

    def sent(self, me: Client, x: Params, rule: SGD | AsPublished | Noised) -> Params:
        """Train at a general client, and return its step as it goes up."""
        if isinstance(rule, SGD):  # every step is released
            y, _ = rule.fit(me, x)
            return y - x
        if isinstance(rule, Noised):  # one gradient
            return gradients.private_step(me, x, rule, self.sgd)
        y, _ = self.sgd.fit(me, x)
        return rule.send(me, y) - x

    def public_step(self, me: Client, x: Params) -> Params:
        """Return the special client's step in a round of gradients."""
        return gradients.public_step(me, x, self.clip, self.sgd)
