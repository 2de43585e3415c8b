"""PFLDyn: its rules by hand, and the invariant that makes it converge, under faults."""

import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from often import often
from sandbox import Sandbox

from tacit.codec import same
from tacit.core import BadInput, Params, TooFewReplies, mean
from tacit.experiment.drive import drive
from tacit.local.prototypes import Episodes
from tacit.methods import PFLDyn, pfldyn

QUICK = Episodes(steps=3, batch=4)


def kept(engine, sandbox):
    """What every client holds of g_n; zero before its first accepted round."""
    stores = {i: engine.world.store(i).kept(engine.accepted.get(i)) for i in engine.everyone}
    return {i: k.get("g", sandbox.x0.zeros()) for i, k in stores.items()}


def test_the_servers_rule_by_hand():
    """alpha = 1/2, d = 4, g = 1, a quarter took part: g = 1 - 4/8 = 1/2; w = 14 - 2 * 1/2 = 13."""
    w, g, d = (Params(w=torch.tensor(v)) for v in (10.0, 1.0, 4.0))
    x, after = pfldyn.stepped(w, g, d, 0.5, 0.25)
    assert (x["w"], after["w"]) == (13.0, 0.5)
    x, after = pfldyn.stepped(w, g, d, 0.5, 1.0)  # as CUAG-PFL's paper prints it
    assert (x["w"], after["w"]) == (16.0, -1.0)


def test_the_clients_rule_by_hand(sandbox, monkeypatch):
    """With a gradient of zero.

    W moves by lr (g_n - alpha (w - w_t)) a step, and g_n loses alpha times the way.
    """
    monkeypatch.setattr(
        Episodes, "_plain", lambda self, me, w: iter([[torch.zeros_like(p) for p in w]] * 2)
    )
    engine = sandbox.serial(PFLDyn())
    me = engine.world.client(
        "pfldyn.train",
        "0",
        0,
        {"g": Params({k: torch.ones_like(v) for k, v in sandbox.x0.items()})},
    )
    local = Episodes(lr=0.5, steps=2, decay=1.0, weight_decay=0.0, max_norm=1e9)
    reply = pfldyn.train.fn(me, x=sandbox.x0, alpha=0.2, local=local)
    way = 0.5 * 1 + 0.5 * (1 - 0.2 * 0.5)
    for k in sandbox.x0:
        torch.testing.assert_close(
            reply.sent.dx[k], torch.full_like(sandbox.x0[k], way), atol=1e-5, rtol=1e-5
        )
        want = torch.full_like(sandbox.x0[k], 1 - 0.2 * way)
        torch.testing.assert_close(reply.keep["g"][k], want, atol=1e-5, rtol=1e-5)


def test_clients_that_are_not_sampled_keep_what_they_had(sandbox):
    method = PFLDyn(rounds=2, per_round=3, local=QUICK)
    engine = sandbox.serial(method)
    first = drive(method, engine, method.init(sandbox.x0), stop_after=1)
    before = kept(engine, sandbox)
    drive(method, engine, first)
    after = kept(engine, sandbox)
    moved = {i for i in engine.everyone if not same(before[i], after[i])}
    assert moved == set(engine.accepted) & {
        i for i, ask in engine.accepted.items() if ask.endswith("@1")
    }
    assert 0 < len(moved) < 6


faults = st.dictionaries(
    st.tuples(st.sampled_from([str(i) for i in range(6)]), st.integers(0, 3)),
    st.sampled_from(["crash", "lost"]),
    max_size=8,
)


@given(table=faults)
@often(15)
def test_the_servers_g_is_the_mean_of_the_clients_whatever_is_lost(table):
    with tempfile.TemporaryDirectory() as folder:
        sandbox = Sandbox(Path(folder) / "sandbox")
        method = PFLDyn(rounds=4, per_round=4, local=QUICK)
        engine = sandbox.serial(method, lambda i, t: table.get((i, t)))
        try:
            s = drive(method, engine, method.init(sandbox.x0))
        except TooFewReplies:
            return
        assert (mean(kept(engine, sandbox).values()) - s.g).norm() < 1e-5 * (1 + s.g.norm())


def test_with_everyone_both_forms_of_the_rule_are_one(sandbox):
    a, b = (PFLDyn(rounds=3, share=share, local=QUICK) for share in (True, False))
    c, d = (PFLDyn(rounds=3, per_round=3, share=share, local=QUICK) for share in (True, False))
    ends = [drive(m, sandbox.serial(m), m.init(sandbox.x0)).x for m in (a, b, c, d)]
    assert same(ends[0], ends[1])
    assert not same(ends[2], ends[3])


def test_wrong_settings_are_refused():
    with pytest.raises(BadInput, match="alpha = 0"):
        PFLDyn(alpha=0.0)
    with pytest.raises(BadInput, match="rounds = -1"):
        PFLDyn(rounds=-1)
