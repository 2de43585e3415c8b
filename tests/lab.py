"""A small world for conformance tests.

Six clients of unequal sizes and a public set, four features, three classes.
"""

import itertools
import shutil
from dataclasses import fields

import numpy as np
import torch

from tacit.core import Client, Ledger, params_of
from tacit.data.examples import Dataset, Examples
from tacit.data.federated import Federation, LocalData
from tacit.data.partition import Split
from tacit.engines.inprocess import Workers
from tacit.engines.node import Engine, Serial, World, no_fault
from tacit.local.prototypes import Episodes
from tacit.local.sgd import SGD
from tacit.methods import METHODS
from tacit.models import build

SEED = 7
SIZES = (6, 9, 12, 15, 18, 21)
PUBLIC = 8


def federation():
    rng = np.random.default_rng(0)
    n = sum(SIZES)
    y = rng.integers(0, 3, n)
    x = rng.normal(size=(n, 4)) + np.eye(3, 4)[y]
    examples = Examples(torch.tensor(x, dtype=torch.float32), torch.tensor(y))
    public = np.arange(n, n + PUBLIC)  # belong to nobody
    y = rng.integers(0, 3, PUBLIC)
    x = rng.normal(size=(PUBLIC, 4)) + np.eye(3, 4)[y]
    every = examples.plus(Examples(torch.tensor(x, dtype=torch.float32), torch.tensor(y)))
    edges = [0, *itertools.accumulate(SIZES)]
    rows = tuple(np.arange(a, b) for a, b in itertools.pairwise(edges))
    return Federation(
        Dataset("tiny", every, examples, ("a", "b", "c")), Split(rows, rows, public=public), SEED
    )


class Server(Engine):
    """Has no clients to ask: for the mechanisms that a server runs itself."""

    def exchange(self, kind, call, heads):
        raise NotImplementedError

    def own(self, call, data, round):
        raise NotImplementedError

    def close(self):
        pass


def a_client(round=0, seed=0, spent=None, size=500, data=None, model=None):
    """Return a client as CUAG's task gets it, with nothing but what a test gives."""
    data = data or LocalData(
        Examples(torch.zeros(size, 2), torch.zeros(size).long()), np.arange(size), (0.5,), (0.5,)
    )
    rng = np.random.default_rng(seed)
    ledger = Ledger() if spent is None else spent
    return Client(
        "0",
        round,
        data,
        data,
        model or torch.nn.Identity(),
        {},
        rng,
        "seeded",
        ledger,
        task="cuag.train",
    )


class Lab:
    """Makes engines whose clients live in folders that outlast the engine."""

    def __init__(self, folder):
        self.folder, self.count, self.open = folder, 0, []
        self.model = build("mlp", (4,), 3, SEED)
        self.x0 = params_of(self.model)

    def world(self, method, folder):
        fed = federation()
        return World(
            fed.pooled() if method is not None and method.pooled else fed, self.model, SEED, folder
        )

    def fresh(self):
        self.count += 1
        return self.folder / str(self.count)

    def serial(self, method, fault=no_fault, folder=None):
        return Serial(self.world(method, folder or self.fresh()), fault)

    def workers(self, method, fault=no_fault, folder=None, count=2):
        engine = Workers(self.world(method, folder or self.fresh()), count, fault)
        self.open.append(engine)
        return engine

    def close(self):
        for engine in self.open:
            engine.close()
        shutil.rmtree(self.folder, ignore_errors=True)


SETTINGS = {"dafl": {"gamma": 1.0}}  # samples for everybody, whatever is lost
# so that its clients take part in every round
SETTINGS |= {"gfl": {"online": "dp-sgd", "sgd": SGD(clip=1.0, z=1.0)}}
# quick ones
SETTINGS |= {name: {"local": Episodes(steps=4)} for name in ("pfldyn", "prifedsync", "cuag")}


def small(name, rounds=3):
    """A method of the registry with few rounds, four clients each."""
    cls = METHODS[name]
    names = {f.name for f in fields(cls)}
    usual = {"rounds": rounds, "per_round": 4}
    return cls(**{k: v for k, v in usual.items() if k in names} | SETTINGS.get(name, {}))
