"""What a paper prints that follows from a formula alone: its claims over rounds, and its matrices.

Nothing here certifies. Papers' files of data name these functions.
"""

from __future__ import annotations

from collections.abc import Callable

from tacit.compress import coherence as measuring
from tacit.core import BadInput
from tacit.methods.spec import method_from_spec
from tacit.privacy.claimed import other_of

# CUAG-PFL, section 7.2.4: 100 clients of 500 examples, a tenth of them in a round
SIZES = {str(client): 500 for client in range(100)}
SHARE, DELTA = 0.1, 1e-5


def performance_loss(word: str, clients: int, delta: float, rounds: int) -> float:
    """A method's performance loss by LDP-FL's formula, after some of its rounds (table 3)."""
    sizes = {str(client): 60_000 // clients for client in range(clients)}
    loss = method_from_spec(word).performance_loss(rounds, sizes, delta)
    if loss is None:
        raise BadInput(f"word = {word!r}: has no performance loss")
    return loss


def coherence(matrix: str, basis: str, rate: float, numbers: int = 512) -> float:
    """How coherent a measurement matrix is with a basis (CUAG-PFL, figure 3)."""
    return measuring.coherence(
        measuring.explicit(matrix, numbers, rate), measuring.basis(basis, numbers)
    )


def claimed_epsilon(word: str, t: int) -> float:
    """What a method's paper claims after round t, in CUAG-PFL's setting."""
    return _claimed(word, t)[1]


def claimed_noise(word: str, t: int) -> float:
    """The noise multiplier of a method in round t, in CUAG-PFL's setting."""
    return _claimed(word, t)[0]


def _claimed(word: str, t: int) -> tuple[float, float]:
    pair = method_from_spec(word).claimed(t, SIZES, DELTA)
    if pair is None:
        raise BadInput(f"word = {word!r}: claims nothing by rounds")
    return pair


def dp_scaffold_epsilon(t: int, sigma: float = 1.0) -> float:
    """DP-SCAFFOLD's eps as CUAG-PFL counts it, by its theorem 1."""
    return other_of(sigma, t, SHARE, delta=DELTA)


FORMULAS: dict[str, Callable[..., float]] = {
    f.__name__: f
    for f in (performance_loss, coherence, claimed_epsilon, claimed_noise, dp_scaffold_epsilon)
}
