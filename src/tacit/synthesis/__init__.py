"""Private synthetic data: generators that are fitted through mechanisms.

May import core, data, privacy, local.
"""
