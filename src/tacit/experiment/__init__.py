"""From an experiment to a run directory, and several of them side by side.

May import everything below.
"""
