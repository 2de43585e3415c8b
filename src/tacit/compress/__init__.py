"""Compression of updates: what is really sent, and how it is read again. May import core."""

from tacit.compress.compressor import Compressor, Rates

__all__ = ["Compressor", "Rates"]
