"""A site without any process, and a coordinator that asks it whatever it likes."""

from dataclasses import replace

import numpy as np
import torch

from tacit.apps.policy import ANYTHING
from tacit.apps.site import Site
from tacit.codec import pack, unpack
from tacit.core import BadInput, TacitError, params_of
from tacit.data.examples import Dataset, Examples
from tacit.engines.flower import Charter
from tacit.engines.messages import Head
from tacit.engines.store import read_ledger
from tacit.models import build

RUN = "0123456789abcdef"
SEED = 7
CHARTER = Charter(RUN, 3, SEED, "mlp", (4,), 3, 1e-5)
X = params_of(build("mlp", (4,), 3, SEED))
CLIENT = "1"
EMPTY = Examples(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))


def records(n=12, planted=None):
    """Return a site's data; ``planted`` is what the first training record looks like."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 2 * n)
    x = (rng.normal(size=(2 * n, 4)) + np.eye(3, 4)[y]).astype(np.float32)
    if planted is not None:
        x[0] = planted
    own = Examples(torch.from_numpy(x), torch.from_numpy(y))
    train, test = own.take(torch.arange(n)), own.take(torch.arange(n, 2 * n))
    return Dataset("tiny", train, test, ("a", "b", "c"))


def a_site(folder, data=None, **more):
    usual = {"noise": "seeded", "policy": ANYTHING}
    return Site("hospital-b", data or records(), folder, **usual | more)


def head(call, round=0, accepted=None):
    return Head(CLIENT, f"{call.task}@{round}", round, accepted, accepted)


def ask(site, call, round=0, kind="ask", charter=CHARTER, **more):
    """Return a site's answer to one call, or raise what it refuses with."""
    return unpack(site.answer(kind, charter, replace(head(call, round), **more), pack(call)))


def refusal(site, call, *args, **more):
    """Return the words of a refusal, or None where the site answers."""
    try:
        ask(site, call, *args, **more)
    except (BadInput, TacitError) as e:
        return str(e)
    return None


def ledger(site, charter=CHARTER):
    return read_ledger(site.folder / charter.run / CLIENT / "ledger.jsonl")
