"""What KD-DPFL chooses itself where gradients of a linear model are sent.

Clipping norm, momentum and the rule of the step size are those of LDP-FL: how they were chosen is
in docs/methods/ldp_fl.md, and that they suit here, too, in docs/methods/kd_dpfl.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from tacit.core import Known
from tacit.local.teachers import large_clients
from tacit.methods.ldp_fl_choices import CLIP, MOMENTUM, noise_in_mean, step_size
from tacit.privacy.gdp import gdp_mu

__all__ = ["CLIP", "MOMENTUM", "USUAL_CLIP", "USUAL_LR", "pool_sizes", "step_of"]

USUAL_CLIP, USUAL_LR = 1.0, 0.5  # with DP-SGD


def pool_sizes(known: Known, m: int, *, joined: bool) -> list[int]:
    """Return the sizes of the clients that take part in phase 2, as far as sizes are known.

    A site that knows only its own takes itself for one of them.

    Args:
        known: what is public
        m: how many clients are large; 0: by their sizes
        joined: whether large ones take part, too
    """
    large = [] if joined else large_clients(known.sizes, min(m, len(known.sizes)))
    every = list(known.sizes.values())
    return [n for i, n in known.sizes.items() if i not in large] or every


def step_of(sizes: Sequence[int], clip: float, epsilon: float, rounds: int, known: Known) -> float:
    """Return the step size for gradients of a pool of clients.

    With turns that are shared out fairly, the noise in a mean by data volume is the same however
    many take part in a round: with fewer, each has fewer turns and adds less.

    Args:
        sizes: of all clients in the pool
        clip: clipping norm of an example's gradient
        epsilon: what a client spends in all its turns
        rounds: how many rounds there are
        known: what is public
    """
    mean = sum(sizes) / len(sizes)
    sd = clip * rounds**0.5 / (gdp_mu(epsilon, known.delta) * mean)
    return step_size(noise_in_mean([sd], len(sizes), known.linear))
