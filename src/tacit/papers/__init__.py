"""The papers' tables and figures as data, their presets, and what was measured of them."""
