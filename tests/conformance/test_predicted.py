"""What `tacit privacy METHOD` predicts is what a run spends,
for every method and every kind of release it has.
"""

import math
from dataclasses import fields, replace

import pytest
from sandbox import SEED, small

from tacit import privacy
from tacit.core import BadInput
from tacit.experiment.calibration import calibrated
from tacit.experiment.config import Experiment, Setting
from tacit.experiment.drive import drive
from tacit.experiment.forecast import predicted
from tacit.experiment.plan import Plan
from tacit.local.sgd import SGD
from tacit.methods import METHODS
from tacit.methods.dafl import DAFL
from tacit.methods.gfl import GFL
from tacit.methods.spec import method_from_spec
from tacit.synthesis.source import Source

DELTA = 1e-5
# every step sees all examples, so that no accountant takes long
DP_SGD = SGD(batch=100, clip=1.0, epsilon=4.0)
TAKE_A_CLIP = {
    "fedavg",
    "fedprox",
    "scaffold",
    "fednova",
    "fedavgm",
    "fedadam",
    "mr_mtl",
    "ditto",
    "centralised",
    "local",
    "dp_scaffold",
    "gfl",
    "dafl",
}
KINDS = {  # settings under which a method releases something else
    "ldp_fl": [{"mode": "gradient"}, {"mode": "update"}],
    "dp_fedavg": [{"epsilon": 3.0}, {"adaptive": True}],
    "prifedsync": [{"sigma": 0.0}],
    "cuag": [
        {"unit": "client"},
        {"unit": "client", "observer": "clients"},
        {"unit": "client", "schedule": "harmonic"},
        {"mu": 0.0},
        {"head": "gaussian"},
    ],
    "local": [{"head": "gaussian"}],
    "dafl": [{"main": "open"}],
    "gfl": [{"online": "none", "sgd": SGD()}, {"online": "open", "sgd": SGD()}],
    "kd_dpfl": [
        {"labels": "vote"},
        {"labels": "sub-teachers", "large_join": True},
        {"send": "gradient"},
    ],
    "pate": [{"labels": "vote"}],
    "udp": [{"mode": "paper", "discount": 0.5}],
    "dp_scaffold": [{"mode": "paper", "warm": True}],
}
CLIPPED = {"dafl": {"main": "dp-sgd"}}


def variants(name):
    cls = METHODS[name]
    yield {}
    yield from KINDS.get(name, [])
    if "mode" in {f.name for f in fields(cls)}:
        yield {"mode": "paper"}
    if name in TAKE_A_CLIP:
        yield {"sgd": DP_SGD} | CLIPPED.get(name, {})


def named(name, kind):
    words = [
        f"{k}={'dp-sgd' if v is DP_SGD else 'open' if k == 'sgd' else v}" for k, v in kind.items()
    ]
    return pytest.param(name, kind, id=":".join([name, *words]))


def epsilon(ledger, method):
    unit, observer = method.protects
    return privacy.epsilon(ledger, unit=unit, observer=observer, delta=DELTA)


def told_and_spent(method, sandbox):
    """Return the epsilon that is predicted and that of a run."""
    federation = sandbox.world(method, sandbox.folder).federation
    method = calibrated(method, federation.sizes(), DELTA, SEED)
    experiment = Experiment(method, Setting(seed=SEED, delta=DELTA))
    told = predicted(experiment, Plan(experiment, federation, sandbox.model, "cpu"))
    engine = sandbox.serial(method)
    drive(method, engine, method.init(sandbox.x0))
    return epsilon(told, method), epsilon(engine.ledger, method)


@pytest.mark.parametrize(
    ("name", "kind"), [named(name, kind) for name in METHODS for kind in variants(name)]
)
def test_what_is_predicted_is_what_is_spent(name, kind, sandbox, monkeypatch):
    if kind.get("mode") == "paper":
        monkeypatch.setattr(Source, "kind", "moments")  # the papers' GAN needs images
    told, spent = told_and_spent(replace(small(name, rounds=2), **kind), sandbox)
    # with a pool a client has more examples, how many is not known before
    if "dp-sgd" in kind.values():
        assert 0.5 * told < spent <= told * (1 + 1e-9)
    else:
        assert spent == pytest.approx(told, rel=1e-6)
    assert told < math.inf or DP_SGD not in kind.values()


def test_a_client_that_comes_late_spends_what_is_left_and_that_is_predicted(sandbox):
    """UDP shares what is left among the rounds that are left: the last round takes all of it.

    Two of six clients a round. Its cost was predicted as if everybody came in every round.
    """
    told, spent = told_and_spent(replace(small("udp", rounds=4), per_round=2), sandbox)
    assert spent == pytest.approx(told, rel=1e-6)
    assert told == pytest.approx(10.0, rel=1e-6)  # its epsilon


# need all data, or the real ones, to begin with
ALONE = ("centralised", "moments", "dafl", "gfl", "kd_dpfl", "pate")
AFTER_A_POOL = [name for name in METHODS if name not in (*ALONE, "dp_scaffold")]
# which do not depend on the size of the pool
WORDS = {"ldp_fl": "ldp_fl:mode=update", "cuag": "cuag:unit=client"}


@pytest.mark.parametrize("main", ["synthetic", pytest.param("open", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", AFTER_A_POOL)
def test_a_pool_and_a_main_phase_cost_what_is_predicted(name, main, sandbox):
    method = method_from_spec(WORDS.get(name, name))
    told, spent = told_and_spent(DAFL(gamma=1.0, method=method, main=main, rounds=1), sandbox)
    assert spent == pytest.approx(told, rel=1e-6)


@pytest.mark.parametrize(
    "name", [n for n in METHODS if n not in TAKE_A_CLIP and hasattr(small(n), "sgd")]
)
def test_a_method_that_takes_no_clip_says_so_before_anything_runs(name):
    with pytest.raises(BadInput, match=r"^sgd.clip = 1: must be 0; "):
        replace(small(name), sgd=DP_SGD)


@pytest.mark.parametrize("kind", [{"main": "synthetic"}, {"main": "open"}, {"mode": "paper"}])
def test_a_clip_after_a_pool_is_for_dp_sgd_alone(kind):
    with pytest.raises(BadInput, match=r"^sgd.clip = 1: must be 0 with main = "):
        DAFL(sgd=DP_SGD, **kind)


@pytest.mark.parametrize("kind", [{"online": "none"}, {"online": "open"}, {"mode": "paper"}])
def test_a_clip_at_gfl_is_for_dp_sgd_alone(kind):
    with pytest.raises(BadInput, match=r"^sgd.clip = 1: must be 0 where "):
        GFL(sgd=DP_SGD, **kind)


@pytest.mark.parametrize("name", ALONE)
def test_a_method_that_cannot_come_after_a_pool_is_refused(name):
    with pytest.raises(BadInput, match="in every round"):
        DAFL(method=METHODS[name]())
