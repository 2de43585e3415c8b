"""KD-DPFL's settings, and what it chooses itself where nobody has said any."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Self

from tacit.core import BadInput, Known, Method, check
from tacit.local import teachers
from tacit.local.sgd import SGD
from tacit.methods import kd_dpfl_choices as choices
from tacit.privacy import phases


@dataclass(frozen=True)
class Settings(Method):
    """What can be set, and what follows from it."""

    can_follow: ClassVar[bool] = False
    needs_public: ClassVar[bool] = True
    # large clients, which teach; 0: those nearer in size to the largest client than to the smallest
    m: int = 0
    queries: int = 0  # public images that are voted on; 0: all
    vote_noise: Literal["gaussian", "laplace"] = "gaussian"  # noise on the counts of votes
    sub: int = 50  # sub-teachers of each large client
    # training of a teacher
    teacher: SGD = field(default_factory=lambda: SGD(lr=0.1, epochs=20, batch=16))
    rounds: int = 50  # communication rounds of phase 2, at most
    per_round: int = 6  # N: the special client and N - 1 others; 0: all of them
    # certified: with proof; paper: as published, whatever it really spends
    mode: Literal["certified", "paper"] = "certified"
    # auto: moments if certified, else vote
    labels: Literal["auto", "moments", "sub-teachers", "vote"] = "auto"
    epsilon: float = 8.0  # what every client spends over the whole run, in both phases together
    # epsilon of large clients, for the pseudo-labels; 0: epsilon, or with large_join half of it, or
    # what eps_2 leaves
    eps_1: float = 0.0
    # epsilon of phase 2; 0: epsilon, or with large_join half of it, or what eps_1 leaves
    eps_2: float = 0.0
    # paper mode: epsilon of the special client in a round; 0: eps_2 lasts for all rounds
    eps_pub: float = 0.0
    ratio: float = 0.5  # eps_pri / eps_pub, in paper mode
    C: float = 1.0  # paper mode: norm in the published noise; nothing is clipped to it
    large_join: bool = False  # large clients take part in phase 2, too
    K_max: int = 0  # rounds that a general client takes part in, at most; 0: an equal share of all
    # certified: what a general client sends in a round, one gradient of all its examples or weights
    # after DP-SGD; auto: gradient with a linear model of public features, as images have by default
    send: Literal["auto", "gradient", "dp-sgd"] = "auto"
    # clipping norm of an example's gradient at a general client; auto: 0.4 where gradients of a
    # linear model are sent, else 1
    clip: float | Literal["auto"] = "auto"
    # the server's: share of its last step that is taken again, where gradients are sent; auto: 0.9
    # with a linear model, else 0
    momentum: float | Literal["auto"] = "auto"
    # local training of general clients; lr auto: 0.5, or where gradients of a linear model are sent
    # chosen by their noise
    sgd: SGD = field(default_factory=lambda: SGD(lr="auto", epochs=2, batch=250))
    special: SGD = field(default_factory=lambda: SGD(epochs=5))  # training of the special client

    def __post_init__(self) -> None:
        check.rounds(self.rounds, self.per_round)
        check.number("m", self.m, at_least=0, whole=True)
        check.number("epsilon", self.epsilon, above=0)
        for name in ("eps_1", "eps_2"):
            check.number(name, getattr(self, name), at_least=0, at_most=self.most)
        if self.mode == "paper" and self.labels not in ("auto", "vote"):
            raise BadInput(
                f"labels = {self.labels!r}: the paper has none; allowed with mode = paper: vote"
            )
        self.sgd.refuse_clip(teachers.SOLVED)
        check.number("momentum", self.server_momentum, at_least=0, below=1)
        for name in ("send", "momentum"):
            given = getattr(self, name)
            if self.mode == "paper" and given != "auto":
                raise BadInput(f"{name} = {given!r}: means nothing in mode = 'paper'")

    @property
    def sends_gradients(self) -> bool:
        """Whether general clients send gradients, as long as nothing is known of the network."""
        return self.send == "gradient"

    @property
    def usual_sgd(self) -> SGD:
        """The training of general clients, with the usual step size where none was chosen."""
        return replace(self.sgd, lr=choices.USUAL_LR) if self.sgd.lr == "auto" else self.sgd

    @property
    def server_momentum(self) -> float:
        """The server's momentum."""
        return 0.0 if self.momentum == "auto" else self.momentum

    @property
    def prefers_features(self) -> bool:
        return self.mode == "certified" and self.send == "auto"

    def tuned(self, known: Known) -> Self:
        """Choose what nobody has said."""
        if self.mode == "paper" or self.send == "dp-sgd" or not known.linear:
            send = "dp-sgd" if self.prefers_features else self.send
            return replace(self, send=send, sgd=self.usual_sgd)
        clip = choices.CLIP if self.clip == "auto" else self.clip
        momentum = choices.MOMENTUM if self.momentum == "auto" else self.momentum
        lr = self.sgd.lr
        if lr == "auto":
            sizes = choices.pool_sizes(known, self.m, joined=self.large_join)
            lr = choices.step_of(sizes, clip, self.part_of_phase_2(known), self.rounds, known)
        sgd = replace(self.sgd, lr=lr)
        return replace(self, send="gradient", clip=clip, momentum=momentum, sgd=sgd)

    @property
    def most(self) -> float:
        """What phases may be said to cost; the usual epsilon stands back where they say it."""
        usual = self.epsilon == Settings.epsilon
        return math.inf if usual or self.mode == "paper" else self.epsilon

    @property
    def budgets(self) -> tuple[float, float]:
        """eps_1 and eps_2."""
        return self.eps_1 or self.epsilon, self.eps_2 or self.epsilon

    def part_of_phase_2(self, known: Known) -> float:
        """Return eps_2, before it is solved from what large clients that join pay for both."""
        if not self.large_join or self.eps_2:
            return self.budgets[1]
        return phases.parts_of(self.epsilon, self.eps_1, 0.0, known.delta)[1]
