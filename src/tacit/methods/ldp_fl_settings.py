"""LDP-FL's settings, what they mean for each client, and the rule that follows from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tacit.core import BadInput, Claim, ClientId, Method, Protects, Sizes, check
from tacit.local.sgd import SGD
from tacit.methods import ldp_fl_claims as paper
from tacit.privacy import rules, updates
from tacit.privacy.gdp import gdp_mu


@dataclass(frozen=True)
class Settings(Method):
    """What can be set, what belongs to which client, and how it sends because of that."""

    averages = True
    rounds: int = 20  # T, communication rounds
    per_round: int = 0  # clients sampled in each round; 0: everyone
    # what is released, and with which guarantee
    mode: Literal["dp-sgd", "gradient", "update", "paper"] = "dp-sgd"
    epsilon: float = 4.0  # what every client spends over all rounds
    epsilons: tuple[float, ...] = ()  # one epsilon for each client in turn, instead
    deltas: tuple[float, ...] = ()  # paper: one delta for each client in turn, instead of the run's
    # C, clipping norm: of an example's gradient, or of the whole update (update)
    clip: float = 1.0
    # neighbouring relation of mode `gradient`; replace is the paper's 2C/m
    relation: Literal["zero-out", "replace"] = "zero-out"
    # how mode `update` clips: flat, layers, or a mechanism of your own as module:function
    mechanism: str = "flat"
    momentum: float = 0.0  # the server's: share of its last step that is taken again
    sgd: SGD = field(default_factory=lambda: SGD(batch=64))  # local training

    def __post_init__(self) -> None:
        check.rounds(self.rounds, self.per_round)
        check.choice("mode", self.mode, ("dp-sgd", "gradient", "update", "paper"))
        for epsilon in (self.epsilon, *self.epsilons):
            check.number("epsilon", epsilon, above=0)
        for delta in self.deltas:
            check.number("deltas", delta, above=0, below=1)
        check.clip("clip", self.clip)
        check.number("momentum", self.momentum, at_least=0, below=1)
        if self.epsilons and self.epsilon != Settings.epsilon:
            own = "clients have an epsilon of their own already (epsilons)"
            raise BadInput(f"epsilon = {self.epsilon:g}: {own}")
        updates.check_mechanism(self.mechanism)
        for name, mode in (("relation", "gradient"), ("mechanism", "update"), ("deltas", "paper")):
            given = getattr(self, name)
            if self.mode != mode and given != getattr(Settings, name):
                only = f"means nothing in mode = {self.mode!r}, only in {mode!r}"
                raise BadInput(f"{name} = {given!r}: {only}")
        self.sgd.refuse_clip("must be 0; ldp_fl has its own clip and solves the noise from epsilon")

    @property
    def protects(self) -> Protects:
        return ("client" if self.mode == "update" else "example", "server")

    @property
    def per_example(self) -> bool:
        return self.mode != "update"

    def epsilon_of(self, client: ClientId) -> float:
        """Return a client's own epsilon."""
        return self.epsilons[int(client) % len(self.epsilons)] if self.epsilons else self.epsilon

    def delta_of(self, client: ClientId, delta: float) -> float:
        """Return a client's own delta, or the run's."""
        return self.deltas[int(client) % len(self.deltas)] if self.deltas else delta

    def check_inputs(self, shape: tuple[int, ...]) -> None:
        if self.mode == "update":
            updates.update_rule(self.mechanism, "ldp_fl update", self.clip, 1.0)

    def rule(
        self, client: ClientId, n: int, K: int, delta: float, q: float = 1.0
    ) -> SGD | rules.AsPublished | rules.Noised | updates.UpdateRule:
        """Return how a client sends; q, the share of clients in a round, is for the paper only."""
        eps = self.epsilon_of(client)
        if self.mode == "dp-sgd":
            return self.sgd.costing(eps, clip=self.clip, n=n, times=K, delta=delta)
        if self.mode == "paper":
            sd = paper.sigma(self.clip, n, self.rounds, q, eps, self.delta_of(client, delta))
            return rules.AsPublished("ldp_fl weights", sd, paper.why(eps, self.sgd.epochs))
        mu = float(gdp_mu(eps, delta) / K**0.5)
        if self.mode == "update":
            return updates.update_rule(self.mechanism, "ldp_fl update", self.clip, mu)
        # if an example is replaced, the sum moves by 2C
        z = (2 if self.relation == "replace" else 1) / mu
        return rules.Noised("ldp_fl gradient", self.clip, z)

    def claims(self, sizes: Sizes, delta: float) -> list[Claim]:
        return paper.published(self.rounds, self.epsilon, self.sgd.epochs, delta)

    def performance_loss(self, t: int, sizes: Sizes, delta: float) -> float:
        q, T = (self.per_round or len(sizes)) / len(sizes), self.rounds
        own = ((self.epsilon_of(i), self.delta_of(i, delta)) for i in sizes)
        ratios = [1 / paper.noise(T, q, e, d) for e, d in own]
        return q * paper.performance_loss(ratios, t, q)  # of k = q N clients
