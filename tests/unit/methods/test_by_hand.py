"""Every method on a case small enough to work out on paper.

One input number, two classes, no bias, so the network has two weights W = (w0, w1) and its scores
are z = (w0 x, w1 x). The cross-entropy of a point (x, y) with y in {0, 1} has, with p = sigmoid(z1
- z0), the derivatives

    dl/dw1 = (p - y) x        dl/dw0 = -(p - y) x

so a start at W = (-v, v) stays antisymmetric: every method is a recursion of the one number v, with
z1 - z0 = 2 v x and

    g(v) = mean over the points of (sigmoid(2 v x) - y) x

which is what `slope` says below. All expected numbers come from plain Python floats and these
formulas.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from tacit.core import BadInput, Fixed, NonPrivate, Nothing, Params
from tacit.data.examples import Dataset, Examples
from tacit.data.federated import Federation
from tacit.data.splits import Split
from tacit.engines.client_host import World
from tacit.engines.serial import Serial
from tacit.experiment.drive import drive
from tacit.local import sgd
from tacit.local.sgd import SGD
from tacit.methods import (
    Centralised,
    FedAvg,
    FedMix,
    FedNova,
    FedProx,
    Local,
    Scaffold,
    fedmix,
    moon,
)
from tacit.methods.ditto import Ditto
from tacit.methods.dp_scaffold import DPScaffold
from tacit.methods.fedadam import FedAdam
from tacit.methods.fedavgm import FedAvgM
from tacit.methods.fedrep import FedRep
from tacit.methods.mr_mtl import MRMTL
from tacit.methods.nbafl import NbAFL
from tacit.methods.udp import UDP
from tacit.methods.udp_discount import Discounting
from tacit.privacy import mechanisms

CLOSE = 1e-6
SMALL = [(2.0, 1)]  # the client with one point
LARGE = [(1.0, 0), (3.0, 1)]  # the client with two
# two equal points, so that the order of mini-batches of one does not matter
TWICE = [(1.5, 0), (1.5, 0)]


# ---- plain Python, nothing of ours
# ----------------------------------------------------------------------------------


def sigmoid(t):
    return 1.0 / (1.0 + math.exp(-t))


def slope(v, points):
    """Return g(v) of the module's docstring."""
    return sum((sigmoid(2.0 * v * x) - y) * x for x, y in points) / len(points)


def descend(v, points, *, lr, steps, correction=lambda y: 0.0, momentum=0.0):
    """Return the end of ``steps`` full-batch steps from v, with u <- momentum u + g."""
    y, u = v, 0.0
    for _ in range(steps):
        u = momentum * u + slope(y, points) + correction(y)
        y = y - lr * u
    return y


def mass(steps, momentum):
    """Return how often ``steps`` gradients of size 1 act in all: the sum of the velocities."""
    u = total = 0.0
    for _ in range(steps):
        u = momentum * u + 1.0
        total += u
    return total


# ---- the same thing as a world
# -------------------------------------------------------------------------------------


def dataset(points):
    x = torch.tensor([[x] if isinstance(x, float) else list(x) for x, _ in points])
    some = Examples(x, torch.tensor([y for _, y in points]))
    return Dataset("hand", some, some, tuple(str(k) for k in range(1 + max(y for _, y in points))))


def federation(*clients):
    """Give each client the points listed for it, as training and as test data."""
    ends = np.cumsum([len(points) for points in clients])
    rows = tuple(
        np.arange(end - len(points), end) for end, points in zip(ends, clients, strict=True)
    )
    return Federation(
        dataset([p for points in clients for p in points]), Split(train=rows, test=rows)
    )


def weights(v):
    return Params(weight=torch.tensor([[-v], [v]]))


def number(params):
    """Return v, having checked that the weights are (-v, v)."""
    ((w0,), (w1,)) = params["weight"].tolist()
    assert w0 == pytest.approx(-w1, abs=CLOSE)
    return w1


class Hand:
    """Runs a method on hand-made clients from W = (-v, v)."""

    def __init__(self, folder, *clients, pooled=False, seed=0):
        held = federation(*clients)
        model = nn.Linear(1, 2, bias=False)
        self.world = World(held.pooled() if pooled else held, model, seed, folder)
        self.engine = Serial(self.world)

    def run(self, method, v=0.0):
        """Return the state after every step."""
        states = []
        drive(method, self.engine, method.init(weights(v)), on_step=states.append)
        return states

    def kept(self, client):
        return self.world.store(client).kept(self.engine.accepted.get(client))


# ---- FedAvg
# --------------------------------------------------------------------------------------------------


def test_fedavg_one_step_is_the_mean_weighted_by_examples(tmp_path):
    """From v = 0 every p is 1/2, so with lr = 1/2:

    client 0: g = (1/2 - 1) 2 = -1, it ends at 1/2
    client 1: g = ((1/2) 1 + (1/2 - 1) 3) / 2 = -1/2, it ends at 1/4
    server: (1 * 1/2 + 2 * 1/4) / 3 = 1/3, where the plain mean would be 3/8.
    """
    (s,) = Hand(tmp_path, SMALL, LARGE).run(FedAvg(rounds=1, sgd=SGD(lr=0.5, batch=10)))
    assert number(s.x) == pytest.approx(1 / 3, abs=CLOSE)


def test_fedavg_two_rounds_of_two_epochs(tmp_path):
    v, got = (
        0.25,
        Hand(tmp_path, SMALL, LARGE).run(
            FedAvg(rounds=2, sgd=SGD(lr=0.3, epochs=2, batch=10)), v=0.25
        ),
    )
    for s in got:
        v = (1 * descend(v, SMALL, lr=0.3, steps=2) + 2 * descend(v, LARGE, lr=0.3, steps=2)) / 3
        assert number(s.x) == pytest.approx(v, abs=CLOSE)
    assert [s.round for s in got] == [1, 2]


def test_fedavg_weight_decay_adds_its_multiple_of_the_point(tmp_path):
    """One step with weight decay h: y = v - lr (g(v) + h v)."""
    (s,) = Hand(tmp_path, SMALL, LARGE).run(
        FedAvg(rounds=1, sgd=SGD(lr=0.5, batch=10, weight_decay=0.2)), v=0.4
    )
    ends = [0.4 - 0.5 * (slope(0.4, points) + 0.2 * 0.4) for points in (SMALL, LARGE)]
    assert number(s.x) == pytest.approx((ends[0] + 2 * ends[1]) / 3, abs=CLOSE)


# ---- FedProx
# --------------------------------------------------------------------------------------------------


def test_fedprox_second_step_is_pulled_back(tmp_path):
    """Two full-batch steps, mu = 2, lr = 1/10.

    The term is 0 at the first and mu (y1 - v) at the second.

    y1 = v - lr g(v)        y2 = y1 - lr (g(y1) + mu (y1 - v))
    """
    v, mu, lr = 0.25, 2.0, 0.1
    (s,) = Hand(tmp_path, SMALL, LARGE).run(
        FedProx(rounds=1, mu=mu, sgd=SGD(lr=lr, epochs=2, batch=10)), v=v
    )
    ends = []
    for points in (SMALL, LARGE):
        y1 = v - lr * slope(v, points)
        ends.append(y1 - lr * (slope(y1, points) + mu * (y1 - v)))
    expected = (ends[0] + 2 * ends[1]) / 3
    assert number(s.x) == pytest.approx(expected, abs=CLOSE)
    free = (descend(v, SMALL, lr=lr, steps=2) + 2 * descend(v, LARGE, lr=lr, steps=2)) / 3
    assert abs(free - expected) > 100 * CLOSE  # otherwise this test could not see the term


def test_fedprox_measures_from_each_rounds_own_start(tmp_path):
    v, mu, lr = 0.1, 0.5, 0.4
    for s in Hand(tmp_path, SMALL, LARGE).run(
        FedProx(rounds=3, mu=mu, sgd=SGD(lr=lr, epochs=3, batch=10)), v=v
    ):
        ends = [
            descend(v, points, lr=lr, steps=3, correction=lambda y, v=v: mu * (y - v))
            for points in (SMALL, LARGE)
        ]
        v = (ends[0] + 2 * ends[1]) / 3
        assert number(s.x) == pytest.approx(v, abs=CLOSE)


# ---- SCAFFOLD
# --------------------------------------------------------------------------------------------------


def scaffold_round(v, c, own, chosen, clients, *, lr, steps, server_lr=1.0, momentum=0.0):
    """Return the paper's next (x, c); ``own`` holds the c_i and is changed in place.

    y_i: steps with g - c_i + c         c_i+ = c_i - c + (x - y_i) / (K lr), K the weight of all
    gradients x+ = x + server_lr mean_S (y_i - x)         c+ = c + (1 / N) sum_S (c_i+ - c_i)
    """
    dy = dc = 0.0
    for i in chosen:
        y = descend(
            v,
            clients[i],
            lr=lr,
            steps=steps,
            momentum=momentum,
            correction=lambda _, i=i: c - own[i],
        )
        plus = own[i] - c + (v - y) / (mass(steps, momentum) * lr)
        dy, dc = dy + (y - v), dc + (plus - own[i])
        own[i] = plus
    return v + server_lr * dy / len(chosen), c + dc / len(clients)


def test_scaffold_one_step_from_zero(tmp_path):
    """K = 1, lr = 1/2 and v = 0.

    G = -1 and -1/2 (see FedAvg), so y = 1/2 and 1/4, whose plain mean is 3/8.

    c_i = (0 - y_i) / lr = g_i = -1 and -1/2, and c = -3/4.
    """
    hand = Hand(tmp_path, SMALL, LARGE)
    (s,) = hand.run(Scaffold(rounds=1, sgd=SGD(lr=0.5, batch=10)))
    assert number(s.x) == pytest.approx(3 / 8, abs=CLOSE)
    assert number(s.c) == pytest.approx(-3 / 4, abs=CLOSE)
    assert [number(hand.kept(i)["c"]) for i in "01"] == pytest.approx([-1, -1 / 2], abs=CLOSE)


@pytest.mark.parametrize(("server_lr", "momentum"), [(1.0, 0.0), (0.5, 0.0), (1.0, 0.6)])
def test_scaffold_two_rounds(tmp_path, server_lr, momentum):
    lr, v, c, own, clients = 0.3, 0.25, 0.0, [0.0, 0.0], [SMALL, [(1.0, 0), (3.0, 0)]]
    hand = Hand(tmp_path, *clients)
    method = Scaffold(
        rounds=2, server_lr=server_lr, sgd=SGD(lr=lr, epochs=3, batch=10, momentum=momentum)
    )
    s = method.init(weights(v))
    for _ in range(2):
        s = drive(method, hand.engine, s, stop_after=1)
        v, c = scaffold_round(
            v, c, own, [0, 1], clients, lr=lr, steps=3, server_lr=server_lr, momentum=momentum
        )
        assert number(s.x) == pytest.approx(v, abs=CLOSE)
        assert number(s.c) == pytest.approx(c, abs=CLOSE)
        assert [number(hand.kept(i)["c"]) for i in "01"] == pytest.approx(own, abs=CLOSE)
        # of the formulas: everyone takes part, so c is the mean of the c_i
        assert c == pytest.approx(sum(own) / 2)
    free = 0.25
    for _ in range(2):
        free += server_lr * (
            sum(descend(free, p, lr=lr, steps=3, momentum=momentum) for p in clients) / 2 - free
        )
    assert abs(free - v) > 100 * CLOSE  # the second round's correction is seen


def test_scaffold_with_part_of_the_clients_moves_c_by_one_nth(tmp_path):
    lr, v, c, own, clients = 0.2, 0.25, 0.0, [0.0, 0.0, 0.0], [SMALL, LARGE, TWICE]
    hand = Hand(tmp_path, *clients)
    method = Scaffold(rounds=5, per_round=2, sgd=SGD(lr=lr, epochs=2, batch=10))
    seen = set()
    s = method.init(weights(v))
    for t in range(5):
        chosen = [int(i) for i in hand.engine.sample(Fixed(2), t).ids]
        seen.add(tuple(chosen))
        s = drive(method, hand.engine, s, stop_after=1)
        v, c = scaffold_round(v, c, own, chosen, clients, lr=lr, steps=2)
        assert (number(s.x), number(s.c)) == pytest.approx((v, c), abs=CLOSE)
    assert len(seen) > 1


# ---- FedNova
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_fednova_normalises_by_how_much_each_client_did(tmp_path, momentum):
    """Mini-batches of one point and two epochs.

    Client 0 (one point) takes 2 steps, client 1 (two points) takes 4.

    ||a||_1 is 2 and 4 without momentum; with momentum m = 1/2 the velocities of unit gradients are
    1, 3/2 and 1, 3/2, 7/4, 15/8, so 5/2 and 49/8. With p = (1/3, 2/3):

    x+ = x + (p_0 a_0 + p_1 a_1) (p_0 (y_0 - x) / a_0 + p_1 (y_1 - x) / a_1)
    """
    v, lr = 0.25, 0.2
    method = FedNova(rounds=2, sgd=SGD(lr=lr, epochs=2, batch=1, momentum=momentum))
    a0, a1 = (2.0, 4.0) if momentum == 0 else (5 / 2, 49 / 8)
    assert (a0, a1) == (mass(2, momentum), mass(4, momentum))
    for s in Hand(tmp_path, SMALL, TWICE).run(method, v=v):
        y0 = descend(v, SMALL, lr=lr, steps=2, momentum=momentum)
        y1 = descend(v, TWICE, lr=lr, steps=4, momentum=momentum)
        fedavg = (y0 + 2 * y1) / 3
        v = v + (a0 / 3 + 2 * a1 / 3) * ((y0 - v) / a0 / 3 + 2 * (y1 - v) / a1 / 3)
        assert number(s.x) == pytest.approx(v, abs=CLOSE)
        assert abs(v - fedavg) > 100 * CLOSE


def test_fednova_of_linear_losses_goes_along_the_true_gradient(tmp_path):
    """The paper's point.

    At tiny lr every step sees the same g, so x+ = x - lr tau_eff sum_i p_i g_i(x).

    That is the gradient of the whole loss, however many steps each client takes; FedAvg's direction
    is not.
    """
    v, lr = 0.25, 1e-3
    fraction = {}
    for method in (FedNova, FedAvg):
        (s,) = Hand(tmp_path / method.__name__, SMALL, TWICE).run(
            method(rounds=1, sgd=SGD(lr=lr, batch=1)), v=v
        )
        fraction[method] = (v - number(s.x)) / lr
    g0, g1 = slope(v, SMALL), slope(v, TWICE)
    assert fraction[FedNova] == pytest.approx((1 / 3 + 4 / 3) * (g0 / 3 + 2 * g1 / 3), rel=5e-3)
    assert fraction[FedAvg] == pytest.approx(g0 / 3 + 2 * 2 * g1 / 3, rel=5e-3)


# ---- FedMix
# --------------------------------------------------------------------------------------------------


def soft(d, y):
    """Return the loss of score difference d = z1 - z0 under probability y of class 1.

    Log(1 + e^d) - y d.
    """
    return math.log1p(math.exp(d)) - y * d


def mixed(v, points, mean, lam):
    """Return the module docstring's loss in numbers,
    with s = (1 - lam) x and dl/dx at s = 2 v (sigmoid(2 v s) - y).
    """
    x_bar, y_bar = mean
    total = 0.0
    for x, y in points:
        s = (1 - lam) * x
        total += (1 - lam) * soft(2 * v * s, y) + lam * soft(2 * v * s, y_bar)
        total += lam * 2 * v * (sigmoid(2 * v * s) - y) * x_bar
    return total / len(points)


def mixed_slope(v, points, mean, lam, h=1e-5):
    """Return dL/dw1 at (-v, v): L depends on w1 - w0 = 2 v alone, so it is half of dL/dv."""
    return (mixed(v + h, points, mean, lam) - mixed(v - h, points, mean, lam)) / (2 * h) / 2


def test_fedmix_with_two_clients(tmp_path):
    """M = 10, so each client shares one mean: (2, 1) and ((1 + 3) / 2, 1/2) = (2, 1/2).

    Each then draws one of them.

    The draw is the only thing not known on paper, so the result must be one of the four that are
    possible.
    """
    v, lam, lr = 0.25, 0.3, 0.5
    means, large = [(2.0, 1.0), (2.0, 0.5)], [(1.0, 0), (3.0, 1)]
    drawn = set()
    for seed in range(6):
        hand = Hand(tmp_path / str(seed), SMALL, large, seed=seed)
        (s,) = hand.run(FedMix(rounds=1, lam=lam, M=10, sgd=SGD(lr=lr, batch=10)), v=v)
        assert s.means.x_bar.tolist() == [[2.0], [2.0]]
        assert s.means.y_bar.tolist() == [[0.0, 1.0], [0.5, 0.5]]
        ends = {
            (i, j): v
            - lr
            * (mixed_slope(v, SMALL, means[i], lam) + 2 * mixed_slope(v, large, means[j], lam))
            / 3
            for i in (0, 1)
            for j in (0, 1)
        }
        fits = [ij for ij, end in ends.items() if abs(number(s.x) - end) < CLOSE]
        assert len(fits) == 1
        drawn.update(fits)
    assert len(drawn) > 1


def test_fedmix_shares_the_means_of_groups_of_m(tmp_path):
    """Three points with M = 2: a group of two and the one that is left over.

    Which is which is up to the shuffle.
    """
    three = [(1.0, 0), (2.0, 1), (6.0, 1)]
    (s,) = Hand(tmp_path, three).run(FedMix(rounds=1, M=2, sgd=SGD(batch=10)))
    groups = [(s.means.x_bar[k].item(), s.means.y_bar[k].tolist()) for k in (0, 1)]
    possible = [
        [(1.5, [0.5, 0.5]), (6.0, [0.0, 1.0])],
        [(3.5, [0.5, 0.5]), (2.0, [0.0, 1.0])],
        [(4.0, [0.0, 1.0]), (1.0, [1.0, 0.0])],
    ]
    assert groups in possible


def test_fedmix_gradient_in_three_classes_and_two_inputs(tmp_path):
    """The whole formula in numpy, with dl/dx = W^T (softmax(W s) - e_y) at s = (1 - lam) x,
    by finite differences.
    """
    points = [((1.0, -0.5), 0), ((0.3, 2.0), 2), ((-1.2, 0.7), 1)]
    x_bar, y_bar, lam, lr = np.array([0.4, -1.1]), np.array([0.5, 0.2, 0.3]), 0.35, 0.7
    start = np.array([[0.2, -0.4], [0.9, 0.1], [-0.3, 0.5]])

    def softmax(z):
        e = np.exp(z - z.max())
        return e / e.sum()

    def loss(w, taylor=lam):
        total = 0.0
        for x, y in points:
            s, e = (1 - lam) * np.array(x), np.eye(3)[y]
            p = softmax(w @ s)
            total += (
                (1 - lam) * -(e @ np.log(p))
                + lam * -(y_bar @ np.log(p))
                + taylor * (w.T @ (p - e)) @ x_bar
            )
        return total / len(points)

    def slopes(**kw):
        out = np.zeros_like(start)
        for at in np.ndindex(*start.shape):
            step = np.zeros_like(start)
            step[at] = 1e-5
            out[at] = (loss(start + step, **kw) - loss(start - step, **kw)) / 2e-5
        return out

    world = World(federation(points), nn.Linear(2, 3, bias=False), 0, tmp_path)
    means = fedmix.Means(torch.tensor(x_bar[None]).float(), torch.tensor(y_bar[None]).float())
    x = Params(weight=torch.tensor(start).float())
    call = fedmix.train(x=x, means=means, lam=lam, sgd=SGD(lr=lr, batch=10))
    got = fedmix.train.fn(world.client(call.task, "0", 0, {}), **call.args).sent
    assert got.n == 3
    np.testing.assert_allclose(got.dx["weight"].numpy(), -lr * slopes(), atol=CLOSE)
    assert np.abs(slopes() - slopes(taylor=0.0)).max() > 0.01  # the Taylor term is seen


# ---- the two that are not federated
# ---------------------------------------------------------------------------------


def test_centralised_is_one_step_on_the_pooled_points(tmp_path):
    """From v = 0 with lr = 1/2: g = ((1/2-1) 2 + (1/2) 1 + (1/2-1) 3) / 3 = -2/3, so v = 1/3."""
    hand = Hand(tmp_path, SMALL, LARGE, pooled=True)
    (s,) = hand.run(Centralised(rounds=1, sgd=SGD(lr=0.5, batch=10)))
    assert hand.engine.everyone == ("0",)
    assert number(s.x) == pytest.approx(1 / 3, abs=CLOSE)


def test_centralised_goes_on_from_where_it_was(tmp_path):
    v = 0.1
    hand = Hand(tmp_path, SMALL, LARGE, pooled=True)
    for s in hand.run(Centralised(rounds=3, sgd=SGD(lr=0.5, epochs=2, batch=10)), v=v):
        v = descend(v, SMALL + LARGE, lr=0.5, steps=2)
        assert number(s.x) == pytest.approx(v, abs=CLOSE)


def test_local_models_stay_apart_and_at_home(tmp_path):
    """Two rounds of one step are two steps of each client from the common start,
    and the shared model stays there.
    """
    v, lr = 0.25, 0.5
    hand, method = Hand(tmp_path, SMALL, LARGE), Local(rounds=2, sgd=SGD(lr=lr, batch=10))
    states = hand.run(method, v=v)
    assert [number(s.x) for s in states] == [v, v]
    own = [descend(v, points, lr=lr, steps=2) for points in (SMALL, LARGE)]
    assert abs(own[0] - own[1]) > 100 * CLOSE
    assert [number(hand.kept(i)["y"]) for i in "01"] == pytest.approx(own, abs=CLOSE)
    for i, end in zip("01", own, strict=True):
        me = hand.world.client("evaluate.score_with_method", i, 2, hand.kept(i))
        with torch.no_grad():
            scores = method.predictor(me, states[-1])(torch.tensor([[2.0]]))
        assert scores.tolist() == [pytest.approx([-2 * end, 2 * end], abs=CLOSE)]
    newcomer = hand.world.client("evaluate.score_with_method", "0", 0, {})
    assert method.predictor(newcomer, states[-1])(torch.tensor([[2.0]])).tolist() == [
        [-2 * v, 2 * v]
    ]


def test_local_releases_nothing_and_the_others_say_what_they_send(tmp_path):
    hand = Hand(tmp_path / "local", SMALL, LARGE)
    hand.run(Local(rounds=2, sgd=SGD(batch=10)))
    lines = list(hand.engine.ledger)
    assert {(line.owner, line.rounds) for line in lines} == {("0", ((0, 1),)), ("1", ((0, 1),))}
    assert {line.event for line in lines} == {Nothing()}
    for method in (FedAvg, FedProx, Scaffold, FedNova, FedMix):
        hand = Hand(tmp_path / method.__name__, SMALL, LARGE)
        hand.run(method(rounds=1, sgd=SGD(batch=10)))
        events = [line.event for line in hand.engine.ledger]
        assert len(events) >= 2
        assert all(isinstance(event, NonPrivate) for event in events)


# ---- UDP's discounting of rounds
# --------------------------------------------------------------------------------------------------


def test_udps_rounds_and_budget_by_hand():
    """T 10, beta 0.8: each of two rounds has a tenth. The third loss has not fallen: T is 8, and
    0.7 is left for 5 rounds. The next one rises: ceil(6.4) = 7, and 0.56 for 3 rounds.
    """
    s = Discounting(weights(0.0), T=10)
    shares, rounds = [], []
    for loss in (2.0, 1.0, 1.0, 1.5):
        shares.append(s.share)
        s = s.then(s.x, loss, 0.8)
        rounds.append(s.T)
    assert shares == pytest.approx([0.1, 0.1, 0.1, 0.14])
    assert rounds == [10, 10, 8, 7]
    assert s.share == pytest.approx(0.56 / 3)
    while s.round < s.T:  # what is left is spent to the end
        s = s.then(s.x, s.loss - 1, 0.8)
    assert (s.round, s.left) == (7, pytest.approx(0.0, abs=1e-12))


def test_udp_halves_its_rounds_for_as_long_as_the_loss_rises(tmp_path, monkeypatch):
    """Noise drives the model away from what its clients want: every loss is above the last.

    T 8, beta 1/2: 8 after the first round, 4 after the second, 2 after the third, and that was one
    too many. Shares of eps^2: 1/8, 1/8 and, with 3/4 left for two rounds, 3/8.
    """
    sds = []

    def noised(draw, values, sd):
        sds.append(sd)
        return [v + torch.tensor([[-1.0], [1.0]]) for v in values]

    monkeypatch.setattr(mechanisms, "noised", noised)
    monkeypatch.setattr(sgd, "check_once", lambda me: None)  # two weights are too few for it
    method = UDP(mode="paper", rounds=8, discount=0.5, epsilon=2.0, clip=9.0, sgd=SGD(lr=0.1))
    down = [(1.5, 0), (-1.5, 1)]  # want v to be below 0
    hand = Hand(tmp_path, down, down)
    states = hand.run(method)
    assert [s.T for s in states] == [8, 4, 2, 2, 2, 2, 2, 2]
    assert states[0].loss == pytest.approx(math.log(2))
    moved = 2 * 0.1 * 9.0 / 2
    one = moved * math.sqrt(2 * math.log(1 / hand.engine.delta)) / 2.0
    by_hand = [one * math.sqrt(8)] * 4 + [one * math.sqrt(8 / 3)] * 2  # two clients
    assert sds == pytest.approx(by_hand)
    assert number(states[-1].x) == number(states[2].x)  # nobody was asked any more
    for what in ("udp loss", "udp update"):
        lines = [line for line in hand.engine.ledger if line.what == what]
        assert {(line.owner, line.rounds) for line in lines} == {(i, ((0, 2),)) for i in "01"}
        assert all(isinstance(line.event, NonPrivate) for line in lines)


# ---- DP-SCAFFOLD and NbAFL as published
# --------------------------------------------------------------------------------------------------


def test_dp_scaffold_as_published_clips_to_the_median_of_a_batch(tmp_path, monkeypatch):
    """From v = 0, with noise that is its own deviation 2 sigma C/B, sigma = 1, lr = 1/2.

    client 0: g = -1, C = 1, B = 1: -1 + 2 = 1, it ends at -1/2
    client 1: g = 1/2 and -3/2, C = 1, so 1/2 and -1, mean -1/4, B = 2: -1/4 + 1, ends at -3/8
    server: the plain mean, -7/16; variates 1 and 3/4, c = 7/8.
    """
    along = torch.tensor([[-1.0], [1.0]]) / math.sqrt(2)  # in W, every norm is sqrt(2) times that
    told = lambda draw, values, sd: [v + sd * along for v in values]  # noqa: E731
    monkeypatch.setattr(mechanisms, "noised", told)
    hand = Hand(tmp_path, SMALL, LARGE)
    (s,) = hand.run(DPScaffold(mode="paper", rounds=1, sgd=SGD(lr=0.5, batch=10, clip=9.0, z=1.0)))
    assert number(s.x) == pytest.approx(-7 / 16, abs=CLOSE)
    assert number(s.c) == pytest.approx(7 / 8, abs=CLOSE)
    assert [number(hand.kept(i)["c"]) for i in "01"] == pytest.approx([1, 3 / 4], abs=CLOSE)
    lines = [line for line in hand.engine.ledger if line.what == "dp_scaffold steps"]
    assert {line.owner for line in lines} == {"0", "1"}
    assert all(isinstance(line.event, NonPrivate) for line in lines)


def test_dp_scaffold_starts_warm_from_everybodys_variates(tmp_path, monkeypatch):
    """Without noise, at v = 0 and where it stays: as above, g = -1, and 1/2 and -1 clipped.

    c_0 = -1, c_1 = -1/4, c = -5/8 before the first round. In it, g is c_i again, so both go along
    g - c_i + c = c and end at 5/16. The variates stay: c_i+ = (x - y)/(K lr) - c + c_i = c_i.
    """
    monkeypatch.setattr(mechanisms, "noised", lambda draw, values, sd: values)
    hand = Hand(tmp_path, SMALL, LARGE)
    local = SGD(lr=0.5, batch=10, clip=9.0, z=1.0)
    begun, s = hand.run(DPScaffold(mode="paper", warm=True, rounds=1, sgd=local))
    assert (begun.round, s.round) == (0, 1)
    assert (number(begun.x), number(begun.c)) == pytest.approx((0, -5 / 8), abs=CLOSE)
    assert (number(s.x), number(s.c)) == pytest.approx((5 / 16, -5 / 8), abs=CLOSE)
    assert [number(hand.kept(i)["c"]) for i in "01"] == pytest.approx([-1, -1 / 4], abs=CLOSE)
    lines = [line for line in hand.engine.ledger if line.what == "dp_scaffold warm start"]
    assert {line.owner for line in lines} == {"0", "1"}
    assert all(isinstance(line.event, NonPrivate) for line in lines)
    with pytest.raises(BadInput, match=r"^warm = True: means nothing in mode = 'certified'"):
        DPScaffold(warm=True)


def test_nbafl_as_published_weighs_clients_by_their_sizes(tmp_path):
    """As FedAvg's first step, 1/3, and not the plain mean, 3/8; noise of eps 1e9 is none."""
    method = NbAFL(mode="paper", rounds=1, epsilon=1e9, mu=0.0, sgd=SGD(lr=0.5, batch=10))
    (s,) = Hand(tmp_path, SMALL, LARGE).run(method)
    assert number(s.x) == pytest.approx(1 / 3, abs=1e-4)


# ---- momentum and Adam at the server
# --------------------------------------------------------------------------------------------------


def mean_step(v, *, lr):
    """Return FedAvg's mean update from v after one full-batch step of both clients."""
    small, large = (descend(v, points, lr=lr, steps=1) - v for points in (SMALL, LARGE))
    return (small + 2 * large) / 3


def test_fedavgm_takes_a_share_of_its_last_step_again(tmp_path):
    v, u = 0.25, 0.0
    method = FedAvgM(rounds=3, beta=0.5, server_lr=2.0, sgd=SGD(lr=0.3, batch=10))
    for s in Hand(tmp_path, SMALL, LARGE).run(method, v=v):
        u = 0.5 * u + 2.0 * mean_step(v, lr=0.3)
        v = v + u
        assert number(s.x) == pytest.approx(v, abs=CLOSE)


def test_fedadam_divides_by_the_root_of_the_mean_square(tmp_path):
    v, m, tau = 0.25, 0.0, 0.01
    square = tau**2
    method = FedAdam(rounds=3, server_lr=0.1, tau=tau, sgd=SGD(lr=0.3, batch=10))
    for s in Hand(tmp_path, SMALL, LARGE).run(method, v=v):
        d = mean_step(v, lr=0.3)
        m = 0.9 * m + 0.1 * d
        square = 0.99 * square + 0.01 * d**2
        v = v + 0.1 * m / (math.sqrt(square) + tau)
        assert number(s.x) == pytest.approx(v, abs=CLOSE)


# ---- models of the clients' own
# --------------------------------------------------------------------------------------------------


def test_mr_mtl_draws_each_clients_model_to_the_mean_of_all(tmp_path):
    """Two full-batch steps a round, from the client's own model of the round before."""
    v, lam, lr = 0.25, 2.0, 0.1
    own = [v, v]
    hand = Hand(tmp_path, SMALL, LARGE)
    states = hand.run(MRMTL(rounds=3, lam=lam, sgd=SGD(lr=lr, epochs=2, batch=10)), v=v)
    for s in states:
        own = [
            descend(w, points, lr=lr, steps=2, correction=lambda y, v=v: lam * (y - v))
            for w, points in zip(own, (SMALL, LARGE), strict=True)
        ]
        v = (own[0] + 2 * own[1]) / 3
        assert number(s.x) == pytest.approx(v, abs=CLOSE)
    assert abs(own[0] - own[1]) > 100 * CLOSE
    for client, w in zip("01", own, strict=True):
        assert number(hand.kept(client)["own"]) == pytest.approx(w, abs=CLOSE)


def test_ditto_trains_a_model_of_each_clients_own_beside_fedavg(tmp_path):
    v, lam, lr = 0.25, 2.0, 0.1
    own = [v, v]
    hand = Hand(tmp_path, SMALL, LARGE)
    states = hand.run(Ditto(rounds=3, lam=lam, sgd=SGD(lr=lr, epochs=2, batch=10)), v=v)
    for s in states:
        own = [
            descend(w, points, lr=lr, steps=2, correction=lambda y, v=v: lam * (y - v))
            for w, points in zip(own, (SMALL, LARGE), strict=True)
        ]
        shared = [descend(v, points, lr=lr, steps=2) for points in (SMALL, LARGE)]
        v = (shared[0] + 2 * shared[1]) / 3
        assert number(s.x) == pytest.approx(v, abs=CLOSE)
    for client, w in zip("01", own, strict=True):
        assert number(hand.kept(client)["own"]) == pytest.approx(w, abs=CLOSE)


def test_fedrep_fits_the_head_first_and_sends_the_rest(tmp_path):
    """Scores (-v a x, v a x): a is shared, the head v is the client's own. One step of each.

    dl/dv = (p - y) a x        dl/da = 2 v (p - y) x        with p = sigmoid(2 v a x)
    """
    a, lr = 0.7, 0.2
    heads = [0.25, 0.25]
    hand = Hand(tmp_path, SMALL, LARGE)
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 2, bias=False))
    hand.engine = Serial(World(federation(SMALL, LARGE), model, 0, tmp_path / "two"))
    x0 = Params({"0.weight": torch.tensor([[a]]), "1.weight": torch.tensor([[-0.25], [0.25]])})
    method = FedRep(rounds=2, head_epochs=1, sgd=SGD(lr=lr, batch=10))
    states = []
    drive(method, hand.engine, method.init(x0), on_step=states.append)
    for s in states:
        shared = []
        for k, points in enumerate((SMALL, LARGE)):
            heads[k] -= lr * slope(heads[k], [(a * x, y) for x, y in points])
            turned = [(heads[k] * x, y) for x, y in points]
            shared.append(a - lr * 2 * slope(a, turned))
        a = (shared[0] + 2 * shared[1]) / 3
        assert float(s.x["0.weight"]) == pytest.approx(a, abs=CLOSE)
        assert s.x["1.weight"].tolist() == [[-0.25], [0.25]]  # nobody's head has left it


def test_fedrep_refuses_a_network_of_one_layer_and_a_clip():
    with pytest.raises(BadInput, match="shares all layers but the last, and this has only one"):
        FedRep().init(weights(0.1))
    with pytest.raises(BadInput, match=r"^sgd.clip = 1: must be 0; gradients of the shared part"):
        FedRep(sgd=SGD(clip=1.0))


def test_moon_contrasts_with_the_shared_model_and_the_one_before():
    """At tau = 1/2: alike the shared one and at right angles to the other, then the reverse."""
    right, up = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 3.0]])
    near = -math.log(math.e**2 / (math.e**2 + 1))
    far = -math.log(1 / (1 + math.e**2))
    assert float(moon.contrast(right, 5 * right, up, 0.5)) == pytest.approx(near, abs=CLOSE)
    assert float(moon.contrast(right, up, right, 0.5)) == pytest.approx(far, abs=CLOSE)
    both = torch.cat([right, right]), torch.cat([right, up]), torch.cat([up, right])
    assert float(moon.contrast(*both, 0.5)) == pytest.approx((near + far) / 2, abs=CLOSE)
    assert float(moon.contrast(right, up, up, 0.5)) == pytest.approx(math.log(2), abs=CLOSE)
