"""A report shows synthetic sets and what attacks have found, beside runs or alone."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from rundirs import write_run

import tacit
from tacit.attacks import from_scores
from tacit.core import BadInput
from tacit.experiment.about import starts
from tacit.experiment.samples import read_samples
from tacit.report.audits import Audit, audit_of, read_audits, write_audits
from tacit.report.page import write_report
from tacit.report.pictures import SIDE, tiles_of

# of four members and four others; the attack finds two members before it suspects anybody else
OUTCOME = from_scores([9, 8, 3, 2], [7, 4, 1, 0])


def write_synthetic(folder, **more):
    said = {"samples": 12, "data": "digits<b>", "why": "Gaussian(z = 4)"}
    said |= {"epsilon": {"zero-out": 0.9991, "replace": "inf"}} | more
    folder.mkdir(parents=True)
    (folder / "certificate.json").write_text(json.dumps(said))
    (folder / "sheet.png").write_bytes(b"\x89PNG and more")
    return folder


def text_of(*folders):
    return write_report(folders, folders[0] / "page.html").read_text(encoding="utf-8")


def test_a_synthetic_set_alone_is_shown(tmp_path):
    page = text_of(write_synthetic(tmp_path / "synth"))
    assert "12 samples of digits&lt;b&gt;" in page
    assert "1 (zero-out), inf (replace)" in page  # rounded up
    assert "data:image/png;base64," in page
    assert "Run by run" not in page


def test_synthetic_sets_are_shown_beside_runs_and_found_in_a_folder(tmp_path):
    write_synthetic(tmp_path / "all" / "synth")
    assert "12 samples" in text_of(tmp_path / "all")
    write_run(tmp_path / "all" / "run")
    page = text_of(tmp_path / "all")
    assert "12 samples" in page
    assert "Run by run" in page


def test_a_run_shows_the_samples_that_its_clients_have_shared(tmp_path):
    """DA-FL's pool is dealt out and gone; what the server had of it stands in the run's folder."""
    word = "dafl:gamma=0.5,pool_epsilon=3,rounds=1"
    how = {"engine": "serial", "noise": "seeded", "features": "none"}
    run = tacit.run(word, clients=3, out=tmp_path / "run", **how)
    made = read_samples(run.folder)
    with np.load(run.folder / "synthetic.npz") as arrays:
        assert len(made) == len(arrays["y"]) > 100
    assert made.x.shape[1:] == (1, 8, 8)
    page = text_of(run.folder)
    assert f"{len(made)} samples of digits; eps for one example: " in page
    assert "data:image/png;base64," in page
    (run.folder / "synthetic.npz").write_bytes(b"PK and nothing")
    assert "samples of digits" not in text_of(run.folder)


@pytest.mark.parametrize("word", ["dafl:gamma=0.2,rounds=1", "gfl:n_k=20,rounds=1"])
def test_samples_of_features_are_not_shown_as_pictures(word, tmp_path):
    run = tacit.run(word, clients=2, engine="serial", noise="seeded", out=tmp_path / "run")
    made = read_samples(run.folder)
    assert made.x.shape[1:] == (128,)
    with np.load(run.folder / "synthetic.npz") as arrays:
        assert str(arrays["features"]) == "hog"
    page = text_of(run.folder)
    assert f"{len(made)} samples of public features hog of digits; eps" in page
    assert "data:image/png;base64," not in page


@pytest.mark.parametrize("x", [np.zeros((3, 0)), np.zeros(3), np.zeros((3, 2, 4, 4)), ["a"] * 3])
def test_a_file_of_samples_that_are_no_images_is_no_failure(tmp_path, x):
    write_run(tmp_path / "run")
    np.savez(tmp_path / "run" / "synthetic.npz", x=x, y=np.array([0, -1, 10**9]))
    assert "data:image/png" not in text_of(tmp_path / "run")


@pytest.mark.parametrize(
    "x",
    [np.zeros((2, 1, 0, 8)), np.zeros((2, 1, 8, 8), np.complex64), np.full((2, 1, 8, 8), np.nan)],
)
def test_images_that_cannot_be_drawn_are_no_failure(tmp_path, x):
    write_run(tmp_path / "run")
    np.savez(tmp_path / "run" / "synthetic.npz", x=x, y=np.array([0, 1]))
    assert "2 samples of digits" in text_of(tmp_path / "run")


def test_a_file_of_samples_that_is_damaged_anywhere_is_no_failure(tmp_path):
    x = np.random.default_rng(0).normal(size=(4, 1, 8, 8))
    np.savez_compressed(tmp_path / "synthetic.npz", x=x, y=np.arange(4))
    whole = (tmp_path / "synthetic.npz").read_bytes()
    for at in range(0, len(whole), 7):
        (tmp_path / "synthetic.npz").write_bytes(whole[:at] + b"\7" * 9 + whole[at + 9 :])
        made = read_samples(tmp_path)
        assert made is None or len(made) == 4


def test_a_sheet_of_large_images_is_drawn_small():
    x = torch.rand(6, 3, 5 * SIDE, 10)
    tiles = tiles_of(x, torch.arange(6) % 2, 2, each=4)
    assert tiles.shape == (2 * SIDE, 4 * 2, 3)
    assert np.allclose(tiles[0, 0], x[0, :, 0, 0])  # class 0, its first image
    assert np.allclose(tiles[SIDE, 2], x[3, :, 0, 0])  # class 1, its second
    assert (tiles[0, 7] == 1).all()  # class 0 has three


@pytest.mark.parametrize("epsilon", [{}, {"zero-out": -1}, {"zero-out": "nan"}, [1], {"a": "x"}])
def test_a_certificate_that_certifies_nothing_is_not_shown(tmp_path, epsilon):
    assert "samples of" not in text_of(write_synthetic(tmp_path / "synth", epsilon=epsilon))


def test_the_folder_of_a_reproduction_is_that_of_its_runs(tmp_path):
    write_run(tmp_path / "rep" / "runs" / "dafl-mnist-0123456789-s0")
    (tmp_path / "rep" / "results").mkdir()
    assert "Run by run" in text_of(tmp_path / "rep")


def test_a_huge_list_of_starts_is_not_read(tmp_path):
    (tmp_path / "about.json").write_text('{"starts": [{}]' + " " * 2_000_000 + "}")
    assert starts(tmp_path) == []
    (tmp_path / "about.json").write_text('{"starts": [{}]}')
    assert starts(tmp_path) == [{}]


def test_what_an_attack_has_found_is_written_and_read_again(tmp_path):
    audit = audit_of(OUTCOME, "membership", epsilon_at_least=0.5)
    # 12 of 16 pairs are in the right order; 2 of 4 members are found without a false alarm
    assert audit == Audit("membership", 4, 4, 12 / 16, 0.5, 0.5, 0.5)
    write_audits(tmp_path, audit, audit_of(OUTCOME, "<i>again</i>"))
    assert [each.attacked for each in read_audits(tmp_path)] == ["membership", "<i>again</i>"]
    with pytest.raises(BadInput, match="epsilon_at_least = -1"):
        audit_of(OUTCOME, "membership", epsilon_at_least=-1)


def test_the_report_shows_it_of_a_run_and_of_a_comparison(tmp_path):
    run = write_run(tmp_path / "study" / "run")
    write_audits(run, audit_of(OUTCOME, "of the run", epsilon_at_least=2.459))
    write_audits(tmp_path / "study", audit_of(OUTCOME, "<i>of all</i>"))
    page = text_of(tmp_path / "study")
    assert ">of the run<" in page
    assert "&lt;i&gt;of all&lt;/i&gt;" in page
    assert ">2.45<" in page  # a lower bound is rounded down


@pytest.mark.parametrize(
    "wrong",
    [{"auc": 2}, {"auc": "nan"}, {"members": -3}, {"members": 1.5}, {"attacked": []},
     {"epsilon_at_least": "x"}, {"more": 1}],
)  # fmt: skip
def test_what_is_not_of_the_format_is_left_out(tmp_path, wrong):
    write_audits(tmp_path, audit_of(OUTCOME, "membership"))
    said = json.loads((tmp_path / "audit.json").read_text())
    said["attacks"] += [said["attacks"][0] | wrong, 3, None]
    (tmp_path / "audit.json").write_text(json.dumps(said))
    assert len(read_audits(tmp_path)) == 1
    (tmp_path / "audit.json").write_text("[" * 100_000)
    assert read_audits(tmp_path) == []
