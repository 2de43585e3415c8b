"""CUAG-PFL's rules: how a compressed update leaves a client, and what the ledger says of it.

One of five: as it is (`Open` of privacy/rules.py), with the published noise (`AsPublished` of
cuag_claims.py), made private example by example while it was trained, with noise on every client's
update, or with noise on their sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tacit.core import Client, ClientId, Cohort, Law, Params, Release, Replies
from tacit.local.prototypes import Episodes, Private
from tacit.methods.cuag_claims import NAME
from tacit.methods.pfldyn import Update
from tacit.privacy import rules
from tacit.privacy import schedule as schedules
from tacit.privacy.layers import LayerBounds

TO_PROTOTYPES = 0.1  # of mu^2, at the example level


@dataclass(frozen=True)
class Turn:
    """What is public about a client's part in a round."""

    k: int = 1  # it is the client's k-th
    K: int = 1  # of K rounds in all
    lam: float = 1.0  # the share of clients that take part in it
    c: dict[str, float] = field(default_factory=dict)  # bounds of the layers, in clipping modes


@dataclass(frozen=True)
class ExampleLevel:
    """Prototypes once a round and DP-SGD under them, as costly as mu in all rounds together.

    So what was trained may leave; compression is post-processing.
    """

    mu: float
    clip: float  # clipping norm of an example's gradient
    radius: float  # norm of the embeddings
    local: Episodes
    delta: float

    def private(self, n: int, K: int) -> Private:
        """Return the settings of training for a client of ``n`` examples in ``K`` rounds."""
        P = self.local.steps
        q = self.local.rate(n)
        z = schedules.noise_beside(self.mu, TO_PROTOTYPES, K, P, q, self.delta)
        return Private(self.clip, *z, self.radius)

    def send(self, me: Client, v: Params) -> Params:
        """Return it as it is: it is made of released steps."""
        return v

    def lines(self, owner: ClientId, n: int, times: int) -> list[Release]:
        if not times:
            return []
        return self.local.rule(self.private(n, times), n).lines(owner, n, times)


@dataclass(frozen=True)
class LayeredUpdate:
    """Layers clipped to public bounds, together one release a round; sum of mu_k^2 is mu^2."""

    mu: float
    schedule: schedules.Schedule
    turn: Turn

    def send(self, me: Client, v: Params) -> Params:
        bounds = LayerBounds.of(self.turn.c, v)
        noisy = self._in_round(self.turn.k, self.turn.K).send(me, bounds.clipped(v))
        return bounds.unscaled(noisy)

    def lines(self, owner: ClientId, n: int, times: int) -> list[Release]:
        if self.schedule == "constant" and times:
            return self._in_round(1, times).lines(owner, n, times)
        each = (self._in_round(k, times) for k in range(1, times + 1))
        return rules.in_turn(each, owner, n)

    def _in_round(self, k: int, K: int) -> rules.Update:
        mu = schedules.mu_in_round(self.mu, k, K, self.schedule)
        return rules.Update.costing(mu, NAME, 1.0)


@dataclass(frozen=True)
class LayeredSum:
    """Layers clipped to public bounds, summed up by the server, which adds the noise.

    Who takes part is no secret, so each client pays for its rounds.
    """

    noisy: rules.NoisyMean
    adaptive: bool  # bounds follow the medians of the norms
    c: dict[str, float]  # bounds of the layers

    @classmethod
    def of(cls, mu: float, K: int, law: Law, adaptive: bool, c: dict[str, float]) -> LayeredSum:
        """Return the rule by which clients in K rounds at most spend mu."""
        z = math.sqrt(K) / mu
        return cls(rules.NoisyMean("cuag.train", law, z, secret=False), adaptive, c)

    def send(self, me: Client, v: Params) -> Params:
        """Return what the server may see, and nobody else: there is no noise on it yet."""
        bounds = LayerBounds.of(self.c, v)
        return bounds.with_bits(v) if self.adaptive else bounds.clipped(v)

    def own(self, v: Params) -> Params:
        """Return what is left of a client's own update, at its own size."""
        bounds = LayerBounds.of(self.c, v)
        return bounds.unscaled(bounds.clipped(v))

    def mean(
        self, cohort: Cohort, replies: Replies[Update], like: Params
    ) -> tuple[Params, dict[str, float]]:
        """Return the noisy mean of the updates, and the next bounds.

        Args:
            cohort: whose server draws the noise
            replies: of the clients that were asked; the mean is over all that were
            like: a compressed update, for its layers
        """
        bounds = LayerBounds.of(self.c, like)
        like = bounds.with_bits(like) if self.adaptive else like
        out_of = len(replies.sample.ids)
        u = self.noisy.send(cohort, replies, lambda r: r.dx, like=like, clip=1.0, out_of=out_of)
        return bounds.followed(u) if self.adaptive else (bounds.unscaled(u), self.c)

    def lines(self, owner: ClientId, n: int, times: int) -> list[Release]:
        return self.noisy.lines(owner, n, times)
