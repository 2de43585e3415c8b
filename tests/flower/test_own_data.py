"""What a site tells of its own data before anybody asks: nothing that one record decides."""

from dataclasses import replace

import pytest
from hospitals import NAMES

from tacit import privacy
from tacit.apps.site import Site
from tacit.cli.main import call
from tacit.core import BadInput
from tacit.data import load
from tacit.experiment.rundir import RunDir

RARE = 7  # the only patient with a rare disease


def visits(folder, rare=True):
    kinds = ["rare" if rare and i == RARE else "flu" for i in range(60)]
    lines = "".join(f"{i},{kind}\n" for i, kind in enumerate(kinds))
    (folder / "visits.csv").write_text("age,label\n" + lines)
    return folder / "visits.csv"


def join(*more, data="visits.csv"):
    network = ["--server", "127.0.0.1:9", "--name", "a", "--insecure", "--patience", "1"]
    return call(["join", *network, "--accept", "anything", "--data", data, *more])


def said(capsys):
    (line,) = capsys.readouterr().err.splitlines()
    return line.removeprefix("tacit: ")


def test_a_site_must_state_its_classes(offline, tmp_path, capsys):
    visits(tmp_path)
    assert join() == 2
    line = said(capsys)
    assert line.startswith("--classes: ")
    assert "--classes NAME,NAME,..." in line
    assert "rare" not in line
    assert not (tmp_path / "sites").exists()


def test_a_label_that_was_not_stated_stays_at_the_site(offline, tmp_path, capsys):
    visits(tmp_path)
    assert join("--classes", "flu,cold") == 2
    assert said(capsys).startswith("visits.csv line 9: label 'rare': must be one of the classes")
    assert not (tmp_path / "sites").exists()


@pytest.mark.usefixtures("offline")
def test_a_site_whose_classes_are_stated_goes_on_to_connect(tmp_path):
    visits(tmp_path)
    for more in (["--classes", "rare,flu,cold"], ["--classes", "cold,flu,rare", "--part", "0/2"]):
        with pytest.raises(AssertionError, match="tried to connect"):
            join(*more)
    with pytest.raises(AssertionError, match="tried to connect"):
        join(data="digits")


def test_one_record_does_not_change_what_a_site_tells(tmp_path):
    facts = []
    for rare in (True, False):
        data = load(str(visits(tmp_path, rare)), classes="cold,flu,rare")
        facts.append(Site("a", data, tmp_path / "store").facts())
    # the record may be held out or not, which is its own affair; sizes are public
    assert replace(facts[0], examples=1, tests=0) == replace(facts[1], examples=1, tests=0)
    assert facts[0].classes == ("cold", "flu", "rare")
    assert facts[0].examples + facts[0].tests == 60
    assert abs(facts[0].examples - facts[1].examples) <= 1


def test_a_site_refuses_to_tell_classes_that_its_data_decide(tmp_path):
    data = load(str(visits(tmp_path)))
    with pytest.raises(BadInput, match="classes: must be stated"):
        Site("a", data, tmp_path / "store")


@pytest.mark.flower
@pytest.mark.timeout(200)
def test_sites_with_files_of_their_own_train_one_model(hospitals):
    """Only the first has a patient with the rare disease, and no other needs to."""
    at = hospitals
    for name in NAMES:
        data = visits(at.folder / name, rare=name == NAMES[0])
        at.join(name, data=data, classes="cold,flu,rare", metrics="none", split=None, part=None)
    experiment = at.experiment("moments", 1, more="epsilon = 3.0")
    assert at.serve(experiment).wait(timeout=150) == 0, at.log("run")
    spent = RunDir.open(at.folder / "run").ledger()
    assert {line.owner for line in spent} == {"0", "1", "2"}
    costs = privacy.epsilon(spent, unit="example", observer="server", delta=1e-5)
    assert costs == pytest.approx(3.0)
