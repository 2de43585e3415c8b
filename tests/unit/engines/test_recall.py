"""What is made once and found again: the same to the bit, and only what is nobody's secret."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest
import torch

from tacit.data import load, tensor_cache
from tacit.data.federated import federate
from tacit.engines import recall
from tacit.engines.recall import Made, Recall
from tacit.experiment.compare import run_all
from tacit.experiment.config import Experiment, Setting
from tacit.experiment.measures import shows
from tacit.experiment.result import Run
from tacit.experiment.watch import Nobody
from tacit.methods.spec import method_from_spec
from tacit.papers.published import paper
from tacit.synthesis.gan import GAN

WORDS = "mode=paper,rounds=1,gan.epochs=1,gan.batch=256,gan.width=2"


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Where quick work is kept, too."""
    monkeypatch.setattr(recall, "SLOW", 0.0)
    return Made(tmp_path / "made")


@pytest.fixture
def trainings(monkeypatch):
    """The clients that have trained a generator, in order."""
    seen, train = [], GAN._paper
    monkeypatch.setattr(GAN, "_paper", lambda s, me, *a: (seen.append(me.id), train(s, me, *a))[1])
    return seen


@pytest.fixture
def run(tmp_path):
    """Run a method; each in a folder of its own."""

    def run(word, made, data=None, noise="seeded", **how):
        run.count += 1
        how = {"clients": 2, "model": "logistic", "workers": 0, "noise": noise} | how
        experiment = Experiment(method_from_spec(f"{word},{WORDS}"), Setting(**how))
        name = str(run.count)
        run_all(tmp_path, [(name, experiment)], data or load("digits"), Nobody(), made=made)
        return Run(tmp_path / name)

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
    first, then, run, made, trainings, tmp_path
):
    run(first, made)
    assert trainings == ["0", "1"]
    found = run(then, made)
    assert trainings == ["0", "1"]  # the second run trained none
    anew = run(then, Made(tmp_path / "elsewhere"))
    assert trainings == ["0", "1"] * 2
    assert left_by(found) == left_by(anew)
    time, accuracy = (paper("dafl").items[key] for key in ("figure7", "table3"))
    for item, honest in ((time, False), (accuracy, True)):
        cell = next(iter(item.cells.values()))
        assert shows(cell, found) == honest
        assert shows(cell, anew)


@pytest.mark.parametrize(
    "other",
    [{"seed": 1}, {"clients": 3}, {"split": "label:1"}, {"word": "dafl:gan.lr=0.001"}],
)
def test_another_experiment_trains_its_own(other, run, made, trainings):
    run("dafl:gamma=0.1", made)
    before = len(trainings)
    run(**{"word": "dafl:gamma=0.1", "made": made} | other)
    assert len(trainings) - before >= 2


def test_nothing_is_kept_where_nobody_says_so(run, trainings):
    for _ in range(2):
        run("dafl:gamma=0.1", None)
    assert trainings == ["0", "1"] * 2


def test_noise_of_the_operating_system_is_never_kept(run, made, trainings):
    run("dafl:gamma=0.1", made, noise="os")
    assert not made.folder.exists()
    run("dafl:gamma=0.1", made)
    run("dafl:gamma=0.1", made, noise="os")
    assert trainings == ["0", "1"] * 3


def test_nothing_of_anybodys_own_data_is_kept(run, made, trainings):
    d = replace(load("digits"), own=True)
    for _ in range(2):
        run("dafl:gamma=0.1", made, data=d)
    assert trainings == ["0", "1"] * 2
    assert not made.folder.exists()


def test_a_damaged_file_is_as_good_as_none(run, made, trainings):
    whole = left_by(run("dafl:gamma=0.1", made))
    for n, file in enumerate(sorted(made.folder.iterdir())):
        blob = bytearray(file.read_bytes())
        blob[-1] ^= 1
        file.write_bytes(blob if n else blob[:50])
    again = run("dafl:gamma=0.1", made)
    assert trainings == ["0", "1"] * 2
    assert left_by(again) == whole


def test_another_clients_file_is_none(run, made, trainings):
    run("dafl:gamma=0.1", made)
    one, other = sorted(made.folder.iterdir())
    one.write_bytes(other.read_bytes())
    run("dafl:gamma=0.1", made)
    assert len(trainings) == 3


# -------------------------------------------------------------------------------------------------
# what a client asks


@pytest.fixture
def client(sandbox, tmp_path):
    """A client of three with some randomness, and where its state is."""
    held = federate(load("digits"), "iid", clients=3, seed=0)

    def client(made, seed=7, **changes):
        me = sandbox.world(None, tmp_path / "state").client("task", "0", 0, {})
        rng = np.random.default_rng(seed)
        again = Recall(made, tmp_path / "state" / "0")
        return replace(me, data=held.train("0"), rng=rng, again=again, **changes)

    return client


def drawn(me):
    """Draw, in a client's stream itself and in new ones, before and after."""

    def make():
        child = me.rng.spawn(2)[1]
        return {"drawn": torch.from_numpy(np.array([me.rng.random(), child.random()]))}

    out = me.again(me, "work", make)
    return out["drawn"].tolist(), me.rng.random(), me.rng.spawn(1)[0].random()


def test_randomness_goes_on_from_where_it_stood(made, client, tmp_path):
    first, second = drawn(client(made)), drawn(client(made))
    assert (tmp_path / "state" / "0" / recall.MARK).exists()
    assert first == second
    assert drawn(client(made, seed=8)) != first


def test_a_client_that_a_method_has_changed_is_another_one(made, client):
    """A half of its records, as some methods hold them out; or noise of its own."""
    me = client(made)
    half = replace(client(made), data=me.data.only(np.arange(len(me.data) // 2)))
    for other in (me, half, replace(client(made), noise="os")):
        other.again(other, "work", lambda: {"seen": torch.tensor(len(other.data))})  # noqa: B023
    assert len(list(made.folder.iterdir())) == 2
    again = replace(client(made), data=half.data)
    assert again.again(again, "work", dict)["seen"] == len(half.data)


def test_quick_work_is_not_kept(made, client, monkeypatch):
    monkeypatch.setattr(recall, "SLOW", 60.0)
    drawn(client(made))
    assert not made.folder.exists()


def test_another_processor_or_library_makes_it_anew(made, client, monkeypatch):
    """Where products are added up in another order, last bits are others."""
    for kernels in ("AMD SkylakeX", "AMD torch", "AMD torch"):
        monkeypatch.setattr(recall, "kernels", lambda kernels=kernels: kernels)
        drawn(client(made))
    assert len(list(made.folder.iterdir())) == 2


def test_sums_that_are_added_up_in_another_order_make_it_anew(made, client, monkeypatch):
    """As an environment variable may have it (MKL_CBWR), whatever the libraries are."""
    for bits in ("one", "other", "other"):
        monkeypatch.setattr(recall, "last_bits", lambda threads, bits=bits: bits)
        drawn(client(made))
    assert len(list(made.folder.iterdir())) == 2


def test_last_bits_are_the_same_each_time():
    before = torch.get_rng_state()
    assert recall.last_bits.__wrapped__(1) == recall.last_bits.__wrapped__(1)
    assert torch.equal(torch.get_rng_state(), before)


def test_code_that_was_edited_meanwhile_is_not_what_this_process_runs(made, client, monkeypatch):
    """Nothing is kept under its name, and nothing taken that it has made."""
    began = recall.BEGAN
    monkeypatch.setattr(recall, "BEGAN", 0.0)
    drawn(client(made))
    assert not made.folder.exists()
    monkeypatch.setattr(recall, "BEGAN", began)
    me = client(made)
    me.again(me, "work", lambda: {"by": torch.tensor(1)})
    monkeypatch.setattr(recall, "BEGAN", 0.0)
    me = client(made)
    assert me.again(me, "work", lambda: {"by": torch.tensor(2)})["by"] == 2


def test_other_code_makes_it_anew(made, client):
    for code in ("before", "after", "after"):
        drawn(client(replace(made, code=code)))
    assert len(list(made.folder.iterdir())) == 2


# -------------------------------------------------------------------------------------------------
# files


def test_any_numbers_come_back(tmp_path):
    file = tmp_path / "some.safetensors"
    shared = torch.arange(3.0)
    numbers = {
        "shared": shared,
        "with it": shared[:2],
        "half": torch.arange(4, dtype=torch.bfloat16),
        "one": torch.tensor(3.0),
        "yes": torch.tensor([True, False]),
        "none": torch.zeros(0, 3),
        "turned": torch.arange(6.0).view(2, 3).t(),
    }
    tensor_cache.keep(file, numbers, {"a": "b"})
    parts, notes = tensor_cache.read(file)
    assert notes == {"a": "b"}
    assert all(torch.equal(parts[k], v) and parts[k].dtype == v.dtype for k, v in numbers.items())


def test_those_used_least_lately_make_room(tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_cache, "MOST", 2500)
    for n in range(5):
        tensor_cache.keep(tmp_path / f"{n}.safetensors", {"x": torch.zeros(200)})
        os.utime(tmp_path / f"{n}.safetensors", (n, n))
    assert sorted(f.stem for f in tmp_path.glob("*.safetensors")) == ["3", "4"]
    tensor_cache.keep(tmp_path / "large.safetensors", {"x": torch.zeros(1000)})
    assert sorted(f.stem for f in tmp_path.glob("*.safetensors")) == ["3", "4"]


def crafted(head):
    """A file of safetensors with any head."""
    raw = json.dumps(head).encode()
    return len(raw).to_bytes(8, "little") + raw + bytes(16)


ONE = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}


@pytest.mark.parametrize(
    "head",
    [
        {"x": ONE, "__metadata__": None},
        {"x": ONE, "__metadata__": {}},
        {"x": ONE, "__metadata__": {"checksum": "0"}},
        {"x": ONE},
        {"x": {"dtype": "F8_E8M0", "shape": [16], "data_offsets": [0, 16]}},
        {"x": {"dtype": "F4", "shape": [32], "data_offsets": [0, 16]}},
    ],
)
def test_a_file_that_somebody_made_up_is_none(tmp_path, head):
    file = tmp_path / "some.safetensors"
    file.write_bytes(crafted(head))
    assert tensor_cache.read(file) is None


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.safetensors")
    assert tensor_cache.read(tmp_path / "pipe.safetensors") is None


def test_what_was_begun_and_not_ended_takes_no_room(tmp_path, monkeypatch):
    (tmp_path / "folder.safetensors").mkdir()
    tensor_cache.keep(tmp_path / "folder.safetensors", {"x": torch.zeros(200)})
    assert [f.name for f in tmp_path.iterdir()] == ["folder.safetensors"]
    killed = tmp_path / "old.safetensors.1.part"
    killed.write_bytes(bytes(2000))
    os.utime(killed, (1, 1))
    monkeypatch.setattr(tensor_cache, "MOST", 2500)
    tensor_cache.keep(tmp_path / "new.safetensors", {"x": torch.zeros(200)})
    assert not killed.exists()
    assert (tmp_path / "new.safetensors").exists()
