"""FedRep (Collins et al. 2021, Algorithm 1): a shared representation, and a head of each client's.

Client k first trains its head, the network's last layer, for `head_epochs` with the shared rest as
it is; then the rest, with its head as it is, and sends that. Its head never leaves it. A client
that has not taken part yet answers with the first head.
There is no certified mode: gradients of the shared part depend on the head, which was fitted to all
of the client's data without noise, so that one example could move all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from tacit.core import BadInput, Client, Cohort, Method, Params, Predictor, Reply, check, task
from tacit.local.sgd import SGD, network
from tacit.methods.fedavg import State, Update

NO_CLIP = "must be 0; gradients of the shared part depend on a head that is fitted without noise"


@dataclass(frozen=True)
class FedRep(Method):
    averages = True
    answers = "personal"
    rounds: int = 20  # communication rounds
    per_round: int = 0  # clients sampled in each round; 0: everyone
    head_epochs: int = 5  # passes over a client's data for its head, in each round
    sgd: SGD = field(default_factory=SGD)  # training of the shared part

    def __post_init__(self) -> None:
        self.sgd.refuse_clip(NO_CLIP)
        check.rounds(self.rounds, self.per_round)
        check.number("head_epochs", self.head_epochs, at_least=1, whole=True)

    def init(self, x0: Params) -> State:
        if head_of(x0) == set(x0):
            raise BadInput("model: fedrep shares all layers but the last, and this has only one")
        return State(x0)

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        for t in range(s.round, self.rounds):
            call = train(x=s.x, head_epochs=self.head_epochs, sgd=self.sgd)
            replies = cohort.ask(call, self.participants(cohort, t))
            shared = cohort.mean((r.dx, r.n) for r in replies)
            s = State(x=with_part(s.x, {k: s.x[k] + shared[k] for k in shared}), round=t + 1)
            yield s

    def predictor(self, me: Client, s: State) -> Predictor:
        return network(me, with_part(s.x, me.kept.get("head", {})))


def head_of(x: Params) -> set[str]:
    """Return the names of the last layer's parameters."""
    last = list(x)[-1].rpartition(".")[0]
    return {k for k in x if k.rpartition(".")[0] == last}


def with_part(x: Params, part: dict[str, Tensor]) -> Params:
    """Return parameters some of which are replaced."""
    return Params({k: part.get(k, v) for k, v in x.items()})


def only(names: set[str], g: Params) -> Params:
    """Return a direction along some of the parameters."""
    return Params({k: v if k in names else torch.zeros_like(v) for k, v in g.items()})


@task
def train(me: Client, x: Params, head_epochs: int, sgd: SGD) -> Reply[Update]:
    head = head_of(x)
    rest = set(x) - head
    (first,) = me.rng.spawn(1)
    y = with_part(x, me.kept.get("head", {}))
    heads = replace(sgd, epochs=head_epochs, steps=0)
    y, _ = heads.fit(replace(me, rng=first), y, grad=lambda g, _: only(head, g))
    y, _ = sgd.fit(me, y, grad=lambda g, _: only(rest, g))
    sent = Params({k: y[k] - x[k] for k in x if k in rest})
    return Reply(Update(dx=sent, n=me.size), keep={"head": Params({k: y[k] for k in head})})
