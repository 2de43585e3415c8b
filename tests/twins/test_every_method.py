"""Every method that promises something, in every way it can: one record, or one client, is covered.

What the harness does, and why that is enough, stands at the top of harness.py. Clips are so small
that everything is cut, and a record of each client that has twins is far from all others.
"""

from dataclasses import replace

import pytest
from sandbox import SEED, Sandbox
from twins import worlds
from twins.harness import check
from twins.worlds import client_away, client_other, record_gone, record_other

from tacit.core import params_of
from tacit.engines.client_host import World
from tacit.local.prototypes import Episodes
from tacit.local.sgd import SGD
from tacit.methods import METHODS
from tacit.methods.spec import method_from_spec
from tacit.models import build
from tacit.synthesis import classifiers
from tacit.synthesis.gan import GANSettings

pytestmark = pytest.mark.usefixtures("one_thread")

# Poisson samples; all examples; with what a gradient may be corrected by
STEPS = SGD(lr=0.5, epochs=2, batch=8, clip=0.2, z=0.9)
WHOLE = SGD(lr=0.5, epochs=2, batch=100, clip=0.2, z=0.9, momentum=0.5, weight_decay=0.1)
GAN = GANSettings(epochs=4, batch=6, width=2, latent=3, clip=0.05, z=1.5)
EPISODES = Episodes(steps=3)
SAMPLED = Episodes(steps=3, batch=18)  # a sample only of the largest client
PLAIN = SGD(lr=0.5, batch=8)
AT_ONCE = SGD(lr=0.5, batch=100)  # to be made private by the method, on all examples
TAUGHT = {"sgd": AT_ONCE, "teacher": PLAIN}
CUAG, KD = "cuag:rounds=2,unit=client,clip=0.05", "kd_dpfl:rounds=2,clip=0.2"
PATE = "pate:rounds=1,sub=5,queries=4"
BY_GAN = "generator=gan,pool_epsilon=8.0,label_epsilon=1.0"

RECORD = (record_gone("5"), record_other("5"))
POOLED = (record_gone("0"), record_other("0"))
# of a client that is large, and of one that is not
BOTH = (*RECORD, record_gone("1"), record_other("1"))
CLIENT = (client_other("5"),)
AT_SERVER = (client_away("5"), client_other("5"))

# of each: a name, the settings, and the twins
VARIANTS = [
    ("fedavg", "fedavg:rounds=2", {"sgd": STEPS}, RECORD),
    ("fedavg momentum", "fedavg:rounds=2,per_round=5", {"sgd": WHOLE}, RECORD),
    ("fedprox", "fedprox:rounds=2,mu=1.0", {"sgd": STEPS}, RECORD),
    ("scaffold", "scaffold:rounds=2", {"sgd": STEPS}, RECORD),
    ("dp_scaffold", "dp_scaffold:rounds=2", {"sgd": WHOLE}, RECORD),
    ("fednova", "fednova:rounds=2", {"sgd": WHOLE}, RECORD),
    ("fedavgm", "fedavgm:rounds=2", {"sgd": WHOLE}, RECORD),
    ("fedadam", "fedadam:rounds=2", {"sgd": WHOLE}, RECORD),
    ("mr_mtl", "mr_mtl:rounds=2,lam=1.0", {"sgd": WHOLE}, RECORD),
    ("ditto", "ditto:rounds=2", {"sgd": WHOLE}, RECORD),
    ("centralised", "centralised:rounds=2", {"sgd": replace(STEPS, batch=27)}, POOLED),
    ("local dp-sgd", "local:rounds=2", {"sgd": STEPS}, RECORD),
    ("local", "local:rounds=2", {"sgd": PLAIN}, CLIENT),
    ("ldp_fl dp-sgd", "ldp_fl:rounds=2,clip=0.2", {"sgd": AT_ONCE}, RECORD),
    ("ldp_fl gradient", "ldp_fl:rounds=2,mode=gradient,clip=0.2", {"sgd": PLAIN}, RECORD),
    ("ldp_fl replace", "ldp_fl:rounds=2,mode=gradient,clip=0.2,relation=replace", {}, RECORD),
    ("ldp_fl update", "ldp_fl:rounds=2,mode=update,clip=0.2", {"sgd": PLAIN}, CLIENT + RECORD),
    ("ldp_fl epsilons", "ldp_fl:rounds=2,mode=update,clip=0.2,epsilons=[1.0,8.0]", {}, CLIENT),
    ("dp_fedavg", "dp_fedavg:rounds=3,q=0.6,clip=0.2,z=0.8", {"sgd": PLAIN}, AT_SERVER + RECORD),
    ("dp_fedavg adaptive", "dp_fedavg:rounds=3,q=0.6,clip=0.03,adaptive=true", {}, AT_SERVER),
    ("dp_fedavg bits", "dp_fedavg:rounds=1,q=1.0,clip=0.13,adaptive=true", {}, AT_SERVER),
    ("dp_fedavg epsilon", "dp_fedavg:rounds=2,q=1.0,clip=0.1,epsilon=4.0", {}, AT_SERVER),
    ("cl_fl", "cl_fl:rounds=3,per_round=4,clip=0.2,z=0.8", {"sgd": PLAIN}, AT_SERVER + RECORD),
    ("nbafl", "nbafl:rounds=2,clip=0.1", {"sgd": PLAIN}, CLIENT),
    ("udp", "udp:rounds=2,clip=0.1", {"sgd": PLAIN}, CLIENT),
    ("prifedsync", "prifedsync:rounds=2,clip=0.1", {"local": EPISODES}, CLIENT + RECORD),
    ("cuag example", "cuag:rounds=2,mu=4.0,clip=0.05", {"local": EPISODES}, RECORD),
    ("cuag example poisson", "cuag:rounds=1,mu=4.0,clip=0.05", {"local": SAMPLED}, RECORD),
    ("cuag gaussian", "cuag:rounds=1,head=gaussian,epsilon=200.0", {}, RECORD),
    ("cuag client", "cuag:rounds=2,unit=client,clip=0.05", {"local": EPISODES}, CLIENT + RECORD),
    ("cuag harmonic", f"{CUAG},schedule=harmonic,per_round=5", {"local": EPISODES}, CLIENT),
    ("cuag mus", f"{CUAG},mus=[0.5,2.0]", {"local": EPISODES}, CLIENT),
    ("cuag clients", f"{CUAG},observer=clients", {"local": EPISODES}, AT_SERVER),
    ("cuag adaptive", f"{CUAG},observer=clients,adaptive=true", {"local": EPISODES}, AT_SERVER),
    ("moments", "moments", {}, RECORD),
    ("moments qda", "moments:head=qda,epsilon=200.0", {}, (*RECORD, record_gone("0"))),
    ("moments lda", "moments:head=lda", {}, RECORD),
    ("moments logistic", "moments:head=logistic", {}, RECORD),
    ("moments mlp", "moments:head=mlp", {}, RECORD),
    ("dafl", "dafl:rounds=1,gamma=1.0", {}, RECORD),
    ("dafl dp-sgd", "dafl:rounds=1,gamma=1.0", {"main": "dp-sgd", "sgd": WHOLE}, RECORD),
    (
        "dafl scaffold",
        "dafl:rounds=1,gamma=1.0,method=scaffold",
        {"main": "dp-sgd", "sgd": WHOLE},
        RECORD,
    ),
    ("gfl", "gfl:rounds=2,n_k=20,E_s=1.0", {}, RECORD),
    ("gfl dp-sgd", "gfl:rounds=2,n_k=20,E_s=1.0", {"online": "dp-sgd", "sgd": WHOLE}, RECORD),
    ("pate", f"{PATE}", {"teacher": PLAIN}, RECORD),
    ("pate laplace", f"{PATE},vote_noise=laplace", {"teacher": PLAIN}, RECORD),
    ("pate vote", f"{PATE},labels=vote", {"teacher": PLAIN}, CLIENT + RECORD),
    ("pate vote laplace", f"{PATE},labels=vote,vote_noise=laplace", {"teacher": PLAIN}, CLIENT),
    ("kd_dpfl", f"{KD},per_round=0", {"sgd": AT_ONCE}, BOTH),
    ("kd_dpfl gradient", f"{KD},send=gradient,per_round=0", {}, BOTH),
    ("kd_dpfl sub-teachers", f"{KD},labels=sub-teachers,sub=5", TAUGHT, BOTH),
    ("kd_dpfl vote", f"{KD},labels=vote", TAUGHT, BOTH),
    ("kd_dpfl join", f"{KD},large_join=true,per_round=0", {"sgd": AT_ONCE}, RECORD),
]
PICTURES = [
    ("dafl gan", f"dafl:rounds=1,gamma=1.0,{BY_GAN}", {"gan": GAN}),
    ("dafl moments", "dafl:rounds=1,gamma=1.0,generator=moments", {}),
    (
        "dafl gan dp-sgd",
        f"dafl:rounds=1,gamma=1.0,{BY_GAN}",
        {"gan": GAN, "main": "dp-sgd", "sgd": WHOLE},
    ),
    ("gfl gan", f"gfl:rounds=1,n_k=12,{BY_GAN}", {"gan": GAN}),
]
PROMISE_NOTHING = {"fedmix", "pfldyn", "fedrep", "moon"}


def as_method(word, settings):
    return replace(method_from_spec(word), **settings)


# of each method its own kind of release; `make slow` tries every kind
SHORT = [
    "fedavg", "fedprox", "scaffold", "dp_scaffold", "fednova", "centralised", "local", "cl_fl",
    "ldp_fl gradient", "ldp_fl update", "dp_fedavg", "dp_fedavg adaptive", "nbafl", "udp", "gfl",
    "prifedsync", "cuag example", "cuag clients", "moments", "dafl", "pate", "pate vote",
    "kd_dpfl", "kd_dpfl gradient", "dafl moments", "gfl gan", "fedavgm", "fedadam", "mr_mtl",
    "ditto",
]  # fmt: skip


def named(rows):
    """Return parameters whose names are the first entries."""
    marks = [() if name in SHORT else pytest.mark.slow for name, *_ in rows]
    names = [name.replace(" ", "-") for name, *_ in rows]
    each = zip(rows, names, marks, strict=True)
    return [pytest.param(*row[1:], id=name, marks=mark) for row, name, mark in each]


@pytest.fixture(autouse=True)
def quick_heads(monkeypatch):
    """Heads that are trained on the server, which is post-processing, need not be good."""
    monkeypatch.setattr(classifiers, "EPOCHS", 1)


@pytest.mark.parametrize(("word", "settings", "twins"), named(VARIANTS))
def test_one_record_or_one_client_is_covered(word, settings, twins, tmp_path):
    method, sandbox = as_method(word, settings), Sandbox(tmp_path)
    federation = worlds.tiny().pooled() if word.startswith("centralised") else worlds.tiny()
    wild = worlds.wild(federation, *sorted({twin.client for twin in twins}))
    report = check(method, World(wild, sandbox.model, SEED, tmp_path), sandbox.x0, twins)
    assert report, "\n".join(report.findings)
    idle = [what for what, share in report.needed.items() if share < 0.3]
    assert not idle, "the twins hardly differ there, so nothing was tested"


@pytest.mark.parametrize(("word", "settings"), named(PICTURES))
def test_one_picture_is_covered(word, settings, tmp_path):
    method, model = as_method(word, settings), build("mlp", (1, 8, 8), 3, SEED)
    twins = (record_gone("1"), record_other("1"))
    world = World(worlds.wild(worlds.pictures(), "1"), model, SEED, tmp_path)
    report = check(method, world, params_of(model), twins)
    assert report, "\n".join(report.findings)
    assert min(report.needed.values()) > 0.3, "the twins hardly differ, so nothing was tested"


def test_no_method_is_left_out():
    rows = [(name, word.partition(":")[0]) for name, word, *_ in [*VARIANTS, *PICTURES]]
    assert {method for _, method in rows} | PROMISE_NOTHING == set(METHODS)
    assert {m for name, m in rows if name in SHORT} | PROMISE_NOTHING == set(METHODS)
    assert set(SHORT) <= {name for name, _ in rows}
