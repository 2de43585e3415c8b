"""Mechanisms and accounting: the only place where noise is drawn. May import core."""

from tacit.privacy.accounting import OBSERVERS, UNITS, epsilon, reason

__all__ = ["OBSERVERS", "UNITS", "epsilon", "reason"]
