"""Methods whose clients noise their own updates: a whole client costs what was asked for.

An absent client sends nothing, and no fixed reply stands for it, so the guarantee is for replacing
all of a client's data by any other. That is what one of its examples can do, too.
"""

import math

import pytest

from tacit import privacy
from tacit.experiment.drive import drive
from tacit.local.prototypes import Episodes
from tacit.methods import CUAG, LDPFL, UDP, NbAFL, PriFedSync

DELTA, TARGET = 1e-5, 6.0
QUICK = Episodes(steps=2)
SOLVED = {
    "udp": UDP(rounds=3, epsilon=TARGET),
    "nbafl": NbAFL(rounds=3, per_round=4, epsilon=TARGET),
    "ldp_fl": LDPFL(rounds=3, per_round=4, mode="update", epsilon=TARGET),
    "cuag": CUAG(rounds=3, per_round=4, unit="client", epsilon=TARGET, local=QUICK),
    "cuag, harmonic": CUAG(
        rounds=3, unit="client", schedule="harmonic", epsilon=TARGET, local=QUICK
    ),
}


def figures(ledger):
    """Return epsilon against the server by unit and relation."""
    return {
        (unit, relation): privacy.epsilon(
            ledger, unit=unit, observer="server", delta=DELTA, relation=relation
        )
        for unit in privacy.UNITS
        for relation in privacy.RELATIONS
    }


def spent(method, sandbox):
    engine = sandbox.serial(method)
    drive(method, engine, method.init(sandbox.x0))
    return engine


@pytest.mark.parametrize("name", SOLVED)
def test_a_client_an_example_and_a_replacement_cost_what_was_asked_for(name, sandbox):
    """Eps 6 was 6 for the client and 14 for one of its examples."""
    got = figures(spent(SOLVED[name], sandbox).ledger)
    assert got == {key: pytest.approx(TARGET, rel=1e-6) for key in got}
    assert len(set(got.values())) == 1


def test_a_fixed_sigma_keeps_its_meaning_and_costs_what_it_does(sandbox):
    """Noise sigma C on updates up to 2C apart: 2/sigma-GDP for each of a client's rounds."""
    method = PriFedSync(rounds=3, per_round=4, sigma=2.0, local=QUICK)
    engine = spent(method, sandbox)
    K = method.most_rounds(engine)
    got = figures(engine.ledger)
    assert got == {key: pytest.approx(privacy.gdp_epsilon(math.sqrt(K), DELTA)) for key in got}
