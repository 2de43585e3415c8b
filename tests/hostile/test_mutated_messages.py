"""Messages with bytes, numbers and words changed at random: nothing but the liar's round is lost.

`make slow` sends 10^5 of them; `make test` a few hundred.
"""

import json
import math
from copy import deepcopy
from types import SimpleNamespace

import numpy as np
import pytest
from liars import LIAR, LIMIT, PRIVATE, Scene, kind_of, reskeletoned

from tacit import privacy
from tacit.core import Everyone, Ledger
from tacit.engines.asked import missing
from tacit.engines.flower import letter, opened, packed
from tacit.engines.store import from_json, to_text
from tacit.methods.fedavg import train

SHORT, LONG = 150, 100_000
NASTY = (
    None, True, -1, 0, 1, 12, 2**31, 2**63, 10**18, 10**30, -0.0, 0.5, 1e308, -1e308, math.inf,
    -math.inf, math.nan, "", "x", "\x1b[2J", "0", "federation", "test:2", "Gaussian", [], {}, [[]],
    {"$": "tensor", "key": "000000"}, {"$": "list", "items": []}, {"$": "tacit.core.ledger:Nothing",
    "items": {}}, {"$": "params", "items": {}, "released": True}, "9" * 5000,
)  # fmt: skip


def places(o, path=()):
    """Yield the path to every value in a JSON value."""
    yield path
    pairs = o.items() if isinstance(o, dict) else enumerate(o) if isinstance(o, list) else ()
    for k, v in list(pairs):
        yield from places(v, (*path, k))


def in_json(rng):
    """Return a change of one or a few values: another one, none, or one from elsewhere."""

    def change(o):
        for _ in range(int(rng.integers(1, 4))):
            every = list(places(o))[1:]
            if not every:
                return o
            *path, last = every[rng.integers(len(every))]
            inside = o
            for k in path:
                inside = inside[k]
            if rng.random() < 0.15:
                del inside[last]
            else:
                inside[last] = deepcopy(NASTY[rng.integers(len(NASTY))])
        return o

    return change


def in_bytes(rng, blob):
    """Return a blob with bits flipped, cut short, or with a part twice."""
    made = bytearray(blob)
    for _ in range(int(rng.integers(1, 6))):
        made[rng.integers(len(made))] ^= 1 << int(rng.integers(8))
    if rng.random() < 0.2:
        del made[rng.integers(len(made)) :]
    if rng.random() < 0.2:
        at = int(rng.integers(len(made) + 1))
        made[at:at] = made[: int(rng.integers(200))]
    return bytes(made)


def mutated(rng, changes):
    """Return a lie that is another one each time; ``changes`` says of which kind it was."""

    def lie(content, said):
        if kind_of(content) != "ask":
            return said
        word, about, blob = opened(said, LIMIT)
        which = rng.random()
        if which < 0.6:
            blob = reskeletoned(blob, in_json(rng))
        elif which < 0.9:
            blob = in_bytes(rng, blob)
        else:
            about = in_json(rng)(about)
        changes.append(which)
        return letter(word, json.loads(json.dumps(about)), packed(blob))

    return lie


def cost(ledger):
    own = Ledger(line for line in ledger if line.owner == LIAR)
    return privacy.epsilon(own, unit="example", observer="server", delta=1e-5, quick=True)


def canned(engine, call):
    """Let the sites repeat what they have answered, so that only the liar's changes take time."""
    said, sites = {}, engine.grid.sites
    for node, site in sites.items():
        said[node] = remembered(site.reply)
    sites.update({node: SimpleNamespace(reply=reply) for node, reply in said.items()})
    engine.ask(call, engine.sample(Everyone(), 0))
    return engine.ledger


def remembered(reply):
    known = []

    def again(content):
        known.extend([reply(content)] if not known else [])
        return known[0]

    return again


def send(folder, count, seed):
    """Send mutated messages; after each, all that was promised holds."""
    scene, rng, changes = Scene(folder, PRIVATE), np.random.default_rng(seed), []
    call = train(x=scene.x, sgd=PRIVATE.sgd)
    ledger = canned(scene.engine(None), call)
    least, refused = cost(ledger), 0
    others = {line for line in ledger if line.owner != LIAR}
    for n in range(count):
        engine = scene.engine(mutated(rng, changes))
        replies = engine.ask(call, engine.sample(Everyone(), 0))
        engine.settle_round(0)
        where = f"message {n} of seed {seed}"
        assert replies.clients in (("0", "1", "3"), tuple("0123")), where
        refused += LIAR in replies.failed
        assert all(math.isfinite(r.dx.norm()) and r.n == 12 for r in replies), where
        assert {line for line in engine.ledger if line.owner not in (LIAR, "test:2")} == others
        read = [from_json(json.loads(line)) for line in to_text(engine.ledger).splitlines()]
        assert read == list(engine.ledger), where
        mine = [line for line in read if line.owner == LIAR]
        if mine:  # nothing of what was asked is missing; now and then the figure itself
            assert missing(engine.config.expected(LIAR, {0}), mine, 0) == [], where
            assert n % 50 or cost(engine.ledger) >= least, where
        else:  # it has said nothing that could be read: it has not answered
            assert LIAR in replies.failed, where
    assert len(changes) == count
    return refused


def test_a_few_mutated_messages_cost_the_liar_its_rounds_alone(tmp_path):
    refused = send(tmp_path, SHORT, seed=1)
    assert refused > SHORT / 2  # most changes matter, and are noticed


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_hundred_thousand_mutated_messages(tmp_path):
    assert send(tmp_path, LONG, seed=2) > LONG / 2
