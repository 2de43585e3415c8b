"""Noise of published formulas, against values worked by hand from the papers."""

import math

import pytest

from tacit.core import NonPrivate
from tacit.local.sgd import SGD
from tacit.methods import UDP


def test_udp_in_the_setting_of_cuag():
    """Eta 0.1, C 1, 500 examples, 10 of 100 clients, 300 rounds, eps 10, delta 1e-5.

    2 * 0.1 * 1 / 500 = 4e-4, times sqrt(2 * 0.1 * 300 * 11.5129) = 26.2828, over 10.
    """
    udp = UDP(mode="paper", rounds=300, epsilon=10.0, clip=1.0, sgd=SGD(lr=0.1))
    assert udp.sigma(500, 0.1, 1e-5) == pytest.approx(1.05131e-3, rel=1e-4)
    rule = udp.rule("0", 500, 30, 1e-5, q=0.1)
    assert rule.sd == udp.sigma(500, 0.1, 1e-5)
    (line,) = rule.lines("0", 500, 30)
    assert isinstance(line.event, NonPrivate)
    assert "2 eta C/|D|" in line.event.why


def test_what_udp_claims_and_what_holds():
    claims = {name: epsilon for name, epsilon, _ in UDP(mode="paper").claims({"0": 500}, 1e-5)}
    assert claims == {"published": 10.0, "certified": math.inf}
