"""A run that ends before its time, however it ends, says all that was spent."""

from dataclasses import replace

import pytest

import tacit
from tacit import privacy
from tacit.core import BudgetReached, Ledger
from tacit.engines.store import ClientStore
from tacit.experiment.rundir import RunDir


def epsilon(ledger):
    return privacy.epsilon(ledger, unit="example", observer="server", delta=1e-5)


def own(directory):
    return Ledger(line for ledger in directory.client_ledgers() for line in ledger)


@pytest.mark.parametrize("budget", [4.8, 6.0])
def test_the_figure_of_a_stopped_run_is_that_of_its_clients(tmp_path, budget):
    """A budget of 4.8 printed that nothing had left a client, one of 6 said 4.95 of 5.78."""
    word = "fedavg:rounds=12,sgd.clip=1.0,sgd.z=1.0,sgd.batch=64"
    how = {"split": "dirichlet:0.3", "clients": 4, "budget": budget, "workers": 2}
    with pytest.raises(BudgetReached) as stopped:
        tacit.run(word, model="mlp", out=tmp_path / "run", **how)
    directory = RunDir.open(tmp_path / "run")
    assert directory.ledger() == own(directory)
    assert 0 < epsilon(own(directory)) <= budget
    assert stopped.value.run.epsilon["example/server"] == epsilon(own(directory))


def test_after_a_kill_what_clients_wrote_themselves_counts(tmp_path):
    """The server was killed before it heard of the last release."""
    word = "fedavg:rounds=2,sgd.clip=1.0,sgd.z=1.0"
    tacit.run(word, model="mlp", clients=2, out=tmp_path / "run", workers=0)
    directory = RunDir.open(tmp_path / "run")
    known = directory.ledger()
    (line,) = [line for line in known if line.owner == "1"]
    unheard = Ledger([*known, replace(line, rounds=((0, 2),))])
    own = Ledger(line for line in unheard if line.owner == "1")
    ClientStore(directory.clients / "1").write_ledger(own)
    assert directory.ledger() == known  # it ended in order: clients have nothing to add
    directory.mark_open()
    assert directory.ledger() == unheard
    directory.settle()
    assert directory.ledger() == unheard
    assert epsilon(unheard) > epsilon(known)
