"""What papers print that follows from a formula: their own figures are the oracle."""

from __future__ import annotations

import math

import pytest

from tacit.core import BadInput
from tacit.experiment import formulas
from tacit.privacy import claimed


def test_claimed_epsilon_of_figure_4_is_as_printed() -> None:
    """CUAG-PFL, section 7.3: 0.92; 0.41 to 10.24; 1.52 to 26.28; 10."""
    words = ["cuag:mode=paper", "prifedsync:mode=paper", "udp:mode=paper"]
    ends = [[formulas.claimed_epsilon(f"{w},per_round=10", t) for t in (1, 300)] for w in words]
    assert ends[0] == pytest.approx([0.92, 0.92], abs=0.01)
    assert ends[1] == pytest.approx([0.41, 10.24], abs=0.011)
    assert ends[2] == [10.0, 10.0]
    ends = [formulas.dp_scaffold_epsilon(t) for t in (1, 300)]
    assert ends == pytest.approx([1.52, 26.28], abs=0.005)
    assert formulas.claimed_noise("udp:mode=paper,per_round=10", 300) == pytest.approx(
        2.628, abs=1e-3
    )
    with pytest.raises(BadInput, match="claims nothing by rounds"):
        formulas.claimed_noise("fedavg", 1)


def test_performance_loss_of_all_rounds_by_hand() -> None:
    """N exp(eps^2 / (2 ln(1/delta)) lambda (lambda + 1) / 2) at lambda 1, whatever T is."""
    by_hand = 10 * math.exp(16 / (2 * math.log(1e5)))
    for T in (1, 150):
        word = f"ldp_fl:mode=paper,epsilon=4.0,rounds={T}"
        assert formulas.performance_loss(word, 10, 1e-5, T) == pytest.approx(by_hand, rel=1e-6)


def test_performance_loss_of_the_others_by_hand() -> None:
    """N exp(t r^2): NbAFL's r is eps / sqrt(2 ln(1.25/delta)), CL-FL's one over its noise."""
    word = "nbafl:mode=paper,epsilon=4.0,rounds=150"
    r = 4 / math.sqrt(2 * math.log(1.25e5))
    assert formulas.performance_loss(word, 10, 1e-5, 25) == pytest.approx(
        10 * math.exp(25 * r**2), rel=1e-9
    )
    loss = formulas.performance_loss("cl_fl:mode=paper,epsilon=4.0,rounds=150", 10, 1e-5, 150)
    z = math.sqrt(150 / math.log(loss / 10))
    assert claimed.moments_epsilon(1 / z, 150, delta=1e-5) == pytest.approx(4.0, rel=1e-3)
    with pytest.raises(BadInput, match="'fedavg': has no performance loss"):
        formulas.performance_loss("fedavg", 10, 1e-5, 25)


def test_binary_rows_are_less_coherent_at_half_rate() -> None:
    """Section 5.3: at a rate of 0.5 the others are at least twice as coherent; here 1.9 times."""
    for basis in ("dct", "dft"):
        binary = formulas.coherence("binary", basis, 0.5)
        assert binary <= 2.0 + 1e-9
        assert formulas.coherence("gaussian", basis, 0.5) >= 1.9 * binary
