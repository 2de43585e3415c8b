"""LDP-FL's settings, what they mean for each client, and the rule that follows from them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, Self, get_args

from tacit.core import BadInput, Claim, ClientId, Known, Method, Protects, Sizes, check
from tacit.local.gradients import gradient_rule
from tacit.local.sgd import SGD
from tacit.methods import ldp_fl_choices as choices
from tacit.methods import ldp_fl_claims as paper
from tacit.privacy import rules, updates

Mode = Literal["auto", "dp-sgd", "gradient", "update", "paper"]
UPDATE = "ldp_fl update"


@dataclass(frozen=True)
class Settings(Method):
    """What can be set, what belongs to which client, and how it sends because of that."""

    averages = True
    rounds: int = 100  # T, communication rounds
    per_round: int = 0  # clients sampled in each round; 0: everyone
    # what is released, and with which guarantee; auto: gradient with a linear model of public
    # features, as images have by default, else dp-sgd
    mode: Mode = "auto"
    epsilon: float = 4.0  # what every client spends over all rounds
    epsilons: tuple[float, ...] = ()  # one epsilon for each client in turn, instead
    deltas: tuple[float, ...] = ()  # paper: one delta for each client in turn, instead of the run's
    # C, clipping norm: of an example's gradient, or of the whole update (update); auto: 0.4 where
    # gradients of a linear model are sent, else 1
    clip: float | Literal["auto"] = "auto"
    # neighbouring relation of mode `gradient`; replace is the paper's 2C/m
    relation: Literal["zero-out", "replace"] = "zero-out"
    mechanism: str = "flat"  # how `update` clips: flat, layers, or your own as module:function
    # the server's: share of its last step that is taken again; auto: 0.9 where gradients of a
    # linear model are sent, else 0
    momentum: float | Literal["auto"] = "auto"
    # how clients count in a round's mean: alike, as in the paper, or by their examples; auto: by
    # size where gradients of a linear model are sent, else alike
    weights: Literal["auto", "alike", "size"] = "auto"
    # local training; where gradients of a linear model are sent, lr auto is chosen by their noise
    sgd: SGD = field(default_factory=lambda: SGD(lr="auto", batch=64))

    def __post_init__(self) -> None:
        check.rounds(self.rounds, self.per_round)
        check.choice("mode", self.mode, get_args(Mode))
        for epsilon in (self.epsilon, *self.epsilons):
            check.number("epsilon", epsilon, above=0)
        for delta in self.deltas:
            check.number("deltas", delta, above=0, below=1)
        check.clip("clip", self.C)
        check.number("momentum", self.server_momentum, at_least=0, below=1)
        if self.epsilons and self.epsilon != Settings.epsilon:
            raise BadInput(f"epsilon = {self.epsilon:g}: clients have their own already (epsilons)")
        updates.check_mechanism(self.mechanism)
        said = {n: v for n in choices.ONLY_IN if (v := getattr(self, n)) != getattr(Settings, n)}
        choices.check_fits(self.mode, self.weights, said)
        self.sgd.refuse_clip("must be 0; ldp_fl has its own clip and solves the noise from epsilon")

    @property
    def how(self) -> Mode:
        """The mode, as long as nothing is known of the network."""
        return "dp-sgd" if self.mode == "auto" else self.mode

    @property
    def C(self) -> float:
        """The clipping norm."""
        return 1.0 if self.clip == "auto" else self.clip

    @property
    def server_momentum(self) -> float:
        """The server's momentum."""
        return 0.0 if self.momentum == "auto" else self.momentum

    @property
    def prefers_features(self) -> bool:
        return self.mode == "auto"

    def tuned(self, known: Known) -> Self:
        """Choose what nobody has said."""
        if not known.linear or self.mode not in ("auto", "gradient"):
            return replace(self, mode=self.how, sgd=replace(self.sgd, lr=self.sgd.usual_lr))
        clip = choices.CLIP if self.clip == "auto" else self.C
        momentum = choices.MOMENTUM if self.momentum == "auto" else self.momentum
        weights = "size" if self.weights == "auto" else self.weights
        chosen = replace(self, mode="gradient", clip=clip, momentum=momentum, weights=weights)
        if chosen.sgd.lr == "auto":
            lr = choices.step_size(chosen.noise_in_mean(known))
            return replace(chosen, sgd=replace(self.sgd, lr=lr))
        return chosen

    def noise_in_mean(self, known: Known) -> float:
        """Return the norm of the noise in a round's mean gradient, on average over who is in it."""
        k = self.per_round or len(known.sizes)
        times = max(1, self.rounds) * k / len(known.sizes)
        z = {i: self.gradient_rule(i, times, known.delta).z for i in known.sizes}
        sds = [self.C * z[i] / n for i, n in known.sizes.items()]
        by = known.sizes.values() if self.weights == "size" else ()
        return choices.noise_in_mean(sds, k, known.linear, by)

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
        if self.how == "update":
            updates.update_rule(self.mechanism, UPDATE, self.C, 1.0)

    def rule(
        self, client: ClientId, n: int, K: int, delta: float, q: float = 1.0
    ) -> SGD | rules.AsPublished | rules.Noised | updates.UpdateRule:
        """Return how a client sends; q, the share of clients in a round, is for the paper only."""
        eps = self.epsilon_of(client)
        if self.how == "dp-sgd":
            return self.sgd.costing(eps, clip=self.C, n=n, times=K, delta=delta)
        if self.how == "paper":
            sd = paper.sigma(self.C, n, self.rounds, q, eps, self.delta_of(client, delta))
            return rules.AsPublished("ldp_fl weights", sd, paper.why(eps, self.sgd.usual_epochs))
        if self.how == "update":
            return updates.rule_spending(self.mechanism, UPDATE, self.C, eps, K, delta)
        return self.gradient_rule(client, K, delta)

    def gradient_rule(self, client: ClientId, times: float, delta: float) -> rules.Noised:
        """Return how a client sends gradients, so many times."""
        eps, twice = self.epsilon_of(client), self.relation == "replace"
        return gradient_rule("ldp_fl gradient", self.C, eps, times, delta, replaced=twice)

    def claims(self, sizes: Sizes, delta: float) -> list[Claim]:
        return paper.published(self.rounds, self.epsilon, self.sgd.usual_epochs, delta)

    def performance_loss(self, t: int, sizes: Sizes, delta: float) -> float:
        q = (self.per_round or len(sizes)) / len(sizes)
        own = [(self.epsilon_of(i), self.delta_of(i, delta)) for i in sizes]
        ratios = [1 / paper.noise(self.rounds, q, e, d) for e, d in own]
        return q * paper.performance_loss(ratios, t, q)  # of k = q N clients
