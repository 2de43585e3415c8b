"""Noise of published formulas, against values worked by hand from the papers."""

import math

import pytest

from tacit.core import BadInput, Known, Ledger, NonPrivate
from tacit.local.sgd import SGD
from tacit.methods.cl_fl import CLFL
from tacit.methods.cuag import CUAG
from tacit.methods.dp_scaffold import DPScaffold
from tacit.methods.ldp_fl import LDPFL
from tacit.methods.nbafl import NbAFL
from tacit.methods.prifedsync import PriFedSync
from tacit.methods.udp import UDP
from tacit.privacy.accounting import epsilon
from tacit.privacy.claimed import moments_noise
from tacit.privacy.gdp import gdp_epsilon


def test_udp_in_the_setting_of_cuag():
    """Eta 0.1, C 1, 500 examples, 10 of 100 clients, 300 rounds, eps 10, delta 1e-5.

    2 * 0.1 * 1 / 500 = 4e-4, times sqrt(2 * 0.1 * 300 * 11.5129) = 26.2828, over 10.
    """
    udp = UDP(mode="paper", rounds=300, epsilon=10.0, clip=1.0, sgd=SGD(lr=0.1))
    assert udp.sigma(500, 0.1, 1e-5) == pytest.approx(1.05131e-3, rel=1e-4)
    rule = udp.rule("0", 500, 30, 1e-5, q=0.1)
    assert rule.sd == udp.sigma(500, 0.1, 1e-5)
    (line,) = rule.lines("0", 500, 30)
    assert isinstance(line.event, NonPrivate)
    assert "2 eta C/|D|" in line.event.why


def test_what_udp_claims_and_what_holds():
    claims = {name: epsilon for name, epsilon, _ in UDP(mode="paper").claims({"0": 500}, 1e-5)}
    assert claims == {"published": 10.0, "certified": math.inf}


@pytest.mark.parametrize("per_round", [0, 10])
def test_cl_fl_can_be_compared_at_an_epsilon(per_round):
    """In paper mode by its own accountant, certified by the certificate."""
    sizes = {str(i): 60 for i in range(100)}
    paper = CLFL(mode="paper", per_round=per_round, epsilon=4.0)
    claimed = {name: epsilon for name, epsilon, _ in paper.claims(sizes, 1e-5)}
    assert claimed["moments"] == pytest.approx(4.0, rel=1e-6)
    certified = CLFL(per_round=per_round, epsilon=4.0).solved(sizes, {}, 1e-5)
    ledger = Ledger(certified.releases(sizes, {}, 1e-5))
    spent = epsilon(ledger, unit="client", observer="clients", delta=1e-5)
    assert 3.98 <= spent <= 4.0


@pytest.mark.parametrize(("rounds", "lasts"), [(150, 59), (59, 59), (20, 20)])
def test_cl_fl_stops_where_its_accountant_says(rounds, lasts):
    """At q = 1 T rounds cost T / (2 z^2) + sqrt(2 T ln(1/delta)) / z: 59 cost 3.981, 60 4.017."""
    known = Known({str(i): 60 for i in range(10)}, delta=1e-5)
    stopping = CLFL(mode="paper", rounds=rounds, z=10.0, epsilon=4.0, stop=True).tuned(known)
    assert (stopping.rounds, stopping.solved(known.sizes, {}, 1e-5).z) == (lasts, 10.0)
    assert stopping.tuned(known) == stopping  # as in the config.toml of a run that is resumed
    claimed = {name: epsilon for name, epsilon, _ in stopping.claims(known.sizes, 1e-5)}
    T = lasts
    assert claimed["moments"] == pytest.approx(
        T / 200 + math.sqrt(2 * T * math.log(1e5)) / 10, rel=1e-9
    )


def test_cl_fl_has_to_have_something_to_stop_by():
    with pytest.raises(BadInput, match="z = 1: one round alone costs more than epsilon"):
        CLFL(mode="paper", epsilon=4.0, stop=True).tuned(Known({"0": 60}, delta=1e-5))
    for wrong in ({"mode": "certified", "epsilon": 4.0}, {"mode": "paper"}):
        with pytest.raises(BadInput, match="stop = true: needs mode = 'paper'"):
            CLFL(stop=True, **wrong)


def test_moments_noise_of_one_full_round_by_hand():
    """At q = 1, eps = r^2/2 + r sqrt(2 ln(1/delta)) for r = 1/z."""
    r = 0.25
    cost = r**2 / 2 + r * math.sqrt(2 * math.log(1e5))
    assert moments_noise(cost, 1, delta=1e-5) == pytest.approx(4.0)


SETTING = {str(i): 500 for i in range(100)}  # CUAG-PFL's: 100 clients of 500 examples


@pytest.mark.parametrize(
    ("method", "first", "last"),
    [
        (CUAG(mode="paper", per_round=10), 0.92, 0.92),
        (PriFedSync(mode="paper", per_round=10), 0.41, 10.24),
        (UDP(mode="paper", per_round=10), 10.0, 10.0),
        (DPScaffold(mode="paper", per_round=10), 1.52, 26.28),
    ],
    ids=["cuag", "prifedsync", "udp", "dp_scaffold"],
)
def test_epsilon_over_rounds_is_that_of_cuags_figure_4(method, first, last):
    over = [method.claimed(t, SETTING, 1e-5)[1] for t in (1, 300)]
    assert over == pytest.approx([first, last], abs=0.011)


def test_sigma_over_rounds_of_cuags_figure_4_by_hand():
    """Round 1: ln(6.25 + 1); round 300: ln(6.25/300 + 1). UDP: sqrt(2 * 0.1 * 300 * 11.5129)/10."""
    cuag = CUAG(mode="paper", per_round=10)
    assert cuag.claimed(1, SETTING, 1e-5)[0] == pytest.approx(math.log(7.25) ** -0.5)
    assert cuag.claimed(300, SETTING, 1e-5)[0] == pytest.approx(math.log1p(6.25 / 300) ** -0.5)
    assert UDP(mode="paper", per_round=10).claimed(300, SETTING, 1e-5)[0] == pytest.approx(
        2.62826, rel=1e-5
    )


def test_a_fixed_sigma_of_cuag_spends_more_in_every_round():
    """(2 lambda B/D) sqrt(t P (e^(1/sigma^2) - 1)): sigma 1 in round 1 is 0.02 sqrt(25 1.718)."""
    fixed = CUAG(mode="paper", per_round=10, sigma=1.0)
    sigma, spent = fixed.claimed(1, SETTING, 1e-5)
    assert sigma == 1.0
    assert spent == pytest.approx(gdp_epsilon(0.02 * math.sqrt(25 * math.expm1(1)), 1e-5))
    assert fixed.claimed(300, SETTING, 1e-5)[1] > 5 * spent
    assert "sigma 1 in all rounds" in fixed.claims(SETTING, 1e-5)[-1][2]


def test_nothing_certified_is_claimed_by_rounds():
    for method in (CUAG(), PriFedSync(), UDP(), DPScaffold(), CUAG(mode="paper", mu=0.0)):
        assert method.claimed(1, SETTING, 1e-5) is None


def test_nbafl_with_all_clients_by_hand():
    """T 150, N 10, m 6000, C 10, eps 4, delta 1e-5: c = 4.8448.

    Up 4.8448 * 20 / (6000 * 4); down 2 * 4.8448 * 10 * sqrt(22500 - 10) / (6000 * 10 * 4).
    """
    paper = NbAFL(mode="paper", rounds=150, epsilon=4.0, clip=10.0)
    assert paper.uplink(6000, 1e-5) == pytest.approx(4.8448 * 20 / 24000, rel=1e-4)
    assert paper.rounds_counted(10, 10) == pytest.approx(1.0)
    down = 96.896 * math.sqrt(22490) / 240_000
    assert paper.downlink(6000, 10, 10, 1e-5) == pytest.approx(down, rel=1e-4)


def test_nbafl_with_some_clients_by_hand():
    """T 20, eps 4, 25 of 50 clients: 1 - 2 + 2 e^-0.2 = 0.637462, b = -5 ln of it = 2.25131."""
    paper = NbAFL(mode="paper", rounds=20, epsilon=4.0, clip=10.0)
    assert paper.rounds_counted(25, 50) == pytest.approx(2.25131, rel=1e-5)
    more = math.sqrt((20 / 2.25131) ** 2 - 25)
    want = 96.896 * more / (1000 * 25 * 4)
    assert paper.downlink(1000, 25, 50, 1e-5) == pytest.approx(want, rel=1e-4)


def test_nbafl_adds_nothing_where_the_theorem_says_nothing():
    """One of 50 clients in 20 rounds at eps 4: 1 - 50 + 50 e^-0.2 is below 0."""
    few = NbAFL(mode="paper", rounds=20, epsilon=4.0)
    assert few.rounds_counted(1, 50) == 0
    assert few.downlink(1000, 1, 50, 1e-5) == 0
    assert NbAFL(mode="paper", rounds=3).downlink(1000, 9, 9, 1e-5) == 0  # T <= L sqrt(N)


def test_nbafl_counts_with_the_smallest_client_and_weighs_by_size():
    sizes = {"0": 100, "1": 300, "2": 600}
    paper = NbAFL(mode="paper").solved(sizes, {}, 1e-5)
    assert paper.m == 100
    assert {paper.rule(i, n, 20, 1e-5).sd for i, n in sizes.items()} == {paper.uplink(100, 1e-5)}
    assert NbAFL().solved(sizes, {}, 1e-5) == NbAFL()  # certified: nothing to find out


def test_performance_loss_by_hand():
    """N 10, eps 4, delta 1e-3, T 150, q 1: N exp(eps^2 / (2 ln(1/delta))) = 10 exp(1.158119)."""
    ten = {str(i): 6000 for i in range(10)}
    whole = LDPFL(mode="paper", rounds=150, epsilon=4.0)
    assert whole.performance_loss(150, ten, 1e-3) == pytest.approx(
        10 * math.exp(1.158119), rel=1e-5
    )
    assert whole.performance_loss(75, ten, 1e-3) == pytest.approx(
        10 * math.exp(0.5790595), rel=1e-5
    )
    short = LDPFL(mode="paper", rounds=25, epsilon=4.0)  # whatever T is
    assert short.performance_loss(25, ten, 1e-3) == pytest.approx(
        whole.performance_loss(150, ten, 1e-3)
    )


def test_performance_loss_of_clients_with_an_epsilon_and_a_delta_of_their_own():
    two = {"0": 100, "1": 100}
    own = LDPFL(mode="paper", rounds=10, epsilons=(1.0, 2.0), deltas=(1e-2, 1e-4))
    by_hand = math.exp(1 / (2 * math.log(1e2))) + math.exp(4 / (2 * math.log(1e4)))
    assert own.performance_loss(10, two, 1e-5) == pytest.approx(by_hand)
    noise = [own.rule(i, 100, 10, 1e-5).sd for i in two]
    assert noise[0] == pytest.approx(0.02 * math.sqrt(20 * math.log(1e2)))
    assert noise[1] == pytest.approx(0.02 * math.sqrt(20 * math.log(1e4)) / 2)
    with pytest.raises(BadInput, match=r"^deltas = \(0.01,\): means nothing in mode = 'auto'"):
        LDPFL(deltas=(1e-2,))


def test_performance_loss_of_a_sample_of_clients():
    """Two of four: alpha(1) = log(1 - q^2 + q^2 e^(r^2)), r^2 = eps^2/(2 q T ln(1/delta))."""
    four = {str(i): 100 for i in range(4)}
    some = LDPFL(mode="paper", rounds=3, per_round=2, epsilon=2.0)
    r2 = 4 / (2 * 0.5 * 3 * math.log(1e5))
    by_hand = 2 * (0.75 + 0.25 * math.exp(r2)) ** 3
    assert some.performance_loss(3, four, 1e-5) == pytest.approx(by_hand)


def test_performance_loss_of_the_methods_it_is_compared_with():
    """NbAFL: r = eps/(c L) in every round, c = 4.8448; CL-FL: r = 1/z."""
    ten = {str(i): 6000 for i in range(10)}
    one = NbAFL(mode="paper", epsilon=1.0).performance_loss(3, ten, 1e-5)
    assert one == pytest.approx(10 * math.exp(3 / 4.8448**2), rel=1e-4)
    assert CLFL(z=2.0).performance_loss(3, ten, 1e-5) == pytest.approx(10 * math.exp(3 / 4))
    assert CLFL(z=0.0).performance_loss(3, ten, 1e-5) is None
