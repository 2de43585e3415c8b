"""What a site's owner has agreed to, and nothing else, may be asked of the site."""

import math
from dataclasses import replace

import pytest
from asking import CHARTER, X, a_site, ask, ledger, refusal
from sandbox import Sandbox, small

from tacit import privacy
from tacit.apps.policy import (
    ANYTHING,
    PolicyFile,
    Refused,
    _from_file,
    from_experiment,
    read_policy,
)
from tacit.codec import unpack
from tacit.core import BadInput, BudgetReached, Known
from tacit.experiment.config import Experiment, Setting
from tacit.experiment.drive import drive
from tacit.experiment.sites import tally
from tacit.local.sgd import SGD
from tacit.methods import METHODS, ditto, ldp_fl
from tacit.methods.dafl import DAFL, synthesise
from tacit.methods.ditto import Ditto, Own
from tacit.methods.fedavg import FedAvg, train
from tacit.methods.fedmix import share_means
from tacit.methods.fedprox import FedProx
from tacit.methods.fedprox import train as prox_train
from tacit.methods.kd_dpfl import KDDPFL
from tacit.methods.kd_dpfl import train as kd_train
from tacit.methods.ldp_fl import LDPFL
from tacit.methods.scaffold import train as scaffold_train
from tacit.synthesis.augment import Augment

PRIVATE = SGD(clip=1.0, z=2.0, batch=4)
SEEN = Experiment(FedAvg(rounds=3, sgd=PRIVATE), Setting(model="mlp"))


def asked(method, folder):
    """Return all calls that a method makes in a small world, as sites get them."""
    box = Sandbox(folder)
    solved = method.solved(box.federation(method).sizes(), dict.fromkeys("012345", 2), 1e-5)
    engine, calls = box.serial(solved), []
    exchange = engine.exchange

    def noted(kind, call, heads):
        calls.extend((unpack(call, known=True), head.round) for head in heads[:1])
        return exchange(kind, call, heads)

    engine.exchange = noted
    drive(solved, engine, solved.init(box.x0))
    return calls


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"centralised"}))
def test_an_experiment_that_was_accepted_can_be_run(name, tmp_path):
    method = small(name, 2)
    policy = from_experiment(Experiment(method, Setting(model="mlp")), X, 12)
    calls = asked(method, tmp_path)
    assert calls
    for call, round in calls:
        policy.allows(call, round)
    assert name in policy.words()


@pytest.mark.parametrize(
    ("name", "how"), [("udp", {"discount": 0.5}), ("dp_scaffold", {"warm": True})]
)
def test_what_a_paper_does_besides_can_be_run_where_it_was_accepted(name, how, tmp_path):
    method = replace(small(name, 2), mode="paper", **how)
    policy = from_experiment(Experiment(method, Setting(model="mlp")), X, 12)
    for call, round in asked(method, tmp_path):
        policy.allows(call, round)


AT_EPSILON = {
    "fedavg": {"sgd": SGD(batch=100, clip=1.0)},
    "scaffold": {"sgd": SGD(batch=100, clip=1.0)},
    "dp_scaffold": {},
    "prifedsync": {},
    "dafl": {},
    "gfl": {"sgd": SGD(batch=100, clip=1.0)},
    "kd_dpfl": {"large_join": True},
}


@pytest.mark.parametrize("name", AT_EPSILON)
def test_an_experiment_with_one_epsilon_can_be_run_and_keeps_to_it(name, tmp_path):
    """What a method solves from it depends on other sites too, so no site knows it beforehand."""
    method = replace(small(name, 2), epsilon=3.0, **AT_EPSILON[name])
    policy = from_experiment(Experiment(method, Setting(model="mlp")), X, 12)
    for call, round in asked(method, tmp_path):
        policy.allows(call, round)
    assert policy.run_budget < 6.0


def test_less_noise_than_usual_may_be_what_a_large_epsilon_asks_for():
    method = small("dp_scaffold", 2)
    usual = method.sgd.z
    dear = replace(method, epsilon=50.0).solved({"0": 12}, {"0": 2}, 1e-5)
    policy = from_experiment(Experiment(replace(method, epsilon=50.0), Setting()), X, 12)
    assert 0 < dear.sgd.z < usual
    policy.allows(scaffold_train(x=X, c=X, sgd=dear.sgd))


@pytest.mark.parametrize("join", [True, False])
def test_a_site_of_two_kinds_that_accepted_an_epsilon_spends_no_more(join, tmp_path):
    """An epsilon of a phase is solved and may be any: who asks for 100, or lies, gets no more."""
    seen = KDDPFL(rounds=3, large_join=join)
    policy = from_experiment(Experiment(seen, Setting(model="mlp")), X, 12)
    site = a_site(tmp_path, policy=policy, noise="os")
    how = {"x": X, "eps_pri": 1.0, "delta": 1e-5}
    if join:
        dear = replace(seen, eps_1=1.0, eps_2=100.0)
        with pytest.raises(BudgetReached):
            ask(site, kd_train(method=dear, K={"1": 3}, **how))
    ask(site, kd_train(method=seen, K={"1": 1}, **how))  # as if there were one round alone
    with pytest.raises(BudgetReached):
        ask(site, kd_train(method=seen, K={"1": 1}, **how), 1)


def test_settings_that_follow_a_rule_may_be_any_and_the_mode_only_what_the_rule_makes_of_it():
    known = Known({"0": 100, "1": 12}, 1e-5, sum(v.numel() for v in X.values()))
    method = LDPFL(rounds=2)
    policy = from_experiment(Experiment(method, Setting()), X, 12, linear=True)
    chosen = method.tuned(known)
    how = {"K": 2, "q": 1.0, "delta": 1e-5}
    policy.allows(ldp_fl.train(x=X, method=chosen, **how))
    for mode in ("paper", "update", "dp-sgd"):
        other = replace(chosen, mode=mode, weights="alike")
        with pytest.raises(Refused, match=f"policy: mode = {mode}: must be auto or gradient"):
            policy.allows(ldp_fl.train(x=X, method=other, **how))
    with pytest.raises(Refused, match="policy: epsilon = 9"):
        policy.allows(ldp_fl.train(x=X, method=replace(chosen, epsilon=9.0), **how))


def test_what_kd_dpfl_chooses_may_be_any_and_what_is_sent_only_what_the_rule_makes_of_it():
    known = Known({"0": 100, "1": 12}, 1e-5, sum(v.numel() for v in X.values()))
    method = KDDPFL(rounds=2)
    policy = from_experiment(Experiment(method, Setting()), X, 12, linear=True)
    chosen, how = method.tuned(known), {"eps_pri": 1.0, "K": {"1": 2}, "delta": 1e-5}
    policy.allows(kd_train(x=X, method=chosen, **how))
    for other, why in (({"send": "dp-sgd"}, "send = dp-sgd: must be auto or gradient"),
                       ({"epsilon": 9.0}, "epsilon = 9")):  # fmt: skip
        with pytest.raises(Refused, match=f"policy: {why}"):
            policy.allows(kd_train(x=X, method=replace(chosen, **other), **how))


def test_noise_that_is_solved_may_be_more_and_not_less():
    method = FedAvg(rounds=2, sgd=replace(PRIVATE, z=0.0, epsilon=3.0))
    policy = from_experiment(Experiment(method, Setting()), X, 12)
    assert policy.run_budget == pytest.approx(3.0, rel=0.5)
    assert policy.run_budget > 3.0  # one round may be done again
    policy.allows(train(x=X, sgd=replace(method.sgd, z=9.0)))
    given = from_experiment(SEEN, X, 12)
    given.allows(train(x=X, sgd=replace(PRIVATE, z=9.0)))
    with pytest.raises(Refused, match=r"policy: z = 1\.9: must be at least 2"):
        given.allows(train(x=X, sgd=replace(PRIVATE, z=1.9)))


@pytest.mark.parametrize(
    ("call", "round", "why"),
    [
        (train(x=X, sgd=replace(PRIVATE, lr=1.0)), 0, r"policy: lr = 1\.0: must be 0\.05"),
        (train(x=X, sgd=replace(PRIVATE, batch=1)), 0, "policy: batch = 1: must be 4"),
        (train(x=X, sgd=replace(PRIVATE, weight_decay=1.0)), 0, "policy: weight_decay"),
        (train(x=X, sgd=SGD(batch=4)), 0, r"policy: clip = 0\.0: must be 1\.0|policy: z"),
        (train(x=X, sgd=PRIVATE), 3, "policy: round 4: at most 3"),
        (share_means(M=1), 0, r"policy: task = 'fedmix\.share_means': not one of fedavg"),
        (scaffold_train(x=X, c=X, sgd=PRIVATE), 0, r"policy: task = 'scaffold\.train'"),
    ],
)
def test_anything_else_is_refused_by_name(tmp_path, call, round, why):
    site = a_site(tmp_path, policy=from_experiment(SEEN, X, 12))
    ask(site, train(x=X, sgd=PRIVATE))
    with pytest.raises(Refused, match=why):
        ask(site, call, round)


def test_a_network_that_was_not_agreed_to_is_refused(tmp_path):
    site = a_site(tmp_path, policy=from_experiment(SEEN, X, 12))
    other = replace(CHARTER, model="linear")
    assert "policy: model = 'linear': must be mlp" in refusal(site, tally(x=X), charter=other)


def test_rounds_that_are_repeated_end_at_the_cost_that_was_foretold(tmp_path):
    """Fresh noise makes each repetition a further release; the owner agreed to three rounds."""
    policy = from_experiment(SEEN, X, 12)
    site = a_site(tmp_path, policy=policy, noise="os")
    for t in (0, 1, 2, 2):  # a coordinator that was killed does its last round again
        ask(site, train(x=X, sgd=PRIVATE), t)
    spent = privacy.epsilon(ledger(site), unit="example", observer="server", delta=1e-5)
    assert spent <= policy.run_budget
    with pytest.raises(BudgetReached):
        ask(site, train(x=X, sgd=PRIVATE), 2)


def test_a_larger_delta_makes_no_room_for_more_rounds(tmp_path):
    """The owner has seen a delta of 1e-5; at 0.5 a hundred repetitions would be within its cost."""
    site = a_site(tmp_path, policy=from_experiment(SEEN, X, 12), noise="os")
    loose = replace(CHARTER, delta=0.5)
    for t in (0, 1, 2, 2):
        ask(site, train(x=X, sgd=PRIVATE), t, charter=loose)
    with pytest.raises(BudgetReached, match="delta 1e-05"):
        ask(site, train(x=X, sgd=PRIVATE), 2, charter=loose)


def test_without_agreement_nothing_is_told(tmp_path):
    site = a_site(tmp_path, policy=None)
    assert "agreed to nothing" in refusal(site, train(x=X, sgd=PRIVATE))
    assert not list(tmp_path.rglob("*"))


FILE = """
methods = ["fedavg", "fedprox"]
networks = ["mlp"]
rounds = 20
budget = 8.0
metrics = "none"
[bounds]
clip = [0.1, 10]
z = [0.5, inf]
lr = [0.001, 1.0]
batch = [1, 512]
"""


def test_a_policy_file_in_words(tmp_path):
    file = tmp_path / "policy.toml"
    file.write_text(FILE)
    policy = read_policy(file, X)
    said = policy.words()
    for words in (
        "the coordinator may ask for fedavg or fedprox with DP-SGD, clip 0.1 to 10, z at least 0.5",
        "lr 0.001 to 1, batch 1 to 512",
        "network mlp",
        "at most 20 rounds",
        "at most 8 of epsilon in all",
        "nothing else",
    ):
        assert words in said
    policy.allows(train(x=X, sgd=SGD(clip=1.0, z=1.0, batch=8, lr=0.5)))
    policy.allows(prox_train(x=X, mu=FedProx().mu, sgd=SGD(clip=1.0, z=1.0)))
    for sgd, why in (
        (SGD(), "clip"),
        (SGD(clip=20.0, z=1.0), "clip = 20.0: must be 0.1 to 10"),
        (SGD(clip=1.0, z=0.4), "z = 0.4: must be at least 0.5"),
        (SGD(clip=1.0, z=1.0, momentum=0.9), "momentum = 0.9: must be 0.0, as agreed"),
    ):
        with pytest.raises(Refused) as e:
            policy.allows(train(x=X, sgd=sgd))
        assert why in str(e.value)


def test_a_policy_file_bounds_what_a_method_chooses(tmp_path):
    file = tmp_path / "policy.toml"
    bounds = "lr = [0, 100]\nclip = [0, 1]\nmomentum = [0, 0.9]"
    file.write_text(f'methods = ["ldp_fl"]\nmodes = ["gradient"]\n[bounds]\n{bounds}')
    policy = read_policy(file, X)
    numbers = sum(v.numel() for v in X.values())
    chosen = LDPFL(rounds=2).tuned(Known({"0": 12, "1": 100}, 1e-5, numbers))
    how = {"x": X, "K": 2, "q": 1.0, "delta": 1e-5}
    policy.allows(ldp_fl.train(method=chosen, **how))
    for other in ({"clip": 2.0}, {"mode": "dp-sgd"}, {"epsilon": 9.0}):
        with pytest.raises(Refused, match=next(iter(other))):
            policy.allows(ldp_fl.train(method=replace(chosen, **other), **how))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("methods = []", "must name at least one method"),
        ('methods = ["fedavgg"]', "did you mean 'fedavg'"),
        ('methods = ["fedavg"]\nround = 3', "round"),
        ('methods = ["fedavg"]\n[bounds]\nlr = [1, 0]', "must be from low to high"),
        ('methods = ["fedavg"]\n[bounds]\nlearning = [0, 1]', "no method of this policy"),
        ('methods = ["fedavg"]\nbudget = -1', "budget"),
        ("methods = [", "not TOML"),
    ],
)
def test_a_policy_file_that_cannot_be_is_refused_in_one_line(tmp_path, text, why):
    file = tmp_path / "policy.toml"
    file.write_text(text)
    with pytest.raises(BadInput) as e:
        read_policy(file, X)
    assert why in str(e.value)
    assert str(e.value).startswith(f"{file}: ")
    assert "\n" not in str(e.value)


def test_an_open_method_has_no_bound_and_says_so():
    policy = from_experiment(Experiment(FedAvg(), Setting()), X, 12)
    assert policy.run_budget == math.inf
    assert "without any bound on epsilon" in policy.words()
    assert "DP-SGD" not in policy.words()
    assert "anything" in ANYTHING.words()


def test_the_model_of_the_last_round_may_be_measured_and_not_trained_on():
    """What was trained in the last round that was agreed to is asked about after that round."""
    policy = from_experiment(SEEN, X, 12)
    policy.allows(tally(x=X), 3)
    with pytest.raises(Refused, match="policy: round 4: at most 3"):
        policy.allows(train(x=X, sgd=PRIVATE), 3)
    with pytest.raises(Refused, match="policy: round 5: at most 3"):
        policy.allows(tally(x=X), 4)


def test_parts_of_settings_are_held_to_what_was_agreed_of_the_method(tmp_path):
    file = tmp_path / "policy.toml"
    file.write_text('methods = ["dafl"]\nmodes = ["certified"]\n')
    with pytest.raises(Refused, match="mode = paper: must be certified, as agreed"):
        read_policy(file, X).allows(synthesise(how=Augment(mode="paper"), delta=1e-5))


def test_training_that_no_rule_chooses_is_as_it_was_agreed_to():
    """Nothing of other sites can be a reason for other steps."""
    policy = from_experiment(Experiment(FedAvg(), Setting(data="digits")), X, 12)
    policy.allows(train(x=X, sgd=SGD()))
    for other in ({"lr": 5.0}, {"epochs": 100}, {"batch": 1}):
        with pytest.raises(Refused, match=next(iter(other))):
            policy.allows(train(x=X, sgd=SGD(**other)))


def test_steps_that_a_rule_chooses_from_all_sizes_may_be_any():
    method = FedAvg(sgd=replace(FedAvg().sgd, clip=1.0), epsilon=4.0)
    policy = from_experiment(Experiment(method, Setting(data="digits")), X, 12, linear=True)
    numbers = sum(v.numel() for v in X.values())
    many = {"0": 12, "1": 1000}
    chosen = method.tuned(Known(many, 1e-5, numbers)).solved(many, {"0": 20, "1": 20}, 1e-5)
    policy.allows(train(x=X, sgd=chosen.sgd))
    with pytest.raises(Refused, match="clip"):
        policy.allows(train(x=X, sgd=replace(chosen.sgd, clip=2.0)))
    with pytest.raises(Refused, match="epochs"):  # work, and no other site's size decides it
        policy.allows(train(x=X, sgd=replace(chosen.sgd, epochs=10**7)))


def test_training_of_ones_own_model_opens_nothing_of_the_shared_one():
    sgd = SGD(clip=1.0, z=2.0, batch=4)
    policy = from_experiment(Experiment(Ditto(rounds=3, sgd=sgd), Setting(model="mlp")), X, 12)
    own = Own(0.05, 1, 4)
    policy.allows(ditto.train(x=X, lam=0.1, sgd=sgd, own=own))
    for other in ({"z": 0.5}, {"clip": 0.0, "z": 0.0}, {"lr": 9.0}, {"batch": 32}):
        with pytest.raises(Refused):
            policy.allows(ditto.train(x=X, lam=0.1, sgd=replace(sgd, **other), own=own))
    with pytest.raises(Refused, match="epochs"):
        policy.allows(ditto.train(x=X, lam=0.1, sgd=sgd, own=replace(own, epochs=10**6)))
    plain = from_experiment(Experiment(Ditto(rounds=3), Setting(model="mlp")), X, 12)
    with pytest.raises(Refused, match="lr"):
        plain.allows(ditto.train(x=X, lam=0.1, sgd=SGD(lr=1e6), own=Own(0.05, 1, 32)))


def test_a_policy_file_takes_dafl_with_the_usual_training():
    policy = _from_file(PolicyFile(["dafl"]), X)
    policy.allows(train(x=X, sgd=SGD()))
    with pytest.raises(Refused, match="epochs"):
        policy.allows(train(x=X, sgd=SGD(epochs=10**6)))
    agreed = from_experiment(Experiment(DAFL(rounds=3), Setting(model="mlp")), X, 12)
    with pytest.raises(Refused, match="epochs"):
        agreed.allows(train(x=X, sgd=SGD(epochs=10**6)))
