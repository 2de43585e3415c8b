"""Where clients run. May import core, codec, data, models, privacy; never methods."""
