"""A method that is told an epsilon spends that much over all its rounds, and hardly less."""

from dataclasses import replace

import pytest
from sandbox import small

from tacit import privacy
from tacit.experiment.calibration import calibrated
from tacit.experiment.drive import drive
from tacit.local.prototypes import Episodes
from tacit.local.sgd import SGD
from tacit.methods import METHODS

DELTA = 1e-5
WHOLE = SGD(batch=100)  # all examples in every step, so that no accountant takes long
CLIPPED = SGD(batch=100, clip=1.0)
WITH_POOL = replace(CLIPPED, batch=1000)  # however many samples come from the others
LOCAL = Episodes(steps=2)
KINDS = {
    "ldp_fl dp-sgd": {"sgd": WHOLE},
    "ldp_fl gradient": {"mode": "gradient"},
    "ldp_fl update": {"mode": "update"},
    "ldp_fl replace": {"mode": "gradient", "relation": "replace"},
    "nbafl": {},
    "udp": {},
    "dp_fedavg": {"q": 1.0},
    "cl_fl": {},
    "cuag example": {"local": LOCAL},
    "cuag gaussian": {"head": "gaussian"},
    "cuag client": {"local": LOCAL, "unit": "client"},
    "cuag harmonic": {"local": LOCAL, "unit": "client", "schedule": "harmonic"},
    "cuag clients": {"local": LOCAL, "unit": "client", "observer": "clients"},
    "moments": {},
    "pate": {"sub": 3, "teacher": WHOLE},
    "pate vote": {"labels": "vote", "teacher": WHOLE},
    "kd_dpfl": {"sgd": WHOLE},
    "kd_dpfl gradient": {"send": "gradient"},
    "kd_dpfl joined": {"sgd": WHOLE, "large_join": True, "per_round": 0},
    "fedavg": {"sgd": CLIPPED},
    "fedprox": {"sgd": CLIPPED},
    "fednova": {"sgd": CLIPPED},
    "scaffold": {"sgd": CLIPPED},
    "local": {"sgd": CLIPPED},
    "fedavgm": {"sgd": CLIPPED},
    "fedadam": {"sgd": CLIPPED},
    "mr_mtl": {"sgd": CLIPPED},
    "ditto": {"sgd": CLIPPED},
    "centralised": {"sgd": CLIPPED},
    "dp_scaffold": {"sgd": replace(CLIPPED, z=1.0)},
    "prifedsync": {"local": LOCAL},
    "dafl": {},
    "dafl dp-sgd": {"main": "dp-sgd", "sgd": WITH_POOL},
    "dafl given": {"main": "dp-sgd", "sgd": WITH_POOL, "pool_epsilon": 1.0},
    "gfl": {"online": "none", "sgd": SGD()},
    "gfl dp-sgd": {"sgd": CLIPPED},
}


def spent(method, sandbox):
    """Return the epsilon of a run, for the unit and the observer that the method speaks of."""
    method = calibrated(method, sandbox.federation(method).sizes(), DELTA, 0)
    engine = sandbox.serial(method)
    drive(method, engine, method.init(sandbox.x0))
    unit, observer = method.protects
    how = getattr(method, "relation", "zero-out")
    return privacy.epsilon(
        engine.ledger, unit=unit, observer=observer, delta=DELTA, relation=how, quick=True
    )


@pytest.mark.parametrize(("name", "kind"), KINDS.items(), ids=[k.replace(" ", "-") for k in KINDS])
def test_a_method_spends_what_it_promises(name, kind, sandbox, one_thread):
    """Everybody is in every round: who is in fewer may spend less, nobody more."""
    method = replace(small(name.partition(" ")[0]), **kind, epsilon=3.0)
    if "per_round" in method.__dataclass_fields__:
        method = replace(method, per_round=0)
    assert 0.99 * 3.0 < spent(method, sandbox) <= 3.0 * (1 + 1e-6)


def test_no_method_that_takes_an_epsilon_is_left_out():
    named = {name for name, cls in METHODS.items() if "epsilon" in cls.__dataclass_fields__}
    # moon refuses one, as its loss takes no clip
    assert named - {"moon"} == {kind.partition(" ")[0] for kind in KINDS}
