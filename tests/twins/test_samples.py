"""Who is in a sample comes up as the ledger line says: law, rate, and anew in every step.

The tables are those of real runs: the rows that DP-SGD takes out of the data, the clients that a
method asks. A false alarm has a chance of 1e-6, but seeds are fixed.
"""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from sandbox import SEED, Sandbox, Server, small
from twins.harness import values_of
from twins.sampling import p_value
from twins.worlds import pictures

from tacit.core import Everyone, Fixed, Params, Poisson, Replies, Sampling, params_of
from tacit.data.examples import Dataset, Examples
from tacit.data.federated import Federation, LocalData
from tacit.data.splits import Split
from tacit.engines.client_host import World
from tacit.engines.serial import Serial
from tacit.experiment.drive import drive
from tacit.local.prototypes import Episodes, Private
from tacit.local.sgd import SGD
from tacit.methods.cl_fl import CLFL
from tacit.methods.cuag import CUAG
from tacit.methods.dp_fedavg import DPFedAvg
from tacit.methods.fedavg import FedAvg
from tacit.models import build
from tacit.privacy.mechanisms import PrivateSteps
from tacit.synthesis import gan as gan_module
from tacit.synthesis.gan import GAN

pytestmark = pytest.mark.usefixtures("one_thread")

ODD = 1e-6
N = 5


# -----------------------------------------------------------------------------------------------
# examples


@dataclass(frozen=True)
class Noting(LocalData):
    """Data that note which rows are taken."""

    taken: list = field(default_factory=list)

    def batch(self, rows):
        if isinstance(rows, np.ndarray):
            self.taken.append(rows)
        return super().batch(rows)

    def table(self):
        """Who was in each sample."""
        return np.array([np.isin(np.arange(len(self)), rows) for rows in self.taken]).astype(int)


@dataclass(frozen=True)
class Noted(Federation):
    """A federation whose first client's data note which rows are taken."""

    taken: list = field(default_factory=list)

    def train(self, client, device="cpu"):
        return Noting(**values_of(super().train(client, device)), taken=self.taken)


def few(n=N):
    """A federation of one client with n records."""
    rng = np.random.default_rng(0)
    x, y = torch.tensor(rng.normal(size=(n, 4)), dtype=torch.float32), torch.arange(n) % 3
    rows = (np.arange(n),)
    return Federation(
        Dataset("few", Examples(x, y), Examples(x, y), ("a", "b", "c")), Split(rows, rows)
    )


def noted(federation, folder, model):
    """Return the world of a federation whose rows are noted."""
    return World(Noted(**values_of(federation)), model, SEED, folder)


def steps_line(lines):
    """Return the line of the steps on samples."""
    return next(line for line in lines if line.what.endswith("dp-sgd"))


@pytest.mark.parametrize("epochs", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_dp_sgd_takes_the_samples_that_its_line_says(epochs, tmp_path):
    """Over many rounds, each with steps of its own."""
    method = FedAvg(rounds=660 // (2 * epochs), sgd=SGD(epochs=epochs, batch=2, clip=1.0, z=1.0))
    model = build("logistic", (4,), 3, SEED)
    world = noted(few(), tmp_path, model)
    engine = Serial(world)
    drive(method, engine, method.init(params_of(model)))
    line, table = steps_line(engine.ledger), world.federation.train("0").table()
    assert len(table) == line.total() == 660
    assert line.sampling == Sampling("poisson", 0.4)
    assert p_value(table, line.sampling, lags=2 * epochs) > ODD


def test_private_episodes_take_the_samples_that_their_line_says(tmp_path):
    model = build("mlp", (4,), 3, SEED)
    me = noted(few(), tmp_path, model).client("cuag.train", "0", 0, {})
    private = Private(clip=1.0, z=1.0, z_prototypes=1.0, radius=1.0)
    Episodes(steps=500, batch=2).fit(me, params_of(model), grad=lambda g, y: g, private=private)
    line = steps_line(me.spent)
    assert (line.total(), line.sampling) == (500, Sampling("poisson", 0.4))
    assert p_value(me.data.table(), line.sampling) > ODD


def no_gradients(model, loss, x, *rest, **how):
    """Look at the examples and learn nothing: which they are is all that is asked for here."""
    return {p: torch.zeros_like(p) for p in model.parameters()}, torch.zeros(len(x))


@pytest.mark.parametrize(
    ("mode", "law"),
    [("certified", "poisson"), pytest.param("paper", "fixed", marks=pytest.mark.slow)],
)
def test_a_gan_takes_the_samples_that_its_line_says(mode, law, tmp_path, monkeypatch):
    monkeypatch.setattr(gan_module, "clipped_sum", no_gradients)
    monkeypatch.setattr(gan_module.Game, "improve_G", lambda self, images, y: None)
    me = noted(pictures(1, N), tmp_path, torch.nn.Identity()).client("dafl.synthesise", "0", 0, {})
    gan = GAN(epochs=120, batch=2, z="auto", width=2, latent=2, mode=mode)
    gan = gan if mode == "certified" else replace(gan, z=1.0)
    counts = np.bincount(me.data.examples.y.numpy(), minlength=3)
    gan.fit(me, classes=3, counts=counts, epsilon=np.inf, delta=1e-5)
    line = steps_line(me.spent)
    assert (line.total(), line.sampling) == (300, Sampling(law, 0.4))
    assert p_value(me.data.table(), line.sampling) > ODD


@pytest.mark.parametrize("law", ["poisson", "fixed"])
def test_samples_from_the_operating_system_follow_the_law(law, tmp_path):
    me = noted(few(), tmp_path, torch.nn.Identity()).client("fedavg.train", "0", 0, {})
    release = PrivateSteps(replace(me, noise="os"), 0.4, 1.0, 1.0, 3000, law)
    table = np.array([np.isin(np.arange(N), rows) for rows in release.samples(N)]).astype(int)
    assert p_value(table, steps_line(me.spent).sampling) > ODD


# -----------------------------------------------------------------------------------------------
# clients


class Idle(Server):
    """Clients that answer at once and have learnt nothing; it notes who is asked, and when."""

    def __init__(self, n=N):
        super().__init__([str(i) for i in range(n)], SEED)
        self.asked = []

    def ask(self, call, of, *, need=0.5):
        self.asked.append(of.ids)
        update = type("Update", (), {"dx": call.args["x"].zeros()})
        return Replies(f"{call.task}@{of.round}", of, {i: update for i in of.ids}, {})

    def table(self):
        return np.array([[int(i in ids) for i in self.everyone] for ids in self.asked])


def at_work(method):
    """Run a method's server on clients that do nothing."""
    engine = Idle()
    for _ in method.run(engine, method.init(Params(w=torch.zeros(2)))):
        pass
    return engine


@pytest.mark.parametrize(
    ("method", "sampling"),
    [
        pytest.param(DPFedAvg(rounds=800, q=0.4), Sampling("poisson", 0.4), marks=pytest.mark.slow),
        (DPFedAvg(rounds=800, q=0.4, adaptive=True), Sampling("poisson", 0.4)),
        pytest.param(CLFL(rounds=800, per_round=2), Sampling("fixed", 0.4), marks=pytest.mark.slow),
        (CLFL(rounds=10), Sampling()),
    ],
    ids=["dp_fedavg", "dp_fedavg-adaptive", "cl_fl", "cl_fl-everyone"],
)
def test_clients_are_asked_as_the_line_says(method, sampling):
    engine = at_work(method)
    (line,) = engine.ledger
    assert (line.total(), line.sampling) == (method.rounds, sampling)
    assert p_value(engine.table(), line.sampling) > ODD


def test_where_samples_are_no_secret_each_client_pays_for_the_rounds_it_is_asked_in():
    engine = at_work(CUAG(rounds=30, per_round=2, unit="client", observer="clients", matrix="none"))
    assert {line.sampling for line in engine.ledger} == {Sampling()}
    paid = {line.owner: rounds_of(line) for line in engine.ledger}
    assert paid == {i: {t for t, ids in enumerate(engine.asked) if i in ids} for i in paid}
    assert len(paid) == N


def rounds_of(line):
    return {t for first, last in line.rounds for t in range(first, last + 1)}


def test_turns_are_paid_for_one_by_one(tmp_path):
    """KD-DPFL deals out turns: nobody's line has more or fewer rounds than it was asked in."""
    sandbox, asked = Sandbox(tmp_path), {}
    method = replace(small("kd_dpfl", rounds=5), per_round=3, sgd=SGD(batch=100))
    engine = sandbox.serial(method)
    exchange = engine.exchange

    def note(kind, call, heads):
        for head in heads:
            if head.ask.startswith("kd_dpfl.train"):
                asked.setdefault(head.client, set()).add(head.round)
        return exchange(kind, call, heads)

    engine.exchange = note
    drive(method, engine, method.init(sandbox.x0))
    steps = [line for line in engine.ledger if line.what == "kd_dpfl.train dp-sgd"]
    assert {line.owner: rounds_of(line) for line in steps} == asked
    assert sum(map(len, asked.values())) == 2 * 5
    assert {line.sampling.law for line in steps} == {"everyone"}


@pytest.mark.parametrize(
    ("law", "sampling"),
    [
        (Poisson(0.3), Sampling("poisson", 0.3)),
        (Poisson(1.0), Sampling()),
        (Fixed(2), Sampling("fixed", 0.4)),
        (Fixed(5), Sampling()),
        (Everyone(), Sampling()),
    ],
    ids=repr,
)
def test_a_law_draws_what_it_is_accounted_as(law, sampling):
    engine = Idle()
    samples = [engine.sample(law, t) for t in range(2000)]
    table = np.array([[int(i in s.ids) for i in engine.everyone] for s in samples])
    assert p_value(table, sampling) > ODD


# -----------------------------------------------------------------------------------------------
# the tests themselves can fail


def tables(steps=600, n=N, q=0.4):
    """Return samples that are wrong, by what is wrong with them."""
    rng = np.random.default_rng(1)
    lots = rng.random((steps, n))
    order = [rng.permutation(n) for _ in range(steps)]
    return {
        "half as many again": lots < 1.5 * q,
        "fixed size": np.array([np.isin(np.arange(n), o[: int(q * n)]) for o in order]),
        "the same in every step": np.repeat(lots[:1] < q, steps, 0),
        "the same twice": np.repeat(lots[: steps // 2] < q, 2, 0),
        "together": np.repeat(lots[:, :1] < q, n, 1),
        "by one number": lots < q * np.array([0.5, 1, 1, 1, 1.5]),
    }


@pytest.mark.parametrize("wrong", tables())
def test_wrong_samples_are_found(wrong):
    assert p_value(tables()[wrong].astype(int), Sampling("poisson", 0.4)) < ODD


def test_batches_of_a_shuffled_epoch_are_neither_law():
    rng = np.random.default_rng(1)
    epochs = [rng.permutation(6).reshape(3, 2) for _ in range(300)]
    table = np.array([np.isin(np.arange(6), rows) for epoch in epochs for rows in epoch]).astype(
        int
    )
    assert p_value(table, Sampling("poisson", 1 / 3)) < ODD
    assert p_value(table, Sampling("fixed", 1 / 3)) < ODD


def test_right_samples_are_not_accused():
    rng = np.random.default_rng(1)
    p = [
        p_value((rng.random((300, N)) < 0.4).astype(int), Sampling("poisson", 0.4))
        for _ in range(50)
    ]
    assert min(p) > 1e-4
