"""Compression of updates: what is really sent, and how it is read again. May import core."""
