"""What papers print that follows from a formula: their own figures are the oracle."""

from __future__ import annotations

import math

import pytest

from tacit.experiment import formulas


def test_claimed_epsilon_of_figure_4_is_as_printed() -> None:
    """CUAG-PFL, section 7.3: 0.92; 0.41 to 10.24; 1.52 to 26.28; 10."""
    assert formulas.cuag_epsilon(1) == pytest.approx(0.92, abs=0.01)
    ends = [formulas.prifedsync_epsilon(t) for t in (1, 300)]
    assert ends == pytest.approx([0.41, 10.24], abs=0.011)
    ends = [formulas.dp_scaffold_epsilon(t) for t in (1, 300)]
    assert ends == pytest.approx([1.52, 26.28], abs=0.005)
    assert formulas.udp_sigma(300) == pytest.approx(2.628, abs=0.001)


def test_performance_loss_of_all_rounds_by_hand() -> None:
    """N exp(eps^2 / (2 ln(1/delta)) lambda (lambda + 1) / 2) at lambda 1, whatever T is."""
    by_hand = 10 * math.exp(16 / (2 * math.log(1e5)))
    for T in (1, 150):
        assert formulas.performance_loss(10, 4.0, 1e-5, T, T) == pytest.approx(by_hand, rel=1e-6)


def test_binary_rows_are_less_coherent_at_half_rate() -> None:
    """Section 5.2: at a rate of 0.5 and more the others are at least twice as coherent."""
    for basis in ("dct", "dft"):
        binary = formulas.coherence("binary", basis, 0.5)
        assert binary <= 2.0 + 1e-9
        assert formulas.coherence("gaussian", basis, 0.5) >= 1.9 * binary
