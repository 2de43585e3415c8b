"""CUAG-PFL's own formulas (Li et al. 2024): its noise, and what it claims.

Nothing here certifies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tacit.core import Claim, Client, ClientId, Gaussian, Params, Release, Sampling
from tacit.local.prototypes import Episodes
from tacit.privacy import rules
from tacit.privacy.bill import Part
from tacit.privacy.claimed import clt_epsilon
from tacit.privacy.gdp import gdp_epsilon
from tacit.privacy.layers import times
from tacit.privacy.pld import pld_epsilon

NAME = "cuag update"  # in the ledger
# its own setting: rounds, examples of a client, share of clients in a round
T = 300
D = 500
LAM = 0.1


def sigma(mu: float, D: int, lam: float, B: int, t: int, P: int) -> float:
    """Return the paper's noise multiplier, by the central limit theorem with mu in all so far.

    Args:
        mu: of Gaussian differential privacy
        D: how many examples the client has
        lam: the share of clients that take part in a round
        B: examples in a batch
        t: the round, counted from 1
        P: local steps in a round
    """
    return 1 / math.sqrt(math.log1p(mu**2 * D**2 / (4 * lam**2 * B**2 * t * P)))


def after(
    mu: float, fixed: float, D: int, lam: float, B: int, t: int, P: int, delta: float
) -> tuple[float, float]:
    """Return sigma in round t and the epsilon claimed by then (figure 4).

    With mu, epsilon stays and sigma grows; with a ``fixed`` sigma it is the other way round. The
    other arguments are those of `sigma`.
    """
    if not fixed:
        return sigma(mu, D, lam, B, t, P), gdp_epsilon(mu, delta)
    return fixed, clt_epsilon(fixed, t * P, 2 * lam * B / D, delta=delta)


def why(mu: float, fixed: float = 0.0) -> str:
    """Return what the proof lacks."""
    if not mu:
        return "mu = 0: updates are sent without noise"
    said = f"sigma {fixed:g} in all rounds" if fixed else f"claimed mu {mu:g}"
    return (
        f"{said}, but the clip is the update's own norm, "
        "so the size of the noise reveals it, "
        "and 2C/B is not the sensitivity of an update"
    )


@dataclass(frozen=True)
class AsPublished:
    """Algorithm 4: layer l gets noise 2 C_l sigma / B. It proves nothing."""

    mu: float
    lam: float  # share of clients in a round
    local: Episodes
    fixed_clip: float = 0.0  # C of every layer (table 5); 0: C_l is the layer's own norm
    squared: bool = False  # take the printed variance for the standard deviation
    fixed: float = 0.0  # sigma in all rounds (table 5); 0: as mu says

    def send(self, me: Client, v: Params) -> Params:
        B = self.local.batch
        now = sigma(self.mu, me.size, self.lam, B, me.round + 1, self.local.steps)
        sd = self.fixed or now
        size = v.norms()
        C = {k: self.fixed_clip or size[k] for k in v}
        S = {k: 2 * C[k] / B for k in v}
        if self.squared:
            S = {k: S[k] ** 2 * sd for k in v}
        unit = {k: min(1.0, C[k] / size[k]) / S[k] if size[k] else 0.0 for k in v}
        noisy = rules.AsPublished(NAME, sd, why(self.mu, self.fixed)).send(me, times(v, unit))
        return times(noisy, S)

    def lines(self, owner: ClientId, n: int, times: int) -> list[Release]:
        said = rules.Open(NAME, why(self.mu, self.fixed))
        return said.lines(owner, n, times)


def published(mu: float, fixed: float, B: int, P: int, delta: float) -> list[Claim]:
    """Return what mu comes to in the paper's own setting: 300 rounds, 10 of 100 clients.

    Args:
        mu: of Gaussian differential privacy; 0 claims nothing
        fixed: sigma in all rounds, if it is not mu that says it
        B: examples in a batch
        P: local steps in a round
        delta: of all epsilons
    """
    if not mu:
        return []
    if fixed:
        rounds = ((t, after(mu, fixed, D, LAM, B, t, P, delta)[1]) for t in (1, T))
        return [(f"published, round {t}", e, f"CLT-GDP, sigma {fixed:g}") for t, e in rounds]
    H = sum(1 / t for t in range(1, T + 1))
    said = f"mu = {mu:g} in {T} rounds, 10 of 100 clients, {D} examples each"
    anew = f"sigma is solved anew in each round: the rounds add up to {mu * H**0.5:.3f}"
    return [
        ("published", gdp_epsilon(mu, delta), said),
        ("mu sqrt(H_T)", gdp_epsilon(mu * math.sqrt(H), delta), anew),
        *(_exact(mu, t, B, P, delta) for t in (1, 10, 100, T)),
        _public_clip(mu, B, P, delta),
    ]


def _exact(mu: float, t: int, B: int, P: int, delta: float) -> Claim:
    """Return the epsilon of the paper's model after t rounds: samples of rate 2 lam B/D."""
    sampling = Sampling.at(2 * LAM * B / D)
    parts: list[Part] = [
        (Gaussian(sigma(mu, D, LAM, B, s, P)), sampling, "zero-out") for s in range(1, t + 1)
    ]
    epsilon = pld_epsilon([(part, P) for part in parts], "zero-out", delta, 1e-3)
    return (f"exact, round {t}", epsilon, "PLD of the paper's own model")


def _public_clip(mu: float, B: int, P: int, delta: float) -> Claim:
    """Return what the paper's noise is worth if its clips were public."""
    rounds = sum((B / sigma(mu, D, LAM, B, t, P)) ** 2 for t in range(1, T + 1))
    epsilon = gdp_epsilon(math.sqrt(LAM * rounds), delta)  # a client is in lam T rounds
    return ("public clip", epsilon, "real noise, were C public: updates are 2C apart")
