"""Programs that run for days: a coordinator's link, its gate, and a site.

May import everything below the cli.
"""
