"""A matplotlib figure that a notebook shows by itself, without pyplot's windows."""

from __future__ import annotations

import io

from matplotlib.figure import Figure


class ShownFigure(Figure):
    """A figure that knows how to be a picture; a notebook asks plain ones only after pyplot."""

    def _repr_png_(self) -> bytes:
        """Return the picture, for IPython."""
        blob = io.BytesIO()
        self.savefig(blob, format="png")
        return blob.getvalue()
