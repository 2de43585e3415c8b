"""DP-SCAFFOLD-warm (Noble et al. 2022): variates of everybody before the first round.

c_i^0 is the mean of K gradients at x^0, clipped and noised as those of a round, and no step is
taken; c^0 = (1/N) sum_i c_i^0. Difference from the authors' code: there the c_i^0 arrive with the
clients that are sampled in the first rounds, in which nobody trains.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tacit.core import Client, Cohort, Everyone, Params, Reply, load_params, task
from tacit.local.median_clip import noisy_steps
from tacit.local.sgd import SGD
from tacit.methods.dp_scaffold_settings import WARM, claimed_steps
from tacit.methods.scaffold import State


@dataclass(frozen=True)
class Start(State):
    warm: bool = False  # whether there are variates yet

    def warmed(self, cohort: Cohort, sgd: SGD) -> Start:
        """Return the state with everybody's variates."""
        replies = cohort.ask(warm_up(x=self.x, sgd=sgd), cohort.sample(Everyone(), 0))
        c = (len(replies) / len(cohort.everyone)) * cohort.mean(r.c for r in replies)
        return replace(self, c=c, warm=True)


@dataclass(frozen=True)
class Variate:
    c: Params


@task
def warm_up(me: Client, x: Params, sgd: SGD) -> Reply[Variate]:
    weights = load_params(me.model.eval(), x)  # as in the authors' code
    release = claimed_steps(me, WARM)
    plain = replace(sgd, clip=0.0, z=0.0, steps=sgd.steps_on(me.size))
    c_i = x.zeros()
    for g in noisy_steps(me, weights, plain, sgd.z, release):
        c_i = c_i + Params(zip(x, g, strict=True)) / plain.steps
    c_i = c_i.as_released()  # as far as the paper goes
    return Reply(Variate(c_i), keep={"c": c_i})
