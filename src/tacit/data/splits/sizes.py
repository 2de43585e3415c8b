"""Clients of given sizes, and a public set (KD-DPFL's large, general, public)."""

from __future__ import annotations

import re

import numpy as np

from tacit.core.data import IntArray
from tacit.data.proportions import NOBODY, Table
from tacit.data.splits.scheme import PUBLIC, Request, Scheme, refusal

PRESETS: dict[str, str] = {
    "kd-mnist": "4x2500,49x1000,public=1000",
    "kd-svhn": "3x4419,49x1200,public=rest",
}
"""The sizes of KD-DPFL's two settings, for ``sizes:``."""


def draw(request: Request) -> IntArray:
    """Clients of given sizes, in the text's order, and a public rest, IID, as KD-DPFL has them."""
    groups, total = _groups(request.scheme, request.argument), len(request.labels)
    private = sum(many * size for many, size in groups)
    asked = _spec(request.scheme, request.argument).get("public", "0")
    public = total - private if asked == "rest" else int(asked)
    if private + public > total or (asked == "rest" and public < 1):
        more = " and a public rest" if asked == "rest" else ""
        needs = private + (0 if asked == "rest" else public)
        raise request.refusal(f"needs {needs} training examples{more} (there are {total})")
    sizes = np.repeat([size for _, size in groups], [many for many, _ in groups])
    order = request.rng("sizes").permutation(total)
    owner = np.full(total, NOBODY, dtype=np.int64)
    owner[order[:private]] = np.repeat(np.arange(len(sizes)), sizes)
    owner[order[private : private + public]] = PUBLIC
    return owner


def shares(request: Request) -> Table:
    """Sizes as they are written, over their sum; the public set is the last column."""
    spec = _spec(request.scheme, request.argument)
    if spec.get("public") == "rest":
        raise request.refusal(
            "public=rest: needs the number of records, which own data do not tell; write public=N"
        )
    groups = _groups(request.scheme, request.argument)
    sizes = [size for many, size in groups for _ in range(many)] + [int(spec.get("public", "0"))]
    return np.tile(np.array(sizes) / sum(sizes), (request.classes, 1))


def many(scheme: str, argument: str) -> int:
    """Return how many clients the sizes are of."""
    return sum(many for many, _ in _groups(scheme, argument))


def _spec(scheme: str, argument: str) -> dict[str, str]:
    """Read ``4x2500,49x1000,public=1000`` as {"groups": "4x2500,49x1000", "public": "1000"}.

    Presets are looked up.
    """
    whole = r"[1-9][0-9]{0,8}"
    pattern = rf"(?P<groups>{whole}x{whole}(,{whole}x{whole})*)(,public=(?P<public>{whole}|rest))?"
    match = re.fullmatch(pattern, PRESETS.get(argument, argument))
    if match is None:
        presets = " or ".join(PRESETS)
        raise refusal(
            scheme, f"must be like sizes:4x2500,49x1000,public=1000 (or public=rest), or {presets}"
        )
    return {key: value for key, value in match.groupdict().items() if value is not None}


def _groups(scheme: str, argument: str) -> list[tuple[int, int]]:
    """Return (how many clients, size of each) for each group of ``sizes``."""
    pairs = (group.split("x") for group in _spec(scheme, argument)["groups"].split(","))
    return [(int(many), int(size)) for many, size in pairs]


SIZES = Scheme(
    "sizes:SPEC",
    ("given sizes, such as sizes:4x2500,49x1000,public=1000 (or public=rest, kd-mnist, kd-svhn)"),
    draw,
    shares,
    clients=many,
)
