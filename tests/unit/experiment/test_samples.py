"""A figure that rests on sampled clients assumes that nobody can tell who they are.

No message may say it.
"""

from dataclasses import replace

from sandbox import SIZES, Sandbox, small

from tacit.experiment.calibration import calibrated
from tacit.experiment.drive import drive
from tacit.local.sgd import SGD
from tacit.methods import METHODS
from tacit.methods.fedavg import FedAvg


def first_round(sandbox: Sandbox, method, sample_seed):
    """Return the calls of the first round, who got them, and the ledger."""
    calls, asked = [], []
    engine = sandbox.serial(method, sample_seed=sample_seed)
    exchange = engine.exchange

    def heard(kind, call, heads):
        calls.append(call)
        asked.append([h.client for h in heads])
        return exchange(kind, call, heads)

    engine.exchange = heard
    drive(method, engine, method.init(sandbox.x0), stop_after=1)
    return calls, asked, engine.ledger


def test_no_call_tells_who_is_sampled_where_that_must_be_secret(sandbox, one_thread):
    amplified = set()
    for name in METHODS:
        method = small(name, 1)
        calls, asked, ledger = first_round(sandbox, method, 1)
        if any(line.unit == "client" and line.sampling.law != "everyone" for line in ledger):
            amplified.add(name)
            others = [first_round(sandbox, method, seed) for seed in range(2, 6)]
            assert any(other[1] != asked for other in others)
            assert all(other[0] == calls for other in others), name
    assert {"dp_fedavg", "cl_fl"} <= amplified


class AgainstClients(FedAvg):
    """Stands for a method whose sample is a secret and that takes a clip."""

    protects = ("client", "clients")


def test_noise_does_not_tell_of_a_secret_sample():
    sizes = {str(i): n for i, n in enumerate(SIZES)}
    sgd = SGD(clip=1.0, epsilon=2.0, batch=100)  # everybody, so that no accountant takes long

    def noise(method, seed):
        return calibrated(method, sizes, 1e-5, seed).sgd.z

    # private against the server, which knows the sample
    known = FedAvg(rounds=4, per_round=2, sgd=sgd)
    assert len({noise(known, seed) for seed in range(4)}) > 1
    secret = AgainstClients(rounds=4, per_round=2, sgd=sgd)
    assert {noise(secret, seed) for seed in range(4)} == {noise(replace(known, per_round=0), 0)}
