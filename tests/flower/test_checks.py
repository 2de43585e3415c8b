"""What a site refuses, and what the coordinator refuses, without any process."""

import json
import logging
import math
import socket
import stat
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace

import httpx
import numpy as np
import pytest
import torch
from hospitals import free_port
from sandbox import SEED, federation

from tacit import privacy
from tacit.apps.coordinator import Terms, draw_sample_seed, read_sample_seed
from tacit.apps.gateway import Gate
from tacit.apps.policy import ANYTHING
from tacit.apps.site import Refused, Site
from tacit.cli.join import _try_model
from tacit.codec import pack, unpack
from tacit.core import (
    BadInput,
    BudgetReached,
    Call,
    Fixed,
    NonPrivate,
    Params,
    Poisson,
    Pure,
    Release,
    params_of,
)
from tacit.core.own_code import load
from tacit.data.splits import Split
from tacit.engines.flower import Charter, Sites, letter, opened, packed
from tacit.engines.messages import Answer, Head, Refusal
from tacit.engines.replies import Form, check_answer
from tacit.engines.replies import misfits as misfits_of
from tacit.engines.server import sample_rng
from tacit.engines.store import BACK, read_ledger
from tacit.experiment import cluster
from tacit.experiment.config import Experiment, Setting
from tacit.experiment.evaluate import score
from tacit.experiment.plan import Plan
from tacit.experiment.rundir import RunDir
from tacit.experiment.scoring import Evaluation, Tally
from tacit.experiment.sites import AtSites, agreed, tally, tally_own
from tacit.local.sgd import SGD
from tacit.methods.dp_fedavg import DPFedAvg
from tacit.methods.fedavg import FedAvg, Update, train
from tacit.methods.gfl import believable, train_for
from tacit.methods.ldp_fl import LDPFL
from tacit.methods.ldp_fl_update import train as ldp_train
from tacit.methods.local import Local
from tacit.methods.pfldyn import PFLDyn
from tacit.methods.scaffold import train as scaffold_train
from tacit.models import build

RUN = "0123456789abcdef"
CHARTER = Charter(RUN, 3, SEED, "mlp", (4,), 3, 1e-5)
X = params_of(build("mlp", (4,), 3, SEED))


@pytest.fixture
def site(tmp_path):
    return Site("hospital-b", federation().dataset, tmp_path, noise="seeded", policy=ANYTHING)


def head(call, round=0, client="1", accepted=None):
    return Head(client, f"{call.task}@{round}", round, accepted, accepted)


def ask(site, call=None, round=0, kind="ask", charter=CHARTER, **more):
    call = call or train(x=X, sgd=SGD())
    return unpack(site.answer(kind, charter, replace(head(call, round), **more), pack(call)))


def test_a_site_answers_as_a_client_of_a_simulation(site):
    answer = ask(site)
    assert isinstance(answer.sent, Update)
    assert answer.sent.n == len(site.dataset.train)
    assert [type(line.event) for line in answer.ledger] == [NonPrivate]
    assert (site.folder / RUN / "1" / "ledger.jsonl").exists()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"call": Call("fedavg.steal", {})}, "not a known task"),
        ({"call": score(x=X)}, "is for the server"),
        ({"call": score(x=X), "kind": "look"}, "is for the server"),
        ({"call": Call("fedavg.train", {"x": X})}, "missing a required argument"),
        ({"call": train(x=Params({k: v[:1] for k, v in X.items()}), sgd=SGD())}, "has shape"),
        ({"call": train(x=Params({k: v.double() for k, v in X.items()}), sgd=SGD())}, "float64"),
        ({"call": train(x=Params(list(X.items())[:1]), sgd=SGD())}, "parameters"),
        ({"call": train(x=X * math.nan, sgd=SGD())}, "not finite"),
        ({"ask": "fedavg.train@7"}, "must be fedavg.train@0"),
        ({"round": -1}, "must be"),
        ({"client": "7"}, "must be one of 3"),
        ({"charter": replace(CHARTER, run="../../etc/passwd")}, "hexadecimal"),
        ({"charter": replace(CHARTER, shape=(5,))}, "not those of this site's data"),
        ({"charter": replace(CHARTER, classes=4)}, "not those of this site's data"),
        ({"charter": replace(CHARTER, model="os:system")}, "not a network of this package"),
        ({"call": Call("fedavg.train", {"x": X, "sgd": "os:system"})}, "names code"),
    ],
)
def test_a_site_refuses(site, change, why):
    with pytest.raises(BadInput, match=why):
        ask(site, **change)


def test_a_run_stays_what_it_began_as(site):
    ask(site)
    for other in (replace(CHARTER, seed=8), replace(CHARTER, delta=0.1)):
        with pytest.raises(Refused, match="not the one this run began with"):
            ask(site, charter=other)
    with pytest.raises(Refused, match="not the one this run began with"):
        ask(site, client="0")


def test_old_rounds_are_refused_even_after_a_restart(site):
    for t in (0, 1, BACK + 2):
        ask(site, round=t)
    ask(site, round=BACK + 1)  # a coordinator that was killed does its last round again
    again = Site(site.name, site.dataset, site.folder, noise="seeded", policy=ANYTHING)
    with pytest.raises(Refused, match="only the last 10 can be repeated"):
        ask(again, round=1)


def test_a_site_that_restarts_keeps_its_state(site):
    zero = X.zeros()
    first = scaffold_train(x=X, c=zero, sgd=SGD())
    ask(site, first)
    again = Site(site.name, site.dataset, site.folder, noise="seeded", policy=ANYTHING)
    kept = ask(again, scaffold_train(x=X, c=zero, sgd=SGD()), round=1, accepted=f"{first.task}@0")
    afresh = ask(
        Site("x", site.dataset, site.folder / "y", noise="seeded", policy=ANYTHING),
        scaffold_train(x=X, c=zero, sgd=SGD()),
        1,
    )
    assert not torch.equal(*(next(iter(a.sent.dy.values())) for a in (kept, afresh)))


def test_no_letter_stops_a_site(site):
    call = train(x=X, sgd=SGD())
    good = {"charter": asdict(CHARTER), "head": asdict(head(call))}
    for kind, about, body in [
        ("ask", {}, pack(call)),
        ("ask", {"charter": [], "head": 3}, pack(call)),
        ("ask", good | {"head": {"client": 1}}, pack(call)),
        ("ask", good | {"charter": asdict(CHARTER) | {"clients": "many"}}, pack(call)),
        ("steal", good, pack(call)),
        ("ask", good, b"garbage"),
        ("ask", good, pack(3)),
        ("ask", good, pack(call)[:-8]),
    ]:
        word, said, _ = opened(site.reply(letter(kind, about, packed(body))), 1 << 20)
        assert word == "refused"
        assert "\n" not in said["why"]
    site.limit = 1000
    assert (
        "at most 1,000"
        in opened(site.reply(letter("ask", good, packed(pack(call)))), 1 << 20)[1]["why"]
    )
    site.limit = 1 << 20
    assert opened(site.reply(letter("ask", good, packed(pack(call)))), 1 << 20)[0] == "answer"


def test_words_of_an_unforeseen_error_stay_at_the_site(site, monkeypatch):
    monkeypatch.setattr(site, "answer", lambda *_: 1 / 0)
    call = train(x=X, sgd=SGD())
    content = letter(
        "ask", {"charter": asdict(CHARTER), "head": asdict(head(call))}, packed(pack(call))
    )
    assert (
        opened(site.reply(content), 1000)[1]["why"]
        == "failed with ZeroDivisionError; see the site's log"
    )


def test_a_budget_counts_all_runs(site):
    private = train(x=X, sgd=SGD(clip=1.0, z=2.0, batch=2, epochs=1))
    site.noise = "os"
    ask(site, private)
    spent = read_ledger(site.folder / RUN / "1" / "ledger.jsonl")
    assert len(spent) == 1
    once = privacy.epsilon(spent, unit="example", observer="server", delta=1e-5)
    site.budget = 1.01 * once
    other = replace(CHARTER, run="f" * 16)
    with pytest.raises(BudgetReached):
        ask(site, private, charter=other)
    assert len(read_ledger(site.folder / other.run / "1" / "ledger.jsonl")) == 0
    site.budget = 2.5 * once
    ask(site, private, charter=other)
    with pytest.raises(BudgetReached):  # without noise, nothing at all
        ask(site, charter=other, round=1)


def test_a_run_has_a_budget_of_its_own(site):
    with pytest.raises(BudgetReached):
        ask(site, charter=replace(CHARTER, budget=3.0))
    ask(site, tally(x=X), kind="look", charter=replace(CHARTER, run="e" * 16))


def test_a_budget_for_whole_clients_is_told_to_sites_and_kept(site):
    """It used to be told for examples only: a budget of 1 ended at 10."""
    method = LDPFL(mode="update", epsilon=10.0, rounds=4)
    setting = Setting(model="mlp", noise="os", budget=1.0)
    charter = venue(0, site.facts(), experiment=Experiment(method, setting)).charter()
    assert (charter.budget, charter.unit, charter.observer) == (1.0, "client", "server")
    update = ldp_train(x=X, method=method, K=4, delta=1e-5)
    with pytest.raises(BudgetReached):
        ask(site, update, charter=replace(CHARTER, budget=1.0, unit="client"))
    ask(site, update, charter=replace(CHARTER, budget=20.0, unit="client", run="e" * 16))


def test_clients_of_a_cluster_have_the_budget_of_the_experiment(tmp_path):
    """They had none at all: a budget of 0.1 ended at 11."""
    plan = Plan.of(Experiment(FedAvg(rounds=1, sgd=SGD(clip=1.0, z=1.0)), Setting(budget=0.1)))
    RunDir.create(tmp_path / "run", plan.experiment)
    world = cluster._world(str(tmp_path / "run"))
    call = train(x=params_of(plan.model), sgd=plan.experiment.method.sgd)
    refusal = unpack(world.serve("ask", head(call), pack(call)))
    assert isinstance(refusal, Refusal)
    assert refusal.error == "BudgetReached"
    assert refusal.ledger == []


@pytest.mark.parametrize("call", [train_for(x=X, sgd=SGD(), E=1.0), believable(x=X), score(x=X)])
def test_tasks_for_the_server_are_never_for_sites(site, call):
    """They trust their data to be public, and so would send what is not."""
    for kind in ("ask", "look"):
        with pytest.raises(Refused, match="is for the server"):
            ask(site, call, kind=kind)


def test_measuring_is_not_training_and_the_other_way_round(site):
    with pytest.raises(Refused, match="is for the measure"):
        ask(site, tally(x=X), kind="ask")
    with pytest.raises(Refused, match="is for the client"):
        ask(site, kind="look")


OWN = """
from dataclasses import dataclass
from tacit import Client, Params, Reply, SGD, task

@dataclass(frozen=True)
class Mine:
    dx: Params

@task
def train(me: Client, x: Params, sgd: SGD) -> Reply[Mine]:
    y, _ = sgd.fit(me, x)
    return Reply(Mine(y - x))
"""


def test_a_site_runs_code_of_its_owners_and_of_nobody_elses(site, tmp_path):
    call = Call("tacit_own_agreed.train", {"x": X, "sgd": SGD(clip=1.0, z=1.0)})
    with pytest.raises(Refused, match="not a known task"):
        ask(site, call)
    (tmp_path / "agreed.py").write_text(OWN)
    load(f"{tmp_path / 'agreed.py'}:train", "--method")
    assert ask(site, call).sent.dx.released


def test_reports_about_test_data_are_in_the_ledger(site):
    exact = ask(site, tally(x=X), kind="look")
    assert sum(exact.sent.right) + sum(exact.sent.wrong) == len(site.dataset.test)
    assert [(line.owner, type(line.event)) for line in exact.ledger] == [("test:1", NonPrivate)]
    site.metrics = 0.5
    noisy = ask(site, tally(x=X), 1, kind="look")
    assert noisy.sent.loss is None
    assert [line.event.epsilon for line in noisy.ledger if line.rounds == ((1, 1),)] == [0.5]
    site.metrics = 0.0
    with pytest.raises(Refused, match="does not report"):
        ask(site, tally(x=X), 2, kind="look")


@pytest.mark.parametrize("method", [PFLDyn(), Local()])
def test_reports_about_a_personal_model_are_not_private_for_its_training_data(site, method):
    site.metrics = 0.5
    report = tally_own(method=method, s=method.init(X))
    answer = ask(site, report, kind="look")
    assert [(line.owner, type(line.event)) for line in answer.ledger] == [
        ("1", NonPrivate),
        ("test:1", Pure),
    ]
    spent = read_ledger(site.folder / RUN / "1" / "ledger.jsonl")
    assert privacy.epsilon(spent, unit="example", observer="server", delta=1e-5) == math.inf
    assert privacy.reason(spent) == "metrics of a personal model depend on its training data"
    site.budget = 100.0  # no budget pays for that
    with pytest.raises(BudgetReached):
        ask(site, report, 1, kind="look")
    site.budget, other = math.inf, replace(CHARTER, run="d" * 16)
    assert [line.owner for line in ask(site, tally(x=X), 1, kind="look", charter=other).ledger] == [
        "test:1"
    ]


def test_one_training_example_moves_the_report_about_a_personal_model(tmp_path):
    """Which is why it needs a line of its own: noise for the test data does not hide it."""
    data = federation().dataset
    few = replace(data, train=data.train.take(torch.arange(3)))
    y = few.train.y.clone()
    y[0] = (y[0] + 1) % 3
    counts = []
    for name, examples in (("a", few.train), ("b", replace(few.train, y=y))):
        site = Site(
            name, replace(few, train=examples), tmp_path / name, noise="seeded", policy=ANYTHING
        )
        counts.append(
            ask(site, tally_own(method=PFLDyn(), s=PFLDyn().init(X)), kind="look").sent.right
        )
    assert np.abs(np.subtract(*counts)).sum() > 1


def test_the_gate_closes_quietly_while_a_site_waits(caplog):
    """Flower answers a site only when there is something to say.

    A gate that closes must not wait for that.
    """
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor() as pool:
        gate = Gate(f"http://127.0.0.1:{silent.getsockname()[1]}", keys=None)
        port = free_port()
        gate.serve("127.0.0.1", port)
        url = f"http://127.0.0.1:{port}/v1/fleet/pull-messages"
        waiting = pool.submit(httpx.post, url, content=b"anything", trust_env=False)
        forwarded, _ = silent.accept()  # the call has come through, and nobody answers it
        with forwarded:
            gate.close()
            # a site takes this for: come again
            assert waiting.result(timeout=10).status_code == 503
    assert [line.getMessage() for line in caplog.records if line.levelno >= logging.WARNING] == []


OPEN = Experiment(DPFedAvg(rounds=4), Setting(model="mlp", noise="os"))


def venue(sample_seed, facts, clients=30, experiment=OPEN):
    names = {f"{i:02d}": str(i) for i in range(clients)}

    def unconnected(charter, config, at_server):
        how = {"at_server": at_server, "nodes": dict, "deadline": 1.0, "limit": 1 << 20}
        return Sites(None, names, charter, config, **how)

    return AtSites.of(
        experiment,
        dict.fromkeys(names, facts),
        clients,
        open=unconnected,
        run=RUN,
        sample_seed=sample_seed,
    )


@pytest.mark.parametrize("law", [Poisson(0.5), Fixed(10)])
def test_who_takes_part_does_not_follow_from_what_sites_are_told(site, tmp_path, law):
    secret = 123456789123456789
    at_sites = venue(secret, site.facts())
    directory = RunDir(tmp_path)
    engine, resumed = (at_sites.engine(directory, at_sites.config(directory)) for _ in range(2))
    chosen = [engine.sample(law, t) for t in range(4)]
    assert chosen == [resumed.sample(law, t) for t in range(4)]
    told = [v for v in asdict(engine.charter).values() if isinstance(v, int)]
    assert secret not in told
    for seed in told:
        assert [list(S.ids) for S in chosen] != [
            law.pick(engine.everyone, sample_rng(seed, t)) for t in range(4)
        ]


def test_the_secret_of_the_samples_is_kept_for_a_resumed_run(tmp_path):
    said = []
    terms = Terms("127.0.0.1", 0, None, 0, 1.0, 1.0, 1, None)
    secret = draw_sample_seed(7, terms, said.append)
    directory = RunDir.create(tmp_path, Experiment(FedAvg()))
    directory.put("samples.secret", str(secret).encode(), private=True)
    file = tmp_path / "samples.secret"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert read_sample_seed(tmp_path) == secret != draw_sample_seed(7, terms, said.append)
    assert said == []
    assert draw_sample_seed(7, replace(terms, samples="seeded"), said.append) == 7
    assert "seed 7, which every site is told" in said[0]
    file.unlink()
    with pytest.raises(BadInput, match=r"samples\.secret: cannot be read"):
        read_sample_seed(tmp_path)


def test_noisy_reports_can_be_added_up():
    noisy = {"0": Tally([5, -2], [1, 0], None), "1": Tally([0, 0], [0, -3], None)}
    got = Evaluation.of(noisy, personal=False).line()
    assert got["accuracy"] == 5 / 6
    assert got["per_class"] == [round(5 / 6, 6), None]
    assert Evaluation.of({}, personal=False).line() == {}


def test_sites_must_agree(site, tmp_path):
    one = site.facts()
    assert agreed({"0": one, "1": replace(one, name="b", examples=3)})[0] == (4,)
    with pytest.raises(BadInput, match=r"classes: hospital-b has .* c has"):
        agreed({"0": one, "1": replace(one, name="c", classes=("a", "b"))})


GOOD = Answer(
    Update(dx=X, n=3),
    False,
    [Release("t", "example", "1", "server", NonPrivate("because"), ((0, 0),))],
)


def spoilt(**change):
    return replace(GOOD, sent=replace(GOOD.sent, **change))


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (3, "not an answer"),
        (replace(GOOD, sent={"dx": X, "n": 3}), "must be a Update"),
        (spoilt(n="three"), "n: is 'three'; must be a int"),
        (spoilt(dx=3.0), "dx: is 3.0; must be a Params"),
        (spoilt(dx=X * math.inf), "not finite"),
        (replace(GOOD, ledger=[replace(GOOD.ledger[0], owner="0")]), "not this site's"),
        (replace(GOOD, ledger=["free"]), "not this site's"),
    ],
)
def test_the_coordinator_refuses(answer, why):
    call = train(x=X, sgd=SGD())
    check_answer(GOOD, head(call), call)
    with pytest.raises(BadInput, match=why):
        check_answer(unpack(pack(answer)), head(call), call)


def misfits(sent, call):
    return misfits_of({i: Form.of(o, call) for i, o in sent.items()})


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        (Params({k: v.reshape(-1) for k, v in X.items()}), "has shape"),
        (Params({k: v.half() for k, v in X.items()}), "float16"),
        (Params(list(X.items())[1:]), "parameters"),
    ],
)
def test_shapes_must_be_those_of_the_others(odd, why):
    call, good, bad = train(x=X, sgd=SGD()), GOOD.sent, spoilt(dx=odd).sent
    (left_out,) = misfits({"0": good, "1": bad, "2": good}, call).items()
    assert left_out[0] == "1"
    assert why in left_out[1]
    assert misfits({"0": good, "1": bad}, call).keys() == {"1"}  # of as many, the call's are right
    # a compression, which one has left out
    assert misfits({"0": bad, "1": bad, "2": good}, call).keys() == {"2"}
    assert misfits({}, call) == {}


def test_a_part_of_a_data_set(tmp_path):
    rows = np.arange(5)
    site = Site(
        "a",
        federation().dataset,
        tmp_path,
        Split((rows,), (rows[:2],)),
        noise="seeded",
        policy=ANYTHING,
    )
    assert (site.facts().examples, site.facts().tests) == (5, 2)
    assert ask(site).sent.n == 5
    assert json.loads((tmp_path / RUN / "charter.json").read_text())["client"] == "1"


class Crowd(torch.nn.Module):
    """A network of a site's own that mixes examples, in training only."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x - x.mean(0) if self.training else x)


@pytest.fixture
def crowd(monkeypatch):
    """The name under which sites and coordinator find that network."""
    room = types.ModuleType("crowded")
    room.Crowd = Crowd
    monkeypatch.setitem(sys.modules, "crowded", room)
    return "crowded:Crowd"


def test_a_coordinator_refuses_a_network_that_cannot_train_privately(site, crowd):
    setting = Setting(model=crowd, noise="os")
    venue(1, site.facts(), experiment=Experiment(FedAvg(), setting))
    with pytest.raises(BadInput, match="depends on the others"):
        venue(1, site.facts(), experiment=Experiment(LDPFL(), setting))


def test_a_site_refuses_to_train_such_a_network_privately(site, crowd):
    site = replace(site, model=crowd)
    charter, x = replace(CHARTER, model=crowd), params_of(build(crowd, (4,), 3, SEED))
    private = train(x=x, sgd=SGD(clip=1.0, z=1.0))
    with pytest.raises(BadInput, match="depends on the others"):
        ask(site, private, charter=charter)
    assert list(read_ledger(site.folder / RUN / "1" / "ledger.jsonl")) == []
    assert isinstance(ask(site, train(x=x, sgd=SGD()), charter=charter).sent, Update)


def test_a_site_says_so_before_it_joins(site, crowd, caplog):
    _try_model(None, site.dataset)
    assert caplog.records == []
    _try_model(crowd, site.dataset)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "will be refused: model: in train mode" in line
    with pytest.raises(BadInput, match="cannot be loaded"):
        _try_model("crowded:Nobody", site.dataset)
