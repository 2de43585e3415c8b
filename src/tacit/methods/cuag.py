"""CUAG-PFL (Li et al. 2024, Algorithms 1-4).

PFLDyn whose updates are compressed layer by layer, then noised.

`paper`: to the letter. Rates follow from the last global update; layer l gets noise 2 C_l sigma / B
with C_l its own norm, sigma = sqrt(1 / ln(mu^2 |D|^2 / (4 lambda^2 B^2 t P) + 1)). Nothing is
clipped, so the ledger says inf. Certified, with mu (or eps) for all rounds of a client together:
- `unit = "example"`: prototypes are released once a round, DP-SGD goes on under them; compression
  is post-processing;
- `unit = "client"`: compressed layers are clipped to public bounds and scaled so that together they
  have norm 1 (two clients' are 2 apart at most), then one Gaussian release a round, a client's k-th
  with mu_k, sum mu_k^2 = mu^2
  (`schedule`); g_n is made of it;
- with `observer = "clients"` the noise goes on the sum of the clipped updates. Against the server
  that holds only if secure aggregation shows it nothing but the sum: an assumption. Bounds may
  follow private medians (`adaptive`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from typing import Literal

from tacit.compress import Compressor
from tacit.core import (
    BadInput,
    Claim,
    Client,
    Cohort,
    Gaussian,
    Method,
    NonPrivate,
    Observer,
    Params,
    Predictor,
    Release,
    Replies,
    Reply,
    Sampling,
    Sizes,
    Times,
    Unit,
    check_clip,
    check_number,
    check_rounds,
    some,
    task,
)
from tacit.local.prototypes import Episodes, Private, features_of, nearest, on_sphere
from tacit.methods.pfldyn import Update, debiased, stepped
from tacit.privacy import rules
from tacit.privacy.claimed import cuag_claims, cuag_sigma
from tacit.privacy.gdp import gdp_mu
from tacit.privacy.layers import LayerBounds, shared_out, times
from tacit.privacy.mechanisms import (
    afford_mean,
    claimed_gaussian,
    gaussian_mean,
    gaussian_update,
    update_z,
)
from tacit.privacy.schedule import Schedule, mu_in_round, noise_beside

TO_PROTOTYPES = 0.1  # of mu^2, at the example level
LEAST_MU = 1e-6  # below that noise has no finite size in practice
OF_MODE = {  # settings that mean nothing in a mode
    "paper": ("unit", "observer", "clip", "adaptive", "schedule", "radius"),
    "certified": ("fixed_clip", "squared"),
}


@dataclass(frozen=True)
class State:
    x: Params  # w, the meta model
    g: Params
    rates: dict[str, float]  # of the layers, in the next round
    c: dict[str, float]  # bounds of the layers, where updates are clipped
    round: int = 0


@dataclass(frozen=True)
class CUAG(Method):
    averages = True
    answers = "personal"
    rounds: int = 20  # T, communication rounds
    per_round: int = 0  # clients sampled in each round; 0: everyone
    # certified: with proof; paper: as published, whatever it really spends
    mode: Literal["certified", "paper"] = "certified"
    unit: Literal["example", "client"] = "example"  # what the certified mode protects
    observer: Literal["server", "clients"] = "server"  # from whom; clients: noise on the sum
    mu: float = 0.25  # mu of GDP of every client, over all rounds; 0: neither noise nor clip
    mus: tuple[float, ...] = ()  # one mu for each client in turn, instead
    epsilon: float = 0.0  # what every client spends over all rounds, instead of mu
    # compression: matrix (binary, gaussian, bernoulli) and rate (dynamic, a number); or none
    matrix: str = "binary:dynamic"
    r_max: float = 0.5  # the highest dynamic rate
    r_min: float = 0.2  # a layer whose share of the norms is below this has little weight
    # clipping norm, certified: of an example's gradient, or of a client's update (over all layers)
    clip: float = 1.0
    # observer = clients: let the bounds of the layers follow the medians of the norms, privately
    adaptive: bool = False
    fixed_clip: float = 0.0  # paper: clip every layer to this; 0: each to its own norm
    # paper: take the printed variance (2 C_l sigma / B)^2 for the standard deviation
    squared: bool = False
    schedule: Schedule = "constant"  # shares of mu^2 in a client's rounds; harmonic: 1/k
    radius: float = 2.0  # norm of the embeddings at the example level
    alpha: float = 0.1  # weight of the quadratic term
    share: bool = True  # scale the step of g by the share of clients that took part
    local: Episodes = field(default_factory=Episodes)  # local training

    def __post_init__(self) -> None:
        check_rounds(self.rounds, self.per_round)
        for name in ("mu", "epsilon", "fixed_clip"):
            check_number(name, getattr(self, name), at_least=0)
        check_number("alpha", self.alpha, above=0)
        check_clip("clip", self.clip)
        check_clip("radius", self.radius)
        if self.fixed_clip:
            check_clip("fixed_clip", self.fixed_clip)
        if self.mu:
            check_number("mu", self.mu, at_least=LEAST_MU)
        for mu in self.mus:
            check_number("mus", mu, at_least=LEAST_MU)
        Compressor.of(self.matrix, self.r_max, self.r_min, field="matrix")
        self._check_modes()

    def _check_modes(self) -> None:
        """Refuse settings that mean nothing beside others."""
        for f in fields(self):
            if f.name in OF_MODE.get(self.mode, ()) and getattr(self, f.name) != f.default:
                raise BadInput(
                    f"{f.name} = {getattr(self, f.name)!r}: means nothing in mode = {self.mode!r}"
                )
        if self.epsilon and self.mu != CUAG.mu:
            raise BadInput(
                f"mu = {self.mu:g}: epsilon = {self.epsilon:g} says what clients may spend; give one"
            )
        if self.mus and self.epsilon:
            raise BadInput(
                f"epsilon = {self.epsilon:g}: clients have a mu of their own already (mus)"
            )
        if self.observer == "clients" and (self.unit == "example" or self.mus):
            raise BadInput(
                "observer = 'clients': needs unit = 'client' and one mu for all, as the noise is shared"
            )
        if self.adaptive and self.observer != "clients":
            raise BadInput(
                "adaptive = True: needs observer = 'clients'; noise on every single bit would drown it"
            )
        if self.schedule != "constant" and (self.unit, self.observer) != ("client", "server"):
            raise BadInput(
                f"schedule = {self.schedule!r}: needs unit = 'client' and observer = 'server'"
            )

    @property
    def protects(self) -> tuple[Unit, Observer]:
        return ("client", "server") if self.mode == "paper" else (self.unit, self.observer)

    @property
    def kind(self) -> str:
        """What leaves a client: nothing private, as published, or a certified kind of release."""
        if not (self.mu or self.mus or self.epsilon):
            return "open"
        if self.mode == "paper":
            return "paper"
        return (
            "sum"
            if self.observer == "clients"
            else "update"
            if self.unit == "client"
            else "example"
        )

    @property
    def compressor(self) -> Compressor:
        return Compressor.of(self.matrix, self.r_max, self.r_min, field="matrix")

    @property
    def per_example(self) -> bool:
        return self.kind == "example"

    def init(self, x0: Params) -> State:
        return State(x0, x0.zeros(), self.compressor.rates(x0), shared_out(self.clip, x0))

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        law, N = some(self.per_round), len(cohort.everyone)
        drawn = [cohort.sample(law, t).ids for t in range(self.rounds)]  # no data decide that
        for t in range(s.round, self.rounds):
            S, so_far, in_all = (
                cohort.sample(law, t),
                Counter(chain(*drawn[: t + 1])),
                Counter(chain(*drawn)),
            )
            turns, lam = {n: [so_far[n], in_all[n]] for n in S.ids}, len(S.ids) / N
            call = train(
                x=s.x, rates=s.rates, c=s.c, method=self, turns=turns, lam=lam, delta=cohort.delta
            )
            if self.kind == "sum":
                z, part = self.shared_noise(max(in_all.values()), cohort.delta), lam
                afford_mean(cohort, train.name, S, z, secret=False)
                d, c = self.noisy_mean(cohort, cohort.ask(call, S, need=0.0), s, z)
            else:
                replies = cohort.ask(call, S)
                d, c, part = cohort.mean(r.dx for r in replies), s.c, len(replies) / N
            d = self.compressor.expand(d, s.x, s.rates)
            x, g = stepped(s.x, s.g, d, self.alpha, part if self.share else 1.0)
            s = State(x, g, self.compressor.rates(d), c, t + 1)
            yield s

    def predictor(self, me: Client, s: State) -> Predictor:
        return nearest(me, s.x, on_sphere(self.radius) if self.kind == "example" else features_of)

    @property
    def takes_aggregate(self) -> bool:
        return self.kind != "sum"  # there the noise is on the sum

    def mu_of(self, client: str, delta: float) -> float:
        if self.mus:
            return self.mus[int(client) % len(self.mus)]
        return gdp_mu(self.epsilon, delta) if self.epsilon else self.mu

    def private(self, mu: float, K: int, D: int, delta: float) -> Private:
        """Return the settings of local training at the example level, for a client of D examples in K rounds."""
        z = noise_beside(mu, TO_PROTOTYPES, K, self.local.steps, self.local.rate(D), delta)
        return Private(self.clip, *z, self.radius)

    def shared_noise(self, K: int, delta: float) -> float:
        """Return the noise multiplier of a sum, for clients in K rounds at most.

        Who is in which is no secret.
        """
        return math.sqrt(K) / self.mu_of("0", delta)

    def noisy_mean(
        self, cohort: Cohort, replies: Replies[Update], s: State, z: float
    ) -> tuple[Params, dict[str, float]]:
        """Return the mean of the clipped updates with noise, and the next bounds."""
        like, out_of = self.compressor.compress(s.x.zeros(), s.rates), len(replies.sample.ids)
        bounds = LayerBounds.of(s.c, like)
        like = bounds.with_bits(like) if self.adaptive else like
        u = gaussian_mean(
            cohort, replies, lambda r: r.dx, like=like, clip=1.0, z=z, out_of=out_of, secret=False
        )
        return bounds.followed(u) if self.adaptive else (bounds.unscaled(u), s.c)

    def releases(self, sizes: Sizes, times: Times, delta: float) -> list[Release]:
        if self.kind == "sum":
            event = Gaussian(self.shared_noise(max(times.values()), delta))
            return [
                Release("mean", "client", n, "clients", event, ((0, K - 1),))
                for n, K in times.items()
                if K
            ]
        return [line for n, K in times.items() if K for line in self._lines(n, sizes[n], K, delta)]

    def _lines(self, n: str, D: int, K: int, delta: float) -> list[Release]:
        """What one client will release in its K rounds."""
        mu, rounds = self.mu_of(n, delta), ((0, K - 1),)
        if self.kind == "example":
            private, sampling = self.private(mu, K, D, delta), Sampling.at(self.local.rate(D))
            first = Release(
                "prototypes", "example", n, "server", Gaussian(private.z_prototypes), rounds
            )
            P, step = self.local.steps, Gaussian(private.z)
            return [first, replace(first, what="dp-sgd", event=step, steps=P, sampling=sampling)]
        if self.kind != "update":
            return [Release("update", "client", n, "server", NonPrivate(why(mu)), rounds)]
        zs = [update_z(mu_in_round(mu, k, K, self.schedule)) for k in range(1, K + 1)]
        if self.schedule == "constant":
            return rules.Update("cuag update", 1.0, zs[0]).lines(n, D, K)
        return rules.in_turn((rules.Update("cuag update", 1.0, z) for z in zs), n, D)

    def claims(self, sizes: Sizes, delta: float) -> list[Claim]:
        mu = self.mu_of("0", delta)
        published = cuag_claims(mu, self.local.batch, self.local.steps, delta) if mu else []
        return [*published, ("certified", math.inf, why(mu))]


def why(mu: float) -> str:
    if not mu:
        return "mu = 0: updates are sent without noise"
    return (
        f"claimed mu {mu:g}, but the clip is the update's own norm, so the size of the noise reveals it, "
        "and 2C/B is not the sensitivity of an update"
    )


@task
def train(
    me: Client,
    x: Params,
    rates: dict[str, float],
    c: dict[str, float],
    method: CUAG,
    turns: dict[str, list[int]],
    lam: float,
    delta: float,
) -> Reply[Update]:
    g_n: Params = me.kept.get("g", x.zeros())
    (k, K), mu, m = turns[me.id], method.mu_of(me.id, delta), method
    private = m.private(mu, K, me.size, delta) if m.kind == "example" else None
    own = debiased(me, x, g_n, m.alpha, m.local, private)
    sent = m.compressor.compress(own, rates)
    if m.kind == "paper":
        sent = as_published(me, sent, m, mu, lam)
    if m.kind in ("update", "sum"):
        bounds = LayerBounds.of(c, sent)
        u = bounds.clipped(sent)
        if m.kind == "update":
            z = update_z(mu_in_round(mu, k, K, m.schedule))
            u = gaussian_update(me, "cuag update", u, clip=1.0, z=z)
        sent = (
            bounds.unscaled(u)
            if m.kind == "update"
            else bounds.with_bits(sent)
            if m.adaptive
            else u
        )
        own = m.compressor.expand(bounds.unscaled(u), x, rates)
    return Reply(Update(sent), keep={"g": g_n - m.alpha * own})


def as_published(me: Client, v: Params, m: CUAG, mu: float, lam: float) -> Params:
    """Algorithm 4.

    Sensitivity S_l = 2 C_l / B with C_l = ||v_l||, or C and clipped to it (table 5).
    """
    size = v.norms()
    C = {k: m.fixed_clip or size[k] for k in v}
    sd = cuag_sigma(mu, me.size, lam, m.local.batch, me.round + 1, m.local.steps)
    S = {k: 2 * C[k] / m.local.batch for k in v}
    S = {k: S[k] ** 2 * sd for k in v} if m.squared else S
    unit = {k: min(1.0, C[k] / size[k]) / S[k] if size[k] else 0.0 for k in v}
    return times(claimed_gaussian(me, "cuag update", times(v, unit), sd=sd, why=why(mu)), S)
