"""Before anything starts, the owner of a site has seen what is asked, and has agreed."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest
from asking import X, a_site, records, refusal

from tacit.apps.policy import ANYTHING, Refused
from tacit.cli.agreeing import agreed, ask_owner, in_words
from tacit.cli.join import JoinFlags
from tacit.cli.main import call
from tacit.core import BadInput
from tacit.engines.flower import letter, opened, packed
from tacit.experiment.config import Experiment, Setting, to_toml
from tacit.local.sgd import SGD
from tacit.methods.fedavg import FedAvg, train

PRIVATE = SGD(clip=1.0, z=2.0, batch=4)
TOLD = to_toml(Experiment(FedAvg(rounds=3, sgd=PRIVATE), Setting(model="mlp")))
FLAGS = JoinFlags("127.0.0.1:9", "a", "digits")


@pytest.fixture
def answers(monkeypatch):
    """What the owner says at the terminal, one after the other."""
    said = []
    monkeypatch.setattr("builtins.input", lambda question: said.pop(0))
    return said


def greeted(site, text):
    return opened(site.reply(letter("hello", {"experiment": text}, packed(b""))), 1 << 20)


def asking(site, left=None):
    left = [] if left is None else left
    data = site.dataset
    site.agree = lambda text: ask_owner(FLAGS, data, 12, lambda: left.append(1), text)
    return left


def test_an_owner_sees_the_experiment_and_agrees(tmp_path, answers, capsys):
    site = a_site(tmp_path, policy=None)
    asking(site)
    answers.append("y")
    kind, about, _ = greeted(site, TOLD)
    assert (kind, about["facts"]["examples"]) == ("answer", 12)
    shown = capsys.readouterr().out
    assert 'name = "fedavg"' in shown
    assert "may ask for fedavg with DP-SGD, clip 1, z at least 2" in shown
    assert refusal(site, train(x=X, sgd=PRIVATE)) is None
    assert "policy: lr" in refusal(site, train(x=X, sgd=replace(PRIVATE, lr=1.0)), 1)
    # another run that a coordinator tells of is another matter: what was agreed to stays
    greeted(site, TOLD.replace("rounds = 3", "rounds = 300"))
    assert "policy: round 4" in refusal(site, train(x=X, sgd=PRIVATE), 3)


@pytest.mark.parametrize("word", ["n", "", "what?"])
def test_an_owner_who_does_not_agree_tells_nothing_and_leaves(tmp_path, answers, word):
    site = a_site(tmp_path, policy=None)
    left = asking(site)
    answers.append(word)
    kind, about, _ = greeted(site, TOLD)
    assert kind == "refused"
    assert "does not agree" in about["why"]
    assert "facts" not in about
    assert left == [1]
    assert "agreed to nothing" in refusal(site, train(x=X, sgd=PRIVATE))


def test_ctrl_c_at_the_question_is_a_no(tmp_path, monkeypatch):
    def interrupted(question):
        signal.raise_signal(signal.SIGINT)
        return "y"

    monkeypatch.setattr("builtins.input", interrupted)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Refused, match="does not agree"):
        ask_owner(FLAGS, records(), 12, lambda: None, TOLD)
    assert signal.getsignal(signal.SIGINT) is before


EVIL = """
from pathlib import Path
Path("touched").touch()
class Net: pass
"""


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('model = "mlp"', 'model = "EVIL:Net"', "names code"),
        ('name = "fedavg"', 'name = "EVIL:Net"', "names code"),
        ('name = "fedavg"', 'name = "evil:Net"', "names code"),
        ('compress = "none"', 'compress = "os:system"', "names code"),
        ("rounds = 3", 'rounds = 3\ninner = {name = "EVIL:Net"}', "names code"),
        ('name = "fedavg"', 'name = "fedavgg"', "did you mean"),
        ("rounds = 3", "rounds = -3", "rounds"),
        ("[method]", "[method", "not TOML"),
    ],
)
def test_what_a_coordinator_tells_runs_no_code(tmp_path, monkeypatch, old, new, why):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text(EVIL)
    text = TOLD.replace(old, new.replace("EVIL", str(tmp_path / "evil.py")))
    assert text != TOLD
    with pytest.raises(BadInput) as e:
        ask_owner(FLAGS, records(), 12, lambda: None, text)
    assert why in str(e.value)
    assert not Path("touched").exists()


def test_what_is_shown_cannot_command_the_terminal(answers, capsys):
    answers.append("n")
    with pytest.raises(Refused):
        ask_owner(FLAGS, records(), 12, lambda: None, TOLD + "# \x9b2Jgone\n")
    assert "\x9b" not in capsys.readouterr().out


@pytest.fixture
def seen(offline, tmp_path):
    """A folder with the experiment that the owner has seen, and no coordinator to reach."""
    (tmp_path / "seen.toml").write_text('[method]\nname = "fedavg"\n')


def join(*more):
    network = ["--server", "127.0.0.1:9", "--name", "a", "--insecure", "--patience", "1"]
    return call(["join", *network, "--data", "digits", *more])


@pytest.mark.usefixtures("seen")
@pytest.mark.parametrize(
    ("more", "why"),
    [
        ([], "--accept: needed where there is no terminal"),
        (["--accept", "seen.toml", "--policy", "p.toml"], "--accept: contradicts --policy"),
        (["--accept", "none.toml"], "none.toml: cannot be read"),
        (["--policy", "none.toml"], "none.toml: cannot be read"),
    ],
)
def test_without_agreement_a_site_does_not_connect(capsys, monkeypatch, more, why):
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    assert join(*more) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert why in said
    assert not Path("sites").exists()


@pytest.mark.usefixtures("seen")
def test_the_policy_is_said_before_anything_starts(capsys):
    with pytest.raises(AssertionError, match="tried to connect"):
        join("--accept", "seen.toml", "--budget", "8", "--metrics", "none")
    said = capsys.readouterr().out
    assert "the coordinator may ask for fedavg" in said
    assert "nothing else; --budget 8 over all runs; metrics: none" in said


def test_flags_that_state_a_policy(tmp_path):
    assert agreed(replace(FLAGS, accept="anything"), records(), 12) is ANYTHING
    assert in_words(ANYTHING, FLAGS).endswith("metrics: exact")
