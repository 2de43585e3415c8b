"""The canary test on every release function of ours, certified by its own ledger.

Then with errors planted in it.

A correct function must never be `broken`, and not `wasteful` where the canary is the worst there
can be. An error that is planted into the real function must be `broken`.

How many runs it takes: of a Gaussian release with mu = 2 (epsilon 10), 600 runs refute one with
two thirds of its noise in 98 of 100 cases; with mu = 4 (epsilon 24), 1500 runs refute one with
seven tenths in 97, and no number below 700 refutes anything.
"""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from sandbox import Server

from tacit.core import Client, Everyone, Ledger, NonPrivate, Params, Replies, params_of
from tacit.data.examples import Examples
from tacit.data.federated import LocalData
from tacit.local import sgd as sgd_module
from tacit.local.sgd import SGD
from tacit.methods import LDPFL, ldp_fl, ldp_fl_claims
from tacit.methods.ldp_fl_claims import sigma
from tacit.models import build
from tacit.privacy import epsilon, gdp_epsilon, mechanisms
from tacit.privacy.audit import differences, judge, projection, repeated, spread
from tacit.privacy.mechanisms import (
    PrivateSteps,
    discrete_laplace,
    exponential,
    gaussian,
    gaussian_mean,
    gaussian_update,
    noisy_counts,
    noisy_votes,
)
from tacit.privacy.noise import FromSeed, noised

DELTA = 1e-5
DIM = 4


pytestmark = pytest.mark.usefixtures("one_thread")


E1 = np.eye(DIM)[0]


def me_(run, present, round=0, spent=None, data=None, model=None):
    """Return a client with noise of its own for each run and arm."""
    rng = np.random.default_rng([run, present, round])
    net = model or torch.nn.Identity()
    return Client(
        "0", round, data, data, net, {}, rng, "seeded", Ledger() if spent is None else spent
    )


def point(vector):
    return Params(w=torch.tensor(np.asarray(vector, dtype=np.float64)))


def array(x):
    return torch.cat([v.flatten() for v in x.values()]).double().numpy()


def certificate(ledger, unit="example", observer="server", relation="zero-out"):
    got = epsilon(ledger, unit=unit, observer=observer, delta=DELTA, relation=relation)
    assert math.isfinite(got)
    return got


@pytest.fixture
def holds(request):
    """Judge a correct release: keep the verdict with the test's record; hold it to both sides."""

    def check(trial, certified, runs=1500, gaussian=True, worst=True):
        verdict = judge(trial, certified=certified, delta=DELTA, runs=runs, gaussian=gaussian)
        # record_property is not for xunit2
        request.node.user_properties.append(("verdict", verdict.line()))
        assert not verdict.broken, verdict.line()
        if worst:
            assert not verdict.wasteful, verdict.line()
        return verdict

    return check


def broken(trial, certified, runs=1000, gaussian=True):
    verdict = judge(trial, certified=certified, delta=DELTA, runs=runs, gaussian=gaussian)
    assert verdict.broken, verdict.line()


# -----------------------------------------------------------------------------------------------
# one release at a time


def test_gaussian(holds):
    ledger = Ledger()

    def trial(present, run, spent=None):
        me = me_(run, present, spent=spent)
        return float(gaussian(me, "x", point(2.0 * present * E1), sensitivity=2.0, z=0.5)["w"][0])

    trial(True, 0, ledger)
    got = holds(trial, certificate(ledger))
    assert got.certified == pytest.approx(10.0, abs=0.01)
    assert got.bound > 0.6 * got.certified


def update(present, run, round=0, spent=None, without=-1000.0, z=0.5):
    """Return a clipped update; by default the neighbours are as far apart as two can be."""
    me = me_(run, present, round, spent)
    return gaussian_update(me, "u", point((1000.0 if present else without) * E1), clip=1.0, z=z)


@cache  # the same releases are held against every certificate
def update_score(present, run, without):
    return float(array(update(present, run, without=without))[0])


@pytest.mark.parametrize("unit", ["client", "example"])
@pytest.mark.parametrize("relation", ["zero-out", "replace"])
def test_a_clients_update(holds, unit, relation):
    """Other data, or one example, can turn a clipped update round: it moves by 2C.

    A client that is away sends nothing, so there is no nearer neighbour to be measured against.
    """
    ledger = Ledger()
    update(True, 0, spent=ledger)
    turned = holds(
        lambda present, run: update_score(present, run, -1000.0),
        certificate(ledger, unit, relation=relation),
    )
    assert turned.bound > 0.6 * turned.certified
    nearer = holds(lambda present, run: update_score(present, run, 0.0), turned.certified)
    assert nearer.bound < turned.bound


def mean_of(present, run, round=0, canary=1000.0):
    """Return the noisy mean of six clients, one of them the canary, and the server and ledger."""
    server = Server([str(i) for i in range(6)], 2 * run + present)
    points = {str(i): point(np.zeros(DIM)) for i in range(5)} | (
        {"5": point(canary * E1)} if present else {}
    )
    replies = Replies(f"t.train@{round}", server.sample(Everyone(), round), points, {})
    like = point(np.zeros(DIM))
    got = gaussian_mean(server, replies, lambda p: p, like=like, clip=1.0, z=0.5, out_of=6.0)
    return array(got) * 6, server.ledger


@pytest.mark.slow
def test_a_mean_over_everyone(holds):
    certified = certificate(mean_of(True, 0)[1], "client", "clients")
    holds(lambda present, run: mean_of(present, run)[0][0], certified)


def steps_trial(q, z, steps, spent=None):
    """Return a trial over the real samples and noise of DP-SGD.

    The canary's clipped gradient is e1 in each step.
    """

    def trial(present, run):
        release = PrivateSteps(me_(run, present, spent=spent), q, 1.0, z, steps)
        outputs = []
        # row 0 is the canary, row 1 somebody whose gradient is zero
        for rows in release.samples(2):
            total = torch.tensor(E1 * float(present and 0 in rows))
            outputs.append(release.noised([total])[0].numpy()[0])
        y = np.array(outputs)
        likelihood = np.log1p(q * np.expm1((2 * y - 1) / (2 * z**2))).sum()
        return [float(y.sum()), float(likelihood)]

    return trial


@pytest.mark.slow
def test_private_steps_on_everyone(holds):
    ledger = Ledger()
    steps_trial(1.0, 1.0, 4, ledger)(True, 0)
    got = holds(steps_trial(1.0, 1.0, 4), certificate(ledger))
    assert got.certified == pytest.approx(10.0, abs=0.01)


def test_private_steps_on_poisson_samples(holds):
    """Nine of ten runs have the canary in at least one sample; the certificate allows for that."""
    ledger = Ledger()
    steps_trial(0.7, 0.8, 2, ledger)(True, 0)
    got = holds(steps_trial(0.7, 0.8, 2), certificate(ledger), runs=3000, gaussian=False)
    assert got.bound > got.certified / 5


def test_discrete_laplace(holds):
    """A histogram: the canary is one more in one of its bins."""
    ledger = Ledger()

    def trial(present, run, spent=None):
        me = me_(run, present, spent=spent)
        return [
            float(v)
            for v in discrete_laplace(me, "h", np.array([7 + present, 3]), epsilon=1.0).value
        ]

    trial(True, 0, ledger)
    got = holds(trial, certificate(ledger), gaussian=False)
    assert got.bound > got.certified / 2


def test_votes_of_sub_teachers(holds):
    """The canary moves one vote from the first class to the second, on each of four queries."""
    ledger = Ledger()

    def trial(present, run, spent=None):
        counts = np.array([[5.0 - present, 5.0 + present, 0.0]] * 4)
        noisy = noisy_counts(
            me_(run, present, spent=spent), "votes", counts, scale=2.0, kind="gaussian"
        ).value
        return float((noisy[:, 1] - noisy[:, 0]).sum())

    trial(True, 0, ledger)
    got = holds(trial, certificate(ledger))
    assert got.certified == pytest.approx(gdp_epsilon(math.sqrt(2), DELTA))


@pytest.mark.parametrize(
    ("kind", "scale"),
    [("gaussian", 2.0), pytest.param("laplace", 2.0, marks=pytest.mark.slow)],
)
def test_noisy_max(holds, kind, scale):
    """Only the winners are seen, which hide more than the noisy counts that are accounted for."""

    def trial(present, run):
        server = Server(["0", "1"], 2 * run + present)
        votes = {
            "0": np.array([[0.0, 1.0]] * 4),
            "1": np.array([[1.0, 0.0], [0.0, 1.0]][present : present + 1] * 4),
        }
        replies = Replies("t.vote@0", server.sample(Everyone(), 0), votes, {})
        won = noisy_votes(server, replies, votes["0"] + votes["1"], scale=scale, kind=kind)
        return float(won.sum()), server.ledger

    certified = certificate(trial(True, 0)[1], "client", "clients")
    holds(lambda present, run: trial(present, run)[0], certified, gaussian=False, worst=False)


def test_exponential(holds):
    """The worst pair: one candidate loses what all others gain."""
    utility = {True: np.array([1.0, 0.0, 0.0, 0.0]), False: np.array([0.0, 1.0, 1.0, 1.0])}
    ledger = Ledger()

    def trial(present, run, spent=None):
        me = me_(run, present, spent=spent)
        got = exponential(
            me, "x", utility[present], sensitivity=1.0, epsilon=2.0, relation="replace"
        )
        return float(got.value == 0)

    trial(True, 0, ledger)
    assert epsilon(ledger, unit="example", observer="server", delta=DELTA) == math.inf
    got = holds(trial, certificate(ledger, relation="replace"), gaussian=False)
    assert got.bound > got.certified / 2


# --------------------------------------------------------------------------------------------------
# in training


NET = build("logistic", (2,), 2, 1)
X0 = params_of(NET).zeros()
OTHERS = torch.tensor([[0.3, 0.1], [-0.2, 0.4], [0.1, -0.5], [0.0, 0.2], [0.6, 0.6]])
CANARY = torch.tensor([[1000.0, -500.0]])


def data(present):
    x = torch.cat([OTHERS, CANARY]) if present else OTHERS
    y = torch.tensor([0, 1, 0, 1, 1, 0][: len(x)])
    return LocalData(Examples(x, y), np.arange(len(x)), (0.5,), (0.5,))


DATA = {present: data(present) for present in (True, False)}


def training_trial(fit, spent=None):
    """Score what ``fit(me)`` releases along what the canary adds to it without noise."""
    bare = {
        present: array(fit(me_(0, present, data=DATA[present], model=NET), 0.0))
        for present in (True, False)
    }
    direction = bare[True] - bare[False]
    assert np.linalg.norm(direction) > 0

    def trial(present, run):
        me = me_(run, present, data=DATA[present], model=NET, spent=spent)
        return float((array(fit(me, 1.0)) - bare[False]) @ direction)

    return trial


def dp_sgd(batch, z=0.5):
    def fit(me, noise):
        return SGD(lr=0.1, epochs=1, batch=batch, clip=1.0, z=z * noise).fit(me, X0)[0]

    return fit


@pytest.mark.slow
def test_one_step_of_dp_sgd_on_everyone(holds):
    ledger = Ledger()
    training_trial(dp_sgd(8), ledger)(True, 0)
    got = holds(training_trial(dp_sgd(8)), certificate(ledger), runs=600)
    assert got.certified == pytest.approx(10.0, abs=0.01)


@pytest.mark.slow
def test_dp_sgd_on_poisson_samples(holds):
    """The size is public, so rate and number of steps are the same in both arms.

    An idle example takes the place.
    """
    idle = LocalData(
        Examples(torch.cat([OTHERS, CANARY]), DATA[True].source.y), np.arange(6), (0.5,), (0.5,)
    )

    class Without(LocalData):
        """Six rows, the last of which is never given out."""

        def batch(self, rows):
            return super().batch(np.asarray(rows)[np.asarray(rows) < 5])

    arms = {True: idle, False: Without(**vars(idle))}
    sgd = SGD(lr=0.1, batch=4, clip=1.0, z=0.5)
    ledger = Ledger()
    sgd.fit(me_(0, True, data=arms[True], model=NET, spent=ledger), X0)
    (line,) = ledger
    assert (line.sampling.law, line.sampling.q, line.steps) == ("poisson", 4 / 6, 2)
    everyone = replace(sgd, batch=8, z=0.0)
    bare = {
        p: array(everyone.fit(me_(0, p, data=DATA[p], model=NET), X0)[0]) for p in (True, False)
    }
    direction = bare[True] - bare[False]

    def trial(present, run):
        return float(
            array(sgd.fit(me_(run, present, data=arms[present], model=NET), X0)[0]) @ direction
        )

    holds(trial, certificate(ledger), runs=400, gaussian=False)


@pytest.mark.slow
def test_the_gradient_mode_of_ldp_fl(holds):
    """The reply is divided by the public size: multiplied by it again, the sum is left."""

    def fit(me, noise):
        method = LDPFL(mode="gradient", epsilon=8.0 if noise else 1e6, sgd=SGD(lr=1.0))
        got = ldp_fl.train.fn(me, X0, method, K=1, q=1.0, delta=DELTA).sent.dx
        return got * float(me.size)

    ledger = Ledger()
    fit(me_(0, True, data=DATA[True], model=NET, spent=ledger), 1.0)
    got = holds(training_trial(fit), certificate(ledger), runs=600)
    assert got.certified == pytest.approx(8.0, rel=1e-6)


# --------------------------------------------------------------------------------------------------
# planted errors


def test_noise_divided_by_the_batch_is_found(monkeypatch):
    certified = Ledger()
    training_trial(dp_sgd(8), certified)(True, 0)

    def too_little(self, sums):
        return noised(self.draw, sums, self.z * self.clip / 8)

    monkeypatch.setattr(PrivateSteps, "noised", too_little)
    broken(training_trial(dp_sgd(8)), certificate(certified), runs=300)


@pytest.mark.slow
def test_noise_missing_from_one_tensor_is_found(monkeypatch):
    certified = Ledger()
    training_trial(dp_sgd(8), certified)(True, 0)

    def all_but_one(self, sums):
        return [sums[0], *noised(self.draw, sums[1:], self.z * self.clip)]

    monkeypatch.setattr(PrivateSteps, "noised", all_but_one)
    trial = training_trial(dp_sgd(8))
    first = array(dp_sgd(8)(me_(0, True, data=DATA[True], model=NET), 0.0))[0]

    def scores(present, run):
        y = array(dp_sgd(8)(me_(run, present, data=DATA[present], model=NET), 1.0))
        return [float(y[0] - first), trial(present, run)]

    broken(scores, certificate(certified), runs=300)


@pytest.mark.slow
def test_gradients_that_are_not_clipped_are_found(monkeypatch):
    certified = Ledger()
    training_trial(dp_sgd(8), certified)(True, 0)
    real = sgd_module.clipped_gradients
    loose = lambda model, goal, x, y, clip: real(model, goal, x, y, 1e9)  # noqa: E731
    monkeypatch.setattr(sgd_module, "clipped_gradients", loose)
    broken(training_trial(dp_sgd(8)), certificate(certified), runs=300)


def test_clipping_at_the_updates_own_norm_is_found(monkeypatch):
    """The canary's update then comes with noise of its own size."""
    ledger = Ledger()
    update(True, 0, spent=ledger)
    certified = certificate(ledger, "client")
    real = mechanisms.gaussian

    def at_own_norm(me, what, value, *, sensitivity, **how):
        return real(me, what, value, sensitivity=max(value.norm(), 1e-6), **how)

    monkeypatch.setattr(mechanisms, "gaussian", at_own_norm)
    monkeypatch.setattr(Params, "clipped", lambda self, bound: 1.0 * self)
    scores = projection([E1]), spread([E1])
    broken(repeated(lambda *a: array(update(*a, without=0.0)), 1, *scores), certified)


def test_weights_by_examples_are_found(monkeypatch):
    certified = certificate(mean_of(True, 0)[1], "client", "clients")
    real = mechanisms.weighted_sum
    # zero first, then the clients; the canary has most examples
    sizes = [1.0, 10, 10, 10, 10, 10, 100]

    def by_examples(parts):
        parts = list(parts)
        whole = sum(sizes[1 : len(parts)]) / (len(parts) - 1)
        weights = [1.0, *(s / whole for s in sizes[1:])]
        return real([(p, weights[i]) for i, (p, _) in enumerate(parts)])

    monkeypatch.setattr(mechanisms, "weighted_sum", by_examples)
    broken(lambda present, run: mean_of(present, run)[0][0], certified, runs=300)


ROUNDS = 6


def rounds_trial(ledger_of):
    """Return six rounds of updates, with the ledger that ``ledger_of`` chooses for each round.

    With their noise they come to mu = 2 together.
    """

    def mechanism(present, run, round):
        return array(update(present, run, round, ledger_of(round), z=math.sqrt(ROUNDS)))

    return repeated(mechanism, ROUNDS, projection([E1] * ROUNDS))


@pytest.mark.slow
def test_six_rounds_in_one_ledger_hold(holds):
    whole = Ledger()
    rounds_trial(lambda round: whole)(True, 0)
    holds(rounds_trial(lambda round: None), certificate(whole, "client"), runs=600)


def test_a_fresh_ledger_every_round_is_found():
    ledgers = [Ledger() for _ in range(ROUNDS)]
    rounds_trial(lambda round: ledgers[round])(True, 0)
    broken(rounds_trial(lambda round: None), certificate(ledgers[-1], "client"), runs=300)


DIRECTIONS = list(np.eye(DIM)[:2])  # what the canary adds in the first round, and in the second


def two_rounds(present, run, round, spent=None):
    me, turned = me_(run, present, round, spent), 1000.0 if present else -1000.0
    return array(gaussian_update(me, "u", point(turned * DIRECTIONS[round]), clip=1.0, z=1.0))


def certificate_of_two_rounds():
    ledger = Ledger()
    for round in range(2):
        two_rounds(True, 0, round, ledger)
    return certificate(ledger, "client")


@pytest.mark.slow
def test_fresh_noise_in_two_rounds_holds(holds):
    scores = projection(DIRECTIONS), *differences(DIRECTIONS)
    holds(repeated(two_rounds, 2, *scores), certificate_of_two_rounds(), runs=1000)


def test_the_same_noise_in_two_rounds_is_found(monkeypatch):
    """The difference of the two rounds has no noise left at all."""
    certified = certificate_of_two_rounds()
    run_of = {}
    monkeypatch.setattr(
        mechanisms, "source", lambda noise, rng: FromSeed(np.random.default_rng(run_of["now"]))
    )

    def again(present, run, round):
        run_of["now"] = [run, present]
        return two_rounds(present, run, round)

    scores = projection(DIRECTIONS), *differences(DIRECTIONS)
    broken(repeated(again, 2, *scores), certified, runs=400)


# ----------------------------------------------------------------------------------- the paper's
# formula is not enough


M, EPOCHS, BATCH = 200, 10, 20


def neighbours(size):
    """Return two data sets of 200 that differ in one record: its label.

    All others have no features.
    """
    x = torch.zeros(M, 2)
    x[0, 0] = size
    y = torch.arange(M) % 2
    other = y.clone()
    other[0] = 1 - other[0]
    return [LocalData(Examples(x, labels), np.arange(M), (0.5,), (0.5,)) for labels in (y, other)]


def published(data, lr, monkeypatch, claimed=1.0):
    """Return what LDP-FL's own code trains, and the noise that its formula asks for."""
    sds = []
    monkeypatch.setattr(ldp_fl_claims, "sigma", lambda *a: sds.append(sigma(*a)) or 0.0)
    local = SGD(lr=lr, epochs=EPOCHS, batch=BATCH)
    method = LDPFL(mode="paper", rounds=1, epsilon=claimed, sgd=local)
    me = me_(3, False, data=data, model=NET)
    dx = ldp_fl.train.fn(me, X0, method, K=1, q=1.0, delta=DELTA).sent.dx
    assert [type(line.event) for line in me.spent] == [NonPrivate]
    assert epsilon(me.spent, unit="example", observer="server", delta=DELTA) == math.inf
    return dx, sds[0]


@pytest.mark.parametrize(
    ("lr", "size", "spent"), [(0.3, 1.7, 25.0), (1.0, 1.0, 59.0), (0.1, 50.0, 10.5)]
)
def test_ldp_fl_claims_one_and_spends_ten(monkeypatch, request, lr, size, spent):
    """Logistic regression.

    2C/m is 0.01, and one record moves the weights ten times as far and more.
    """
    (a, sd), (b, _) = (published(data, lr, monkeypatch) for data in neighbours(size))
    distance = (a - b).norm()
    assert sd == pytest.approx(2 / M * math.sqrt(2 * math.log(1 / DELTA)))
    # what the formula would give if 2C/m were the sensitivity
    assert gdp_epsilon(2 / M / sd, DELTA) < 1
    truth = gdp_epsilon(distance / sd, DELTA)
    request.node.user_properties.append(("distance and epsilon", f"{distance:.4g}, {truth:.4g}"))
    assert distance > 9 * 2 / M
    assert truth >= spent
