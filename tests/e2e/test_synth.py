"""`tacit synth` and `--augment dafl`, the way a user runs them."""

import hashlib
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from tacit import privacy
from tacit.cli.main import call
from tacit.data import load
from tacit.experiment.synth import synthesise
from tacit.synthesis.source import Source


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_synthetic_set_comes_with_its_certificate_and_can_be_used_as_data(capsys):
    assert call(["synth", "digits", "--epsilon", "2", "--samples", "200", "--out", "made"]) == 0
    out = capsys.readouterr().out
    assert "200 synthetic examples of digits" in out
    assert "eps 2 (zero-out)" in out
    certificate = json.loads(Path("made/certificate.json").read_text())
    blob = Path("made/synthetic.npz").read_bytes()
    assert certificate["sha256"] == hashlib.sha256(blob).hexdigest()
    assert certificate["epsilon"]["zero-out"] == pytest.approx(2.0, rel=1e-6)
    assert certificate["epsilon"]["replace"] > 2
    assert {line["event"]["kind"] for line in certificate["releases"]} == {"Gaussian"}
    made = np.load("made/synthetic.npz")
    assert made["x"].shape == (200, 1, 8, 8)
    assert np.bincount(made["y"], minlength=10).sum() == 200
    assert Path("made/sheet.png").stat().st_size > 1000
    assert (
        call(["run", "fedavg", "--data", "made/synthetic.npz", "--rounds", "1", "--workers", "0"])
        == 0
    )


def test_a_gan_costs_its_labels_too(capsys):
    args = [
        "--generator",
        "gan",
        "--gan.epochs",
        "1",
        "--gan.width",
        "4",
        "--gan.batch",
        "400",
        "--samples",
        "20",
    ]
    assert call(["synth", "digits", "--epsilon", "3", *args, "--out", "made"]) == 0
    certificate = json.loads(Path("made/certificate.json").read_text())
    assert {line["event"]["kind"] for line in certificate["releases"]} == {"Pure", "Gaussian"}
    assert 2 < certificate["epsilon"]["zero-out"] <= 3
    assert len(np.load("made/synthetic.npz")["y"]) == 20


def rare_disease(folder: Path) -> Path:
    """A table in which one patient alone has a disease."""
    lines = "".join(f"{i / 60},{'rare' if i == 7 else 'flu'}\n" for i in range(60))
    (folder / "visits.csv").write_text("age,label\n" + lines)
    return folder / "visits.csv"


def test_a_published_copy_needs_classes_that_no_patient_decides(tmp_path, capsys):
    """The synthetic file names its classes, whether there are samples of them or not."""
    rare_disease(tmp_path)
    assert call(["synth", "visits.csv", "--samples", "20", "--out", "made"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--classes: needed" in line
    assert "rare" not in line
    named = ["--classes", "cold,flu,rare"]
    assert call(["synth", "visits.csv", "--samples", "20", "--out", "made", *named]) == 0
    assert np.load("made/synthetic.npz")["classes"].tolist() == ["cold", "flu", "rare"]
    assert json.loads(Path("made/certificate.json").read_text())["epsilon"]["zero-out"] <= 1
    assert call(["synth", "visits.csv", "--classes", "cold,flu"]) == 2
    assert "visits.csv line 9: label 'rare'" in capsys.readouterr().err


def test_from_python_classes_that_data_decide_cost_infinity(tmp_path):
    found = load(str(rare_disease(tmp_path)))
    made = synthesise(found, Source(), samples=20, noise="seeded")
    assert made.epsilons()["zero-out"] == math.inf
    assert "classes are those found in the data" in privacy.reason(made.ledger)
    stated = load("visits.csv", classes="cold,flu,rare")
    made = synthesise(stated, Source(), samples=20, noise="seeded")
    assert made.epsilons()["zero-out"] == pytest.approx(1.0)


def test_seeded_noise_gives_the_same_set_twice():
    for out in ("a", "b"):
        assert call(["synth", "digits", "--samples", "30", "--noise", "seeded", "--out", out]) == 0
    assert (np.load("a/synthetic.npz")["x"] == np.load("b/synthetic.npz")["x"]).all()


def test_a_folder_that_is_taken_is_refused(capsys):
    for code in (0, 2):
        assert call(["synth", "digits", "--samples", "10", "--out", "made"]) == code
    assert "there is a synthetic set already" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flag", ["--epsilon=0", "--samples=-1", "--delta=1", "--generator=vae", "--gan.batch=0"]
)
def test_bad_input_is_one_line(flag, capsys):
    assert call(["synth", "digits", flag]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_augment_puts_dafl_in_front_of_another_method(capsys):
    args = ["--split", "label:1", "--rounds", "2", "--workers", "0", "--out", "made"]
    assert (
        call(["run", "fedprox", "--mu", "0.5", "--augment", "dafl", "--gamma", "0.5", *args]) == 0
    )
    out = capsys.readouterr().out
    assert "eps 1 for one example zeroed out against the server" in out
    assert re.search(r'method = "fedprox:rounds=2,.*mu=0.5"', Path("made/config.toml").read_text())


def test_a_method_with_a_mode_of_its_own_takes_prefixed_flags(capsys):
    args = ["--split", "label:1", "--rounds", "1", "--workers", "0"]
    assert call(["run", "ldp_fl", "--augment", "dafl", "--dafl.gamma", "0.5", *args]) == 0
    assert "dafl: accuracy" in capsys.readouterr().out
