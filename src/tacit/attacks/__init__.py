"""Attacks on what was released: what a curious reader could find out, as measured.

A certificate bounds every attack; an attack shows only what it found itself. So a strong attack
refutes a claim, and a weak one proves nothing.
"""

from tacit.attacks.membership import Outcome, from_scores, nearest, on_samples

__all__ = ["Outcome", "from_scores", "nearest", "on_samples"]
