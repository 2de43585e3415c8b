"""Training inside one client. May import core, data, models, privacy."""
