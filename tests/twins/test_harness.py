"""The harness finds what methods with a leak give away, and says where."""

import pytest
from sandbox import SEED, Sandbox
from twins import worlds
from twins.harness import check
from twins.worlds import client_away, record_gone

from tacit.compress import Compressor
from tacit.core import Client, Everyone, Params, PublicInt, Reply, mean, task
from tacit.engines.client_host import World
from tacit.local.sgd import SGD
from tacit.methods import dp_fedavg, fedavg
from tacit.methods.cl_fl import CLFL

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = SGD(lr=0.5, batch=8, clip=0.2, z=0.9)


def examined(method, twin, folder, **world):
    sandbox = Sandbox(folder)
    wild = worlds.wild(worlds.tiny(), "5")
    return check(method, World(wild, sandbox.model, SEED, folder, **world), sandbox.x0, [twin])


@task
def counting(me: Client, x: Params, sgd: SGD) -> Reply[fedavg.Update]:
    """Call something public that has been counted in the labels."""
    y, _ = sgd.fit(me, x)
    n = int((me.data.examples.y + 1).sum())
    return Reply(fedavg.Update(dx=y - x, n=PublicInt(n)))


class Counting(fedavg.FedAvg):
    def run(self, cohort, s):
        for t in range(s.round, self.rounds):
            replies = cohort.ask(counting(x=s.x, sgd=self.sgd), cohort.sample(Everyone(), t))
            s = fedavg.State(x=s.x + mean(r.dx for r in replies), round=t + 1)
            yield s


def test_a_number_that_is_only_called_public_is_found(tmp_path):
    report = examined(Counting(rounds=1, sgd=STEPS), record_gone("5"), tmp_path)
    where = f"{counting.name}, round 0: reply field 'n' of client 5"
    assert report.findings == [
        f"Counting: record of client 5 gone: {where} differs, and no line covers it"
    ]


class Sharing(dp_fedavg.DPFedAvg):
    """Asks again with the raw mean of the round before."""

    def run(self, cohort, s):
        for after in super().run(cohort, s):
            call = dp_fedavg.train(x=after.x, sgd=self.sgd)
            raw = cohort.ask(call, cohort.sample(Everyone(), 100))
            told = dp_fedavg.train(x=after.x + mean(r.dx for r in raw), sgd=self.sgd)
            cohort.ask(told, cohort.sample(Everyone(), 101))
            yield after


def test_what_goes_down_to_clients_is_looked_at(tmp_path):
    method = Sharing(rounds=1, q=1.0, clip=0.1, sgd=SGD(lr=0.5, batch=8))
    found = "\n".join(examined(method, client_away("5"), tmp_path).findings)
    assert "dp_fedavg.train, round 101: call field 'x' differs, and no line covers it" in found
    assert "Sharing: promises nothing" in found  # nor do these rounds' raw replies have a cover


def test_a_release_without_a_line_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(Client, "release", lambda me, line: None)
    report = examined(fedavg.FedAvg(rounds=1, sgd=STEPS), record_gone("5"), tmp_path)
    assert any("was released more often than the ledger says" in f for f in report.findings)


def test_a_compressed_update_is_covered_too(tmp_path):
    method = CLFL(rounds=2, per_round=5, clip=0.2, z=0.8, sgd=SGD(lr=0.5, batch=8))
    for each, twin in [
        (method, client_away("5")),
        (fedavg.FedAvg(rounds=2, sgd=STEPS), record_gone("5")),
    ]:
        report = examined(each, twin, tmp_path, compress=Compressor.of("binary:0.3"))
        assert report, "\n".join(report.findings)
        assert min(report.needed.values()) > 0.3
