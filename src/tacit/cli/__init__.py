"""The command line: flags made from the dataclasses, progress, one-line errors.

May import everything below.
"""
