"""Where a method clips gradients example by example, its network is checked before it runs."""

from dataclasses import fields, replace

import pytest
from sandbox import small

from tacit.experiment.drive import drive
from tacit.local import prototypes, sgd
from tacit.local.sgd import SGD
from tacit.methods import METHODS
from tacit.methods.ldp_fl import LDPFL
from tacit.synthesis.source import Source

DP_SGD = SGD(batch=100, clip=1.0, z=1.0)
KINDS = {
    "ldp_fl": [{"mode": "gradient"}, {"mode": "update"}],
    "cuag": [{"unit": "client"}, {"mu": 0.0}, {"head": "gaussian"}],
    "dafl": [{"main": "open"}, {"main": "dp-sgd", "sgd": DP_SGD}, {"method": LDPFL()}],
    "gfl": [{"online": "none", "sgd": SGD()}, {"online": "open", "sgd": SGD()}],
    "kd_dpfl": [{"labels": "sub-teachers"}, {"send": "gradient"}],
} | {name: [{"sgd": DP_SGD}] for name in ("fedavg", "fedprox", "scaffold", "fednova", "local")}
KINDS |= {name: [{"sgd": DP_SGD}] for name in ("fedavgm", "fedadam", "mr_mtl", "ditto")}


def variants(name):
    yield {}
    yield from KINDS.get(name, [])
    if "mode" in {f.name for f in fields(METHODS[name])}:
        yield {"mode": "paper"}


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name in METHODS for kind in variants(name)]
)
def test_who_clips_examples_says_so(name, kind, sandbox, monkeypatch):
    clipped = []
    for room, does in ((sgd, "clipped_gradients"), (prototypes, "clipped_sum")):
        real = getattr(room, does)
        monkeypatch.setattr(
            room, does, lambda *a, real=real, **k: clipped.append(1) or real(*a, **k)
        )
    if kind.get("mode") == "paper":
        monkeypatch.setattr(Source, "kind", "moments")  # the papers' GAN needs images
    method = replace(small(name, rounds=1), **kind)
    drive(method, sandbox.serial(method), method.init(sandbox.x0))
    assert bool(clipped) == method.per_example
