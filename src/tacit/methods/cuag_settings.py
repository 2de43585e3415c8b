"""CUAG-PFL's settings, and which kind of release follows from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Literal

from tacit.compress import Compressor
from tacit.core import BadInput, Method, Protects, check
from tacit.local.prototypes import Episodes
from tacit.privacy.schedule import Schedule

LEAST_MU = 1e-6  # below that noise has no finite size in practice
OF_MODE = {  # settings that mean nothing in a mode
    "paper": ("unit", "observer", "clip", "adaptive", "schedule", "radius"),
    "certified": ("fixed_clip", "squared", "sigma"),
}
Kind = Literal["open", "paper", "example", "gaussian", "update", "sum"]
Head = Literal["auto", "gaussian", "prototypes"]


@dataclass(frozen=True)
class Settings(Method):
    """What can be set, what means nothing beside what, and the kind of release."""

    answers = "personal"
    rounds: int = 20  # T, communication rounds
    per_round: int = 0  # clients sampled in each round; 0: everyone
    # certified: with proof; paper: as published, whatever it really spends
    mode: Literal["certified", "paper"] = "certified"
    unit: Literal["example", "client"] = "example"  # what the certified mode protects
    observer: Literal["server", "clients"] = "server"  # from whom; clients: noise on the sum
    # what clients answer with; gaussian: a Gaussian for each class of public features, shared once;
    # prototypes: the nearest one, under a network that is trained; auto: gaussian at the example
    # level with a linear model of public features, as images have by default, else prototypes
    head: Head = "auto"
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
    # paper: one noise multiplier for all rounds (table 5); 0: the one that mu asks for in each
    sigma: float = 0.0
    fixed_clip: float = 0.0  # paper: clip every layer to this; 0: each to its own norm
    # paper: take the printed variance (2 C_l sigma / B)^2 for the standard deviation
    squared: bool = False
    schedule: Schedule = "constant"  # shares of mu^2 in a client's rounds; harmonic: 1/k
    radius: float = 2.0  # norm of the embeddings at the example level
    alpha: float = 0.1  # weight of the quadratic term
    share: bool = True  # scale the step of g by the share of clients that took part
    local: Episodes = field(default_factory=Episodes)  # local training

    def __post_init__(self) -> None:
        check.rounds(self.rounds, self.per_round)
        for name in ("mu", "epsilon", "sigma", "fixed_clip"):
            check.number(name, getattr(self, name), at_least=0)
        check.number("alpha", self.alpha, above=0)
        check.clip("clip", self.clip)
        check.clip("radius", self.radius)
        if self.fixed_clip:
            check.clip("fixed_clip", self.fixed_clip)
        if self.mu:
            check.number("mu", self.mu, at_least=LEAST_MU)
        for mu in self.mus:
            check.number("mus", mu, at_least=LEAST_MU)
        _ = self.compressor  # which checks the rest
        for wrong, says in self._conflicts():
            if wrong:
                raise BadInput(says)

    def _conflicts(self) -> Iterator[tuple[bool, str]]:
        """Yield what settings could mean nothing beside others, whether they do, and why."""
        for f in fields(self):
            given = getattr(self, f.name)
            unused = f.name in OF_MODE[self.mode] and given != f.default
            yield unused, f"{f.name} = {given!r}: means nothing in mode = {self.mode!r}"
        both = f"epsilon = {self.epsilon:g} says what clients may spend; give one"
        yield self.epsilon > 0 and self.mu != Settings.mu, f"mu = {self.mu:g}: {both}"
        own = "clients have a mu of their own already (mus)"
        yield self.epsilon > 0 and bool(self.mus), f"epsilon = {self.epsilon:g}: {own}"
        given = bool(self.mu != Settings.mu or self.mus or self.epsilon)
        yield self.sigma > 0 and given, f"sigma = {self.sigma:g}: give it, or what may be spent"
        summed = self.observer == "clients"
        alike = "needs unit = 'client' and one mu for all, as the noise is shared"
        unlike = self.unit == "example" or bool(self.mus)
        yield summed and unlike, f"observer = 'clients': {alike}"
        shared = "needs mode = 'certified', unit = 'example', one mu or epsilon, and matrix = "
        once = self.head == "gaussian" and not self.can_share_gaussians
        yield once, f"head = 'gaussian': {shared}'binary:...' or 'none'"
        bits = "needs observer = 'clients'; noise on every single bit would drown it"
        yield self.adaptive and not summed, f"adaptive = True: {bits}"
        update = "needs unit = 'client' and observer = 'server'"
        other = (self.unit, self.observer) != ("client", "server")
        yield self.schedule != "constant" and other, f"schedule = {self.schedule!r}: {update}"

    @property
    def protects(self) -> Protects:
        return ("client", "server") if self.mode == "paper" else (self.unit, self.observer)

    @property
    def kind(self) -> Kind:
        """What leaves a client: nothing private, as published, or a certified kind of release."""
        if not (self.mu or self.mus or self.epsilon):
            return "open"
        if self.mode == "paper":
            return "paper"
        if self.observer == "clients":
            return "sum"
        if self.unit == "client":
            return "update"
        return "gaussian" if self.head == "gaussian" else "example"

    @property
    def can_share_gaussians(self) -> bool:
        """Whether clients can release moments of features once, with these settings."""
        certified = self.mode == "certified" and self.protects == ("example", "server")
        noisy = (self.mu or self.epsilon) and not self.mus
        return bool(certified and noisy and self.compressor.matrix in ("none", "binary"))

    @property
    def wants_features(self) -> bool:
        return self.kind == "gaussian"

    @property
    def prefers_features(self) -> bool:
        return self.head != "prototypes" and self.can_share_gaussians

    @property
    def compressor(self) -> Compressor:
        return Compressor.of(self.matrix, self.r_max, self.r_min, field="matrix")

    @property
    def per_example(self) -> bool:
        return self.kind == "example"
