"""A coordinator that asks for what no method asks: no record leaves without a line."""

import math
from dataclasses import replace

import pytest
import torch
from asking import CHARTER, EMPTY, X, a_site, ask, ledger, refusal

from tacit.core import BudgetReached, Call, Params
from tacit.data.examples import Examples, Pool
from tacit.data.federated import LocalData
from tacit.experiment.sites import tally, tally_own, tally_shared
from tacit.local.sgd import SGD
from tacit.methods.dafl import DAFL, synthesise
from tacit.methods.dafl import join as join_pool
from tacit.methods.fedavg import train
from tacit.methods.ldp_fl import LDPFL
from tacit.methods.ldp_fl_update import train as ldp_train
from tacit.methods.local import Local
from tacit.methods.moments import Moments
from tacit.methods.pfldyn import PFLDyn

STEAL = SGD(batch=1, lr=1.0, weight_decay=1.0)  # one step leaves the record's own gradient
PRIVATE = SGD(clip=1.0, z=2.0, batch=4)
SMALL = 0.5


@pytest.fixture
def site(tmp_path):
    return a_site(tmp_path, budget=SMALL, metrics=0.0)


@pytest.fixture
def touched(monkeypatch):
    """What was read of a client's records, and of how many."""
    seen = []
    batch = LocalData.batch

    def watched(self, rows):
        seen.append(self.source)
        return batch(self, rows)

    monkeypatch.setattr(LocalData, "batch", watched)
    return seen


def test_a_record_cannot_be_left_in_memory_and_fetched(site):
    """The chain that took a training image from a site with a budget of 0.5 and a ledger of 0."""
    pool = ask(site, join_pool(Pool(EMPTY, instead=True)))
    assert pool.keeps
    accepted = "dafl.join@0"
    assert "budget" in refusal(site, train(x=X, sgd=STEAL))
    fetch = Call("gfl.train_for", {"x": Params(), "sgd": SGD(), "E": 1.0})
    assert "is for the server" in refusal(site, fetch, accepted=accepted)
    # and by any task that is for clients
    for x in (Params(), Params({"other": torch.zeros(1)})):
        asked = train(x=x, sgd=SGD())
        assert refusal(site, asked, accepted=accepted) is not None
    assert [type(line.event).__name__ for line in ledger(site)] == ["Nothing"]


@pytest.mark.parametrize(
    "call",
    [
        train(x=X, sgd=STEAL),
        train(x=X, sgd=replace(PRIVATE, z=0.01)),
        ldp_train(x=X, method=LDPFL(mode="update", epsilon=50.0), K=1, delta=1e-5),
        synthesise(how=DAFL(pool_epsilon=30.0), delta=1e-5),
    ],
    ids=["raw", "dp-sgd", "update", "moments"],
)  # fmt: skip
def test_what_a_budget_refuses_never_touches_a_record(site, touched, call):
    with pytest.raises(BudgetReached):
        ask(site, call)
    assert not any(source is site.dataset.train for source in touched)
    assert len(ledger(site)) == 0


def test_what_a_budget_allows_is_as_without_one(tmp_path):
    """Finding out beforehand what a task costs changes nothing of what it does."""
    call = train(x=X, sgd=PRIVATE)
    free, careful = (
        a_site(tmp_path / name, budget=budget)
        for name, budget in (("free", math.inf), ("careful", 100.0))
    )
    for t in range(3):
        a, b = (ask(s, call, t) for s in (free, careful))
        assert all(torch.equal(a.sent.dx[k], b.sent.dx[k]) for k in X)
        assert a.ledger == b.ledger


def test_a_noisy_report_over_the_budget_never_touches_a_record(site, touched):
    site.metrics = 5.0
    with pytest.raises(BudgetReached):
        ask(site, tally(x=X), kind="look")
    assert touched == []


@pytest.mark.parametrize("method", [PFLDyn(), Local()])
def test_a_personal_model_is_not_measured_as_a_shared_one(site, method):
    """Its counts depend on training data, and the line for that is of the other task."""
    site.budget, site.metrics = math.inf, 0.5
    s = method.init(X)
    for call in (tally_shared(method=method, s=s), tally_own(method=Moments(), s=s)):
        said = refusal(site, call, kind="look")
        assert said is not None
        assert "answers" in said
    assert len(ledger(site)) == 0


POOL = Examples(torch.zeros(2, 4), torch.zeros(2, dtype=torch.int64))
WRONG = {
    "a word for a number": (train(x=X, sgd=SGD()), {"sgd": "fast"}, "sgd"),
    "another dataclass": (train(x=X, sgd=SGD()), {"sgd": Pool(EMPTY)}, "sgd"),
    "a tensor for a point": (train(x=X, sgd=SGD()), {"x": torch.zeros(3)}, "x"),
    "no tensors at all": (train(x=X, sgd=SGD()), {"x": Params()}, "x"),
    "one more argument": (train(x=X, sgd=SGD()), {"keep": True}, "keep"),
    "labels that are no classes": (
        join_pool(Pool(POOL)),
        {"pool": Pool(replace(POOL, y=torch.tensor([0, 7])))},
        "pool",
    ),
    "inputs of another shape": (
        join_pool(Pool(POOL)),
        {"pool": Pool(replace(POOL, x=torch.zeros(2, 5)))},
        "pool",
    ),
    "a number that is none": (
        synthesise(how=DAFL(), delta=1e-5),
        {"delta": math.nan},
        "delta",
    ),
    "a number without end": (
        synthesise(how=DAFL(), delta=1e-5),
        {"delta": math.inf},
        "delta",
    ),
    "a truth for a number": (synthesise(how=DAFL(), delta=1e-5), {"delta": True}, "delta"),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_argument_that_does_not_fit_is_refused_by_its_name(site, touched, name):
    good, change, field = WRONG[name]
    said = refusal(site, Call(good.task, {**good.args, **change}))
    assert said is not None
    assert field in said
    assert "\n" not in said
    assert touched == []


@pytest.mark.parametrize(
    ("field", "value"),
    [("delta", 0.0), ("delta", 1.5), ("budget", -1.0), ("compress", "zip"), ("clients", 0)],
)
def test_a_charter_is_checked_number_by_number(site, field, value):
    assert field in refusal(
        site, train(x=X, sgd=PRIVATE), charter=replace(CHARTER, **{field: value})
    )
