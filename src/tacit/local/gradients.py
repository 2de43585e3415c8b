"""One gradient of all of a client's examples, each clipped by itself, with noise: a round's work.

It is the case in which what an example can do to a release is known without further thought.
"""

from __future__ import annotations

from tacit.core import Client, Params
from tacit.local.sgd import SGD, clipped_gradient
from tacit.privacy.gdp import gdp_mu
from tacit.privacy.rules import Noised


def gradient_rule(
    what: str, clip: float, epsilon: float, times: float, delta: float, *, replaced: bool = False
) -> Noised:
    """Return the rule of a sum of clipped gradients in each of some rounds.

    Args:
        what: as the ledger names it
        clip: clipping norm of an example's gradient
        epsilon: what all rounds together cost
        times: how many rounds; on average, where they are not counted
        delta: of that epsilon
        replaced: an example is replaced, so that the sum moves by twice the clipping norm
    """
    mu = float(gdp_mu(epsilon, delta) / times**0.5)
    return Noised(what, clip, (2 if replaced else 1) / mu)


def private_step(me: Client, x: Params, rule: Noised, sgd: SGD) -> Params:
    """Release the sum of a client's clipped gradients; return the step along their mean."""
    g = rule.send(me, clipped_gradient(me, x, rule.sensitivity)) / me.size
    return g * -sgd.lr_in(me.round)


def public_step(me: Client, x: Params, clip: float, sgd: SGD) -> Params:
    """Return the same step without noise, where nothing of the data is a secret."""
    g = clipped_gradient(me, x, clip).as_released(x.released and me.data.public)
    return (g / me.size) * -sgd.lr_in(me.round)
