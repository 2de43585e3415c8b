"""What tests need of the small world of `tacit.testing`, and every method made small for it."""

from dataclasses import fields

import numpy as np
import torch

from tacit.core import Client, Ledger
from tacit.data.examples import Examples
from tacit.data.federated import LocalData
from tacit.engines.config import Config
from tacit.engines.server import Engine
from tacit.local.prototypes import Episodes
from tacit.local.sgd import SGD
from tacit.methods import METHODS
from tacit.testing.world import PUBLIC, SEED, SIZES, Sandbox, federation

__all__ = ["PUBLIC", "SEED", "SIZES", "Sandbox", "Server", "a_client", "federation", "small"]


class Server(Engine):
    """Has no clients to ask: for the mechanisms that a server runs itself."""

    def __init__(self, everyone, seed, **how):
        super().__init__(Config(tuple(everyone), seed, **how))

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


SETTINGS = {"dafl": {"gamma": 1.0}}  # samples for everybody, whatever is lost
# so that its clients take part in every round
SETTINGS |= {"gfl": {"online": "dp-sgd", "sgd": SGD(clip=1.0, z=1.0), "n_k": 60, "E_s": 2.0}}
# quick ones
SETTINGS |= {name: {"local": Episodes(steps=2)} for name in ("pfldyn", "prifedsync", "cuag")}
SETTINGS |= {"pate": {"sub": 4}, "kd_dpfl": {"sub": 4}}


def small(name, rounds=3):
    """A method of the registry with few rounds, four clients each."""
    cls = METHODS[name]
    names = {f.name for f in fields(cls)}
    usual = {"rounds": rounds, "per_round": 4}
    return cls(**{k: v for k, v in usual.items() if k in names} | SETTINGS.get(name, {}))
