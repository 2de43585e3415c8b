"""DP-FedAvg (McMahan et al. 2018, Algorithm 1).

Client-level privacy of the mean, against everybody but the server.

Poisson sampling of clients, flat clipping, uniform weights and a fixed denominator q N. With
`adaptive`, the clip follows a private quantile of the norms (Andrew et al. 2021); its cost is
inside z. Given `epsilon`, z is solved.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tacit.core import Client, Cohort, Method, Params, Poisson, Reply, check, task
from tacit.local.sgd import SGD
from tacit.privacy.calibrate import noise_for
from tacit.privacy.mechanisms import AdaptiveClip
from tacit.privacy.rules import NoisyMean


@dataclass(frozen=True)
class State:
    x: Params
    clip: float
    round: int = 0


@dataclass(frozen=True)
class DPFedAvg(Method[State]):
    protects = ("client", "clients")
    prefers_features = True
    rounds: int = 20  # communication rounds
    q: float = 0.5  # probability with which each client takes part in a round
    clip: float = 1.0  # bound on a client's update; the first one if adaptive
    z: float = 1.0  # noise multiplier
    epsilon: float = 0.0  # solve z for this epsilon over all rounds; 0: take z as it is
    adaptive: bool = False  # let the clip follow the median of the norms, privately
    server_lr: float = 1.0  # the server's step along the mean
    sgd: SGD = field(default_factory=SGD)  # local training

    def __post_init__(self) -> None:
        check.rounds(self.rounds, 0)
        check.number("q", self.q, above=0, at_most=1)
        check.clip("clip", self.clip)
        check.number("z", self.z, at_least=0)
        check.number("epsilon", self.epsilon, at_least=0)
        check.number("server_lr", self.server_lr, above=0)
        self.sgd.refuse_clip()

    def init(self, x0: Params) -> State:
        return State(x0, self.clip)

    def run(self, cohort: Cohort, s: State) -> Iterator[State]:
        out_of = self.q * len(cohort.everyone)
        rule = self.server_rule(cohort.delta)
        follow = AdaptiveClip(rule.z, out_of)
        noise_z = follow.update_z if self.adaptive else rule.z
        for t in range(s.round, self.rounds):
            S = cohort.sample(rule.law, t)
            rule.afford(cohort, S)
            replies = cohort.ask(train(x=s.x, sgd=self.sgd), S, need=0.0)
            step = rule.send(
                cohort, replies, dx_of, like=s.x, clip=s.clip, out_of=out_of, noise_z=noise_z
            )
            below = [r.dx.norm() <= s.clip for r in replies]
            clip = follow.next(cohort, s.clip, below, t) if self.adaptive else s.clip
            s = State(s.x + self.server_lr * step, clip, t + 1)
            yield s

    def server_rule(self, delta: float) -> NoisyMean:
        """Return the rule of the one thing that is released: the mean, to everybody."""
        z = self.z
        if self.epsilon:
            z = noise_for(self.epsilon, self.rounds, self.q, delta=delta)
        return NoisyMean(train.name, Poisson(self.q), z)


@dataclass(frozen=True)
class Update:
    dx: Params


@task
def train(me: Client, x: Params, sgd: SGD) -> Reply[Update]:
    y, _ = sgd.fit(me, x)
    return Reply(Update(dx=(y - x).finite()))  # nobody is told that it is not


def dx_of(reply: Update) -> Params:
    """Return what the mean is of."""
    return reply.dx
