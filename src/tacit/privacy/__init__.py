"""Mechanisms and accounting: the only place where noise is drawn. May import core."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tacit.privacy.accounting import (
    OBSERVERS,
    RELATIONS,
    UNITS,
    approve,
    by_owner,
    epsilon,
    overview,
)
from tacit.privacy.bounds import rdp_epsilon
from tacit.privacy.calibrate import noise_for, rate_for, rdp_spend, spend, spent, steps_for
from tacit.privacy.gdp import gdp_epsilon, gdp_mu
from tacit.privacy.reasons import reason
from tacit.privacy.rounding import rounded_down, rounded_up, show_epsilon

if TYPE_CHECKING:
    from tacit.privacy.checks import check_network


def __getattr__(name: str) -> Any:
    """Import what needs torch when it is first used: accounting need not wait for it."""
    if name != "check_network":
        raise AttributeError(f"module 'tacit.privacy' has no attribute {name!r}")
    from tacit.privacy.checks import check_network

    return check_network


__all__ = [
    "OBSERVERS",
    "RELATIONS",
    "UNITS",
    "approve",
    "by_owner",
    "check_network",
    "epsilon",
    "gdp_epsilon",
    "gdp_mu",
    "noise_for",
    "overview",
    "rate_for",
    "rdp_epsilon",
    "rdp_spend",
    "reason",
    "rounded_down",
    "rounded_up",
    "show_epsilon",
    "spend",
    "spent",
    "steps_for",
]
