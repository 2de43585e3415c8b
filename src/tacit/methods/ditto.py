"""Ditto (Li et al. 2021, Algorithm 1): FedAvg, and beside it a model of each client's own.

Client k trains the shared w as in FedAvg and sends it; and its own v_k, which never leaves it, on
F_k(v_k) + lam/2 ||v_k - w||^2. lam = 0 is every client alone. With `sgd.clip` the shared model is
trained by DP-SGD and the guarantee is about what the server sees; v_k is trained without noise, as
nobody sees it. Difference from the paper: v_k is trained in the rounds in which the client takes
part, as in its Algorithm 1, with `own`, or else as the shared model is usually trained: numbers
that a rule has chosen for noise are none for training without it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Literal, Self

from tacit.core import Call, Client, Cohort, Known, Params, Predictor, Reply, check, task
from tacit.local.sgd import SGD, Trains, network
from tacit.methods.fedavg import State, Update


@dataclass(frozen=True)
class Drawn(Trains):
    """Rounds in which clients have models of their own, which are drawn to the shared one."""

    by_size = True
    goals = ("classes",)
    averages = True
    answers = "personal"
    lam: float = 0.1  # how strongly a client's own model is drawn to the shared one; 0: not at all

    def __post_init__(self) -> None:
        super().__post_init__()
        check.number("lam", self.lam, at_least=0)

    def init(self, x0: Params) -> State:
        return State(x0)

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        for t in range(s.round, self.rounds):
            replies = cohort.ask(self.asks(s), self.participants(cohort, t))
            s = State(x=s.x + cohort.mean((r.dx, r.n) for r in replies), round=t + 1)
            yield s

    @abstractmethod
    def asks(self, s: State) -> Call[Update]:
        """Return what clients are asked for."""

    def predictor(self, me: Client, s: State) -> Predictor:
        return network(me, me.kept.get("own", s.x))


@dataclass(frozen=True)
class Own:
    """Training of clients' own models, without noise; auto: as the shared one, or as usual."""

    lr: float | Literal["auto"] = "auto"  # step size
    epochs: int | Literal["auto"] = "auto"  # passes over the client's data in one round
    batch: int | Literal["auto"] = "auto"  # examples per step

    def __post_init__(self) -> None:
        for name in ("lr", "epochs", "batch"):
            if (value := getattr(self, name)) != "auto":
                check.number(f"own.{name}", value, above=0, whole=name != "lr")

    def beside(self, sgd: SGD) -> SGD:
        """Return the training of a client's own model, given that of the shared one."""
        said = {f.name: v for f in fields(self) if (v := getattr(self, f.name)) != "auto"}
        return replace(sgd, clip=0.0, z=0.0, epsilon=0.0, **said).as_usual()


@dataclass(frozen=True)
class Ditto(Drawn):
    # training of clients' own models, without noise; unless something is said here it is as sgd
    # says, or as usual where that is chosen by rules
    own: Own = field(default_factory=Own)

    def tuned(self, known: Known) -> Self:
        alone = self.own.beside(self.sgd)  # before any rule chooses numbers for noise
        own = Own(alone.usual_lr, alone.usual_epochs, alone.usual_batch)
        return replace(super().tuned(known), own=own)

    def asks(self, s: State) -> Call[Update]:
        return train(x=s.x, lam=self.lam, sgd=self.sgd, own=self.own)


@task
def train(me: Client, x: Params, lam: float, sgd: SGD, own: Own) -> Reply[Update]:
    (rng,) = me.rng.spawn(1)  # its own stream: the batches of the shared model stay FedAvg's
    w, _ = sgd.fit(me, x)
    v_k: Params = me.kept.get("own", x)
    alone = own.beside(sgd)
    v_k, _ = alone.fit(replace(me, rng=rng), v_k, grad=lambda g, v: g + lam * (v - x))
    return Reply(Update(dx=w - x, n=me.size), keep={"own": v_k})
