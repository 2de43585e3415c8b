"""LDP-FL's settings, and what they mean for each client."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tacit.core import BadInput, ClientId, Method, Protects, check
from tacit.local.sgd import SGD
from tacit.privacy.updates import check_mechanism


@dataclass(frozen=True)
class Settings(Method):
    """What can be set, and what belongs to which client."""

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
        check_mechanism(self.mechanism)
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
