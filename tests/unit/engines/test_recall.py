"""What is made once and found again: the same to the bit, and only what is nobody's secret."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import tacit
from tacit.data import load
from tacit.data.federated import federate
from tacit.engines import recall
from tacit.engines.recall import Recall
from tacit.experiment.measures import shows
from tacit.papers.published import paper
from tacit.synthesis.gan import GAN

WORDS = "mode=paper,rounds=1,gan.epochs=1,gan.batch=256,gan.width=2"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(recall, "SLOW", 0.0)
    return tmp_path / "cache" / "tacit" / "trained"


@pytest.fixture
def trainings(monkeypatch):
    """The clients that have trained a generator, in order."""
    seen, train = [], GAN._paper
    monkeypatch.setattr(GAN, "_paper", lambda s, me, *a: (seen.append(me.id), train(s, me, *a))[1])
    return seen


@pytest.fixture
def run(tmp_path):
    """Run a method; each in a folder of its own."""

    def run(word, data="digits", noise="seeded", **how):
        run.count += 1
        out = tmp_path / str(run.count)
        how = {"clients": 2, "model": "logistic", "workers": 0, "noise": noise} | how
        return tacit.run(f"{word},{WORDS}", data=data, out=out, **how)

    run.count = 0
    return run


def left_by(done):
    """All that came out of a run but the time it took."""
    model = (done.folder / "model.safetensors").read_bytes()
    lines = [{k: v for k, v in line.items() if "seconds" not in k} for line in done.metrics]
    return model, lines, done.ledger


@pytest.mark.parametrize(
    ("first", "then"),
    [("dafl:gamma=0.1", "dafl:gamma=0.5"), ("gfl:tau=0.0", "gfl:tau=2.0")],
)
def test_a_run_that_finds_its_generators_is_the_one_that_trains_them(
    first, then, run, cache, trainings, monkeypatch
):
    run(first)
    assert trainings == ["0", "1"]
    found = run(then)
    assert trainings == ["0", "1"]  # the second run trained none
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache.parent.parent / "another"))
    made = run(then)
    assert trainings == ["0", "1"] * 2
    assert left_by(found) == left_by(made)
    time, accuracy = (paper("dafl").items[key] for key in ("figure7", "table3"))
    for item, honest in ((time, False), (accuracy, True)):
        cell = next(iter(item.cells.values()))
        assert shows(cell, found) == honest
        assert shows(cell, made)


@pytest.mark.parametrize(
    "other",
    [{"seed": 1}, {"clients": 3}, {"split": "label:1"}, {"word": "dafl:gan.lr=0.001"}],
)
def test_another_experiment_trains_its_own(other, run, trainings):
    run("dafl:gamma=0.1")
    before = len(trainings)
    run(**{"word": "dafl:gamma=0.1"} | other)
    assert len(trainings) - before >= 2


def test_noise_of_the_operating_system_is_never_kept(run, cache, trainings):
    run("dafl:gamma=0.1", noise="os")
    assert not cache.exists()
    run("dafl:gamma=0.1")
    run("dafl:gamma=0.1", noise="os")
    assert trainings == ["0", "1"] * 3


def test_nothing_of_anybodys_own_data_is_kept(run, cache, trainings):
    d = replace(load("digits"), own=True)
    for _ in range(2):
        run("dafl:gamma=0.1", data=d)
    assert trainings == ["0", "1"] * 2
    assert not cache.exists()


def test_a_damaged_file_is_as_good_as_none(run, cache, trainings):
    whole = left_by(run("dafl:gamma=0.1"))
    for n, file in enumerate(sorted(cache.iterdir())):
        blob = bytearray(file.read_bytes())
        blob[-1] ^= 1
        file.write_bytes(blob if n else blob[:50])
    again = run("dafl:gamma=0.1")
    assert trainings == ["0", "1"] * 2
    assert left_by(again) == whole


def client_of(rng, folder, n=3):
    return Recall(folder, rng, federate(load("digits"), "iid", clients=n, seed=0).train("0"))


def test_randomness_goes_on_from_where_it_stood(tmp_path):
    def work(rng):
        """Draw, in the stream itself and in new ones."""

        def make():
            child = rng.spawn(2)[1]
            return {"drawn": torch.from_numpy(np.array([rng.random(), child.random()]))}

        made = client_of(rng, tmp_path / "c")("work", make)
        return made["drawn"].tolist(), rng.random(), rng.spawn(1)[0].random()

    first, second = (work(np.random.default_rng(7)) for _ in range(2))
    assert (tmp_path / "c" / recall.MARK).exists()
    assert first == second
    assert work(np.random.default_rng(8)) != first


def test_quick_work_is_not_kept(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(recall, "SLOW", 60.0)
    client_of(np.random.default_rng(0), tmp_path)("work", dict)
    assert not cache.exists()


def test_other_code_makes_it_anew(tmp_path, cache, monkeypatch):
    for code in ("before", "after", "after"):
        monkeypatch.setattr(recall, "_code", lambda code=code: code)
        client_of(np.random.default_rng(0), tmp_path)("work", dict)
    assert len(list(cache.iterdir())) == 2
