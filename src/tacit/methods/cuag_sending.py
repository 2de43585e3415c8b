"""How CUAG-PFL's clients send: the rules that follow from its settings."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

from tacit.core import Claim, ClientId, Known, Sizes, some
from tacit.methods import cuag_claims as paper
from tacit.methods import cuag_rules as rules
from tacit.methods.cuag_gaussian import Gaussian
from tacit.methods.cuag_settings import Settings
from tacit.privacy.gdp import gdp_mu
from tacit.privacy.rules import Open, Together

UPLINK = 0.28  # the share that covariances are sent with, if the rate is dynamic
ANY = rules.Turn()
OfRound = rules.ExampleLevel | rules.LayeredUpdate | rules.LayeredSum
Sender = Open | paper.AsPublished | OfRound


@dataclass(frozen=True)
class Sending(Settings):
    """What each client may spend, and by which rule it sends."""

    def tuned(self, known: Known) -> Self:
        """Choose what nobody has said."""
        if self.head == "auto":
            fits = known.linear and self.can_share_gaussians
            chosen = replace(self, head="gaussian" if fits else "prototypes")
            return chosen.tuned(known)
        shared = self.head == "gaussian" and self.rounds == Settings.rounds
        return replace(self, rounds=1) if shared else self

    def first_rule(self, client: ClientId, n: int, delta: float) -> Gaussian | None:
        """Return the rule of moments that everybody releases once."""
        if self.kind != "gaussian":
            return None
        none = self.compressor.matrix == "none"
        rate = 1.0 if none else self.compressor.rate or UPLINK
        return Gaussian(self.mu_of(client, delta), rate)

    def mu_of(self, client: ClientId, delta: float) -> float:
        """Return the mu that a client spends over all rounds."""
        if self.mus:
            return self.mus[int(client) % len(self.mus)]
        return gdp_mu(self.epsilon, delta) if self.epsilon else self.mu

    def rule(
        self, client: ClientId, n: int, K: int, delta: float, turn: rules.Turn = ANY
    ) -> Sender | Together:
        """Return how a client sends in a round; moments are sent once, before all rounds."""
        once = self.kind == "gaussian"
        return Together(()) if once else self.sender(client, n, K, delta, turn)

    def sender(self, client: ClientId, n: int, K: int, delta: float, turn: rules.Turn) -> Sender:
        """Return how a client sends; ``turn`` is for sending alone, no line depends on it."""
        mu = self.mu_of(client, delta)
        if self.kind == "open":
            return Open(paper.NAME, paper.why(0.0))
        if self.kind == "paper":
            fixed = (self.fixed_clip, self.squared, self.sigma)
            return paper.AsPublished(mu, turn.lam, self.local, *fixed)
        if self.kind == "example":
            return rules.ExampleLevel(mu, self.clip, self.radius, self.local, delta)
        if self.kind == "update":
            return rules.LayeredUpdate(mu, self.schedule, turn)
        return rules.LayeredSum.of(mu, K, some(self.per_round), self.adaptive, turn.c)

    def claims(self, sizes: Sizes, delta: float) -> list[Claim]:
        mu = self.mu_of("0", delta)
        published = paper.published(mu, self.sigma, self.local.batch, self.local.steps, delta)
        return [*published, ("certified", math.inf, paper.why(mu, self.sigma))]

    def claimed(self, t: int, sizes: Sizes, delta: float) -> tuple[float, float] | None:
        lam = (self.per_round or len(sizes)) / len(sizes)
        mu, D, local = self.mu_of("0", delta), min(sizes.values()), self.local
        if self.mode == "certified" or not mu:
            return None
        return paper.after(mu, self.sigma, D, lam, local.batch, t, local.steps, delta)
