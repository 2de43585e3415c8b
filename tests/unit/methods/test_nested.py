"""A method inside a method is an object: read once, written, found again, its state marked."""

import tomllib
from dataclasses import dataclass, field, replace

import pytest

import tacit
from tacit.cli.main import call
from tacit.codec import same
from tacit.core import BadInput, Method, Nested
from tacit.core.own_code import trusted
from tacit.experiment.config import Experiment, experiment_from, to_toml
from tacit.experiment.drive import drive
from tacit.local.sgd import SGD
from tacit.methods import spec
from tacit.methods.dafl import DAFL
from tacit.methods.fedavg import FedAvg
from tacit.methods.fedmix import FedMix
from tacit.methods.fedprox import FedProx
from tacit.methods.ldp_fl import LDPFL
from tacit.methods.scaffold import Scaffold
from tacit.methods.spec import as_method, method_from, method_from_spec, spec_of
from tacit.synthesis.augment import Augment
from tacit.testing.settings import settings_survive

SLOWER = SGD(lr=0.1, epochs="auto", batch="auto")  # all else is as DA-FL has it
MIXED = DAFL(method=FedMix(lam=0.3, M=4), rounds=7, sgd=SLOWER)


@pytest.mark.parametrize(
    "method",
    [
        MIXED,
        DAFL(method=LDPFL(mode="update", epsilons=(1.0, 2.0))),  # quotes and commas inside
        DAFL.in_front_of(FedProx(mu=0.5, rounds=3, sgd=SGD(batch=8)), Augment(main="open")),
    ],
    ids=["two settings", "a word and a list", "augmented"],
)
def test_settings_of_an_inner_method_survive_a_file_and_a_word(method):
    assert settings_survive(method) == []


def test_an_inner_method_is_read_as_a_word_or_as_a_table():
    table = {"name": "fedmix", "lam": 0.3, "M": 4}
    given = {"name": "dafl", "rounds": 7, "sgd": {"lr": 0.1}}
    assert method_from(given | {"method": table}) == MIXED
    assert method_from(given | {"method": "fedmix:lam=0.3,M=4"}) == MIXED
    assert method_from_spec('dafl:method="fedmix:lam=0.3,M=4",rounds=7,sgd.lr=0.1') == MIXED
    dotted = "dafl:method.name=fedmix,method.lam=0.3,method.M=4,rounds=7,sgd.lr=0.1"
    assert method_from_spec(dotted) == MIXED
    assert tomllib.loads(to_toml(Experiment(MIXED)))["method"]["method"].startswith("fedmix:")


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("dafl:method=fedpox", ["method = 'fedpox'", "did you mean 'fedprox'?"]),
        ("dafl:method=fedprox:nu=1.0", ["key = 'nu'", "mu"]),
        ("dafl:method=moments", ["method = 'moments'", "in every round"]),
        ("dafl:method=5", ["method = 5", "must be a table"]),
        ("fedavg:sgd=1,sgd.lr=2", ["sgd has a value already, 1"]),
    ],
)
def test_a_wrong_inner_method_is_refused_in_one_line(word, says):
    with pytest.raises(BadInput) as e:
        method_from_spec(word)
    assert all(part in str(e.value) for part in says), str(e.value)
    assert "\n" not in str(e.value)


def test_an_inner_method_is_an_instance():
    with pytest.raises(BadInput, match=r"method = 'scaffold': must be an instance of a method"):
        DAFL(method="scaffold")


def test_the_inner_method_trains_as_the_outer_one_says():
    longer = replace(DAFL(method=Scaffold(), rounds=3, sgd=SGD(lr=0.1)), rounds=9)
    assert longer.method == Scaffold(rounds=9, sgd=SGD(lr=0.1))


def test_no_word_is_read_after_the_beginning(sandbox, monkeypatch):
    method = method_from_spec("dafl:method=fedprox:mu=0.5,gamma=1.0,rounds=2")

    def refuse(word):
        raise AssertionError(f"{word} was read again")

    monkeypatch.setattr(spec, "method_from", refuse)
    s = drive(method, sandbox.serial(method), method.init(sandbox.x0))
    assert s.round == 2
    assert method.innermost(s)[0] == FedProx(mu=0.5, rounds=2)


# ---- states


def test_a_nested_state_says_whose_it_is_and_opens_for_nobody_else(sandbox):
    method = DAFL(method=Scaffold(), gamma=1.0, rounds=2)
    s = drive(method, sandbox.serial(method), method.init(sandbox.x0))
    assert s.inner.method == "tacit.methods.scaffold:Scaffold"
    assert s.inner.opened_by(Scaffold()).round == s.round == 2
    assert same(s.x, s.inner.state.x)
    other = DAFL(method=FedAvg(), gamma=1.0, rounds=4)
    with pytest.raises(BadInput, match=r"is one of tacit.methods.scaffold:Scaffold, not of .*Fed"):
        drive(other, sandbox.serial(other), s)


@dataclass(frozen=True)
class Mine(FedAvg):
    pass


@dataclass(frozen=True)
class Around(FedAvg):
    """A method of somebody's with one inside it: nothing here is special to DA-FL."""

    first: Method = field(default_factory=FedAvg)


def test_a_method_of_ones_own_may_be_inside_and_around():
    outer = as_method(Around(first=Mine(rounds=2)))
    assert trusted(__name__)
    assert Nested.of(outer.first, outer.first.init(None)).method == f"{__name__}:Mine"
    back = experiment_from(tomllib.loads(to_toml(Experiment(outer)))).method
    assert back == outer == method_from_spec(spec_of(outer))


# ---- the command line and whole runs

QUICK = {"split": "label:1", "clients": 4, "workers": 0, "noise": "seeded", "seed": 3}


def test_a_run_with_an_inner_method_goes_on_and_is_the_same_as_if_it_had_not_stopped(tmp_path):
    word = 'dafl:method="fedmix:lam=0.3,M=4",gamma=0.2,rounds={}'
    tacit.run(word.format(1), out=tmp_path / "a", **QUICK)
    more = tacit.resume(tmp_path / "a", rounds=2)
    whole = tacit.run(word.format(2), out=tmp_path / "b", **QUICK)
    assert more.experiment == whole.experiment
    assert more.experiment.method.method == FedMix(lam=0.3, M=4, rounds=2)
    assert same(more.final["accuracy"], whole.final["accuracy"])


def test_flags_take_an_inner_method_and_help_shows_it(tmp_path, capsys):
    args = ["--rounds", "5", "--split", "label:1", "--main", "open"]
    assert call(["privacy", "dafl", "--method", "fedprox:mu=0.5", *args]) == 0
    assert "5 rounds" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        call(["run", "dafl", "--help"])
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "--method METHOD" in shown
    assert "(default: fedavg)" in shown
    assert "--method.mu" not in shown


def test_a_wrong_inner_method_of_a_flag_is_refused_in_one_line(capsys):
    assert call(["run", "dafl", "--method", "fedprox:nu=1"]) == 2
    said = capsys.readouterr().err.strip()
    assert "'nu'" in said
    assert len(said.splitlines()) == 1
