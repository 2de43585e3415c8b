"""A public encoder: trained on public data, written as a file, used as features."""

import json
import os
import re
from dataclasses import asdict, replace

import pytest
import torch
from asking import CHARTER, SEED, a_site, refusal
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import nn

import tacit
from tacit.apps.coordinator import _as_told
from tacit.apps.policy import Refused
from tacit.cli.agreeing import _own_encoder
from tacit.cli.main import call
from tacit.core import BadInput, params_of, rng_for
from tacit.data import load
from tacit.engines import client_host
from tacit.experiment import encode
from tacit.experiment.compare import row
from tacit.experiment.config import Experiment, Setting
from tacit.experiment.encode import Scaled, Training
from tacit.experiment.exporting import export
from tacit.experiment.sites import AtSites
from tacit.experiment.start import resume
from tacit.experiment.trained import trained
from tacit.local.sgd import SGD
from tacit.methods.fedavg import FedAvg, train
from tacit.models import build, skeleton
from tacit.report.reading import read_all
from tacit.synthesis import encoder_file, features
from tacit.synthesis.encoder_file import KEY, head_off, pinned, read, write

pytestmark = pytest.mark.usefixtures("one_thread")
QUICK = {"workers": 0, "noise": "seeded", "clients": 3}
DIGITS = load("digits")
SOME = replace(
    DIGITS,
    train=DIGITS.train.take(torch.arange(450)),
    test=DIGITS.test.take(torch.arange(90)),
)
PUBLIC = replace(SOME, train=DIGITS.train.take(torch.arange(450, 900)))
SHAPE = SOME.shape


def nobody(done, of, loss):
    pass


@pytest.fixture(scope="module")
def made():
    """An encoder of a few steps: its card, and its layers; in one thread, to be had again."""
    with client_host.one_thread():
        return encode.trained(
            PUBLIC, "auto", Training(epochs=12), command="tacit encode", told=nobody
        )


@pytest.fixture
def file(made, tmp_path):
    where = tmp_path / "encoder.safetensors"
    write(where, *made)
    return where


def changed(file, numbers=None, **card):
    """Write an encoder's file anew with another card or other numbers, and a checksum that fits."""
    old, blob = read(file)
    parts = load_tensors(blob) | (numbers or {})
    parts = {k: v for k, v in parts.items() if v is not None}
    known = {k: v for k, v in card.items() if k in asdict(old)}
    fits = encoder_file._checksum(replace(old, **known), parts)
    text = asdict(old) | {"checksum": fits} | card
    file.write_bytes(save_tensors(parts, {KEY: json.dumps(text)}))


# -------------------------------------------------------------------------------------------------
# training


@pytest.mark.usefixtures("one_thread")
def test_training_learns_and_says_how_well(made):
    card, layers = made
    assert (card.network, card.width, card.rows, card.held_out) == ("mlp", 64, 450, 90)
    assert card.accuracy > 0.7  # of ten classes
    assert len(layers) == 3  # flat, linear, relu: the last linear layer is not there
    again = encode.trained(PUBLIC, "auto", Training(epochs=12), command="", told=nobody)
    assert all(
        torch.equal(a, b)
        for a, b in zip(again[1].state_dict().values(), layers.state_dict().values(), strict=True)
    )


def test_the_cards_checksum_is_of_rows_and_labels(made):
    rows = PUBLIC.train
    other = replace(rows, y=rows.y.roll(1))
    assert encoder_file.fingerprint(rows) == made[0].sha256 != encoder_file.fingerprint(other)


def test_batch_norm_is_folded_into_convolutions_without_a_trace():
    torch.manual_seed(0)
    network = encode._normed(build("conv6", (3, 16, 16), 5, 0))
    assert sum(isinstance(m, nn.BatchNorm2d) for m in network.modules()) == 6
    x = torch.rand(32, 3, 16, 16)
    for _ in range(3):
        network.train()(x)  # means and variances that are not 0 and 1
    folded = encode._folded(network.eval())
    assert [k for k, _ in folded.named_parameters()] == [
        k for k, _ in build("conv6", (3, 16, 16), 5, 0).named_parameters()
    ]
    torch.testing.assert_close(folded(x), network(x), atol=1e-4, rtol=1e-4)
    grouped = build("resnet18", (3, 8, 8), 5, 0)
    assert encode._normed(grouped) is grouped


def test_images_are_moved_each_by_itself_and_mirrored_where_they_have_colours():
    grey = torch.arange(1, 65, dtype=torch.uint8).view(1, 1, 8, 8).repeat(40, 1, 1, 1)
    seen = encode.varied(grey, rng_for(0, "test"))
    found = {_which(s[0], _moved(grey[0, 0])) for s in seen}
    assert found == set(range(9))  # each of the nine places, and nothing else
    colour = encode.varied(grey.repeat(1, 3, 1, 1), rng_for(0, "test"))
    both = [*_moved(grey[0, 0]), *_moved(grey[0, 0].flip(1))]
    found = {_which(s[0], both) for s in colour}
    assert min(found) < 9 <= max(found)
    assert all(torch.equal(s[0], s[1]) for s in colour)
    part = encode.varied(grey, rng_for(0, "test"), 0.75)
    inside = [grey[0, 0, i : i + 6, j : j + 6] for i in range(3) for j in range(3)]
    assert {_which(s[0], inside) for s in part} == set(range(9))
    assert encode.smaller(build("conv6", (3, 16, 16), 5, 0)) == 0.75
    assert encode.smaller(build("cuag-cnn", (3, 16, 16), 5, 0)) == 1.0  # its sizes are fixed
    table = torch.rand(3, 5)
    assert encode.varied(table, rng_for(0, "test")) is table


def _moved(image):
    padded = torch.nn.functional.pad(image, (1, 1, 1, 1))
    return [padded[i : i + 8, j : j + 8] for i in range(3) for j in range(3)]


def _which(image, known):
    return next(i for i, other in enumerate(known) if torch.equal(image, other))


def test_an_encoder_of_photographs_is_six_convolutions():
    shape = (3, 32, 32)
    assert encode.network_for("auto", shape) == "conv6"
    layers = head_off(skeleton("conv6", shape, 100))
    assert sum(isinstance(m, nn.Conv2d) for m in layers) == 6
    assert next(layers.parameters()).is_meta  # no memory for what nobody vouches for
    assert head_off(build("conv6", shape, 4, 0))(torch.rand(2, *shape)).shape == (2, 256)


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (
            "--model mine.py:Net",
            "model = 'mine.py:Net': the file cannot hold code; allowed: .*conv",
        ),
        ("--model conv7", "model = 'conv7': did you mean 'conv6'"),
        ("--model conv6", "model = 'conv6': needs images of at least"),
        ("--out x.pt", "out = 'x.pt': must end in .safetensors"),
        ("--out nowhere/x.safetensors", "out = 'nowhere/x.safetensors': there is no folder"),
        ("--out there.safetensors", "out = 'there.safetensors': there is a file already"),
        ("--epochs 0", "epochs = 0: must be"),
        ("--lr nan", "lr = nan"),
        ("--threads -1", "threads = -1"),
        ("--data t.csv --classes 2", "data = 't.csv': your own, .*--public says"),
        ("--lr 1e30 --epochs 1", "lr = 1e[+]30: the loss is not finite"),
    ],
)
def test_what_cannot_be_trained_is_refused_in_one_line(args, why, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.safetensors").touch()
    (tmp_path / "t.csv").write_text("a,label\n" + "".join(f"{i},{i % 2}\n" for i in range(40)))
    small = SOME if "conv6" not in args else replace(SOME, train=_tiny(SOME.train))
    monkeypatch.setattr("tacit.cli.encoders.load", lambda name, **k: _loaded(name, small, **k))
    assert call(["encode", "--data", "digits", *args.split()]) == 2
    # on a slow machine it may have said how far it was
    (said,) = [x for x in capsys.readouterr().err.splitlines() if not x.startswith("encode: epoch")]
    assert re.search(why, said), said
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t.csv", "there.safetensors"]


def _tiny(rows):
    return replace(rows, x=rows.x[:, :, :4, :4])


def _loaded(name, small, **how):
    return small if name == "digits" else load(name, **how)


def test_the_command_writes_a_file_that_runs_use(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tacit.cli.encoders.load", lambda *a, **k: SOME)
    monkeypatch.setattr("tacit.cli.encoders.FIRST", 0.0)
    assert call(["encode", "--data", "digits", "--epochs", "2", "--out", "e.safetensors"]) == 0
    out = capsys.readouterr()
    assert "mlp trained on 450 rows of digits" in out.out
    assert "epoch 2/2, 100.0%, loss" in out.err
    card, _ = read(tmp_path / "e.safetensors")
    assert card.command == "tacit encode --data digits --epochs 2 --out e.safetensors"


def test_an_interrupt_is_one_line_and_leaves_no_file(tmp_path, monkeypatch, capsys):
    def stop(*a, **k):
        raise KeyboardInterrupt

    monkeypatch.setattr("tacit.cli.encoders.trained", stop)
    assert call(["encode", "--data", "digits", "--out", str(tmp_path / "e.safetensors")]) == 130
    assert capsys.readouterr().err == "\ntacit: interrupted\n"
    assert not list(tmp_path.iterdir())


# -------------------------------------------------------------------------------------------------
# the file as features


def test_what_a_file_encodes_is_what_the_network_made(made, file):
    card, layers = made
    x = SOME.test.x[:5].float() / 255
    scaled = Scaled(SOME)(SOME.test.x[:5])
    wanted = features.unit_rows(layers(scaled).detach())
    torch.testing.assert_close(features.encoder(str(file), SHAPE)(x), wanted)
    assert read(file)[0] == replace(card, checksum=read(file)[0].checksum)


def test_a_run_names_the_encoder_and_keeps_it(file, tmp_path):
    how = {"features": str(file), "data": SOME, "out": tmp_path / "run", **QUICK}
    done = tacit.run("fedavg:rounds=1", **how)
    assert done.experiment.setting.features == pinned(str(file))
    assert row("fedavg", [done]).features == "public encoder trained on digits"
    said = "fedavg of features by a public encoder trained on digits"
    assert read_all([done.folder])[0].label == said
    before = trained(done.folder).predict(SOME.test.x)
    file.unlink()  # the run has its own copy
    model = trained(done.folder)
    assert torch.equal(model.predict(SOME.test.x), before)
    right = (before == SOME.test.y).double().mean()
    assert float(right) == pytest.approx(done.final["accuracy"], abs=1e-3)
    assert resume(done.folder, rounds=2, dataset=SOME).rounds == 2
    moments = tacit.run(
        "moments",
        **(
            how
            | {"features": str(done.folder / "encoder.safetensors"), "out": tmp_path / "moments"}
        ),
    )
    assert trained(moments.folder).predict(SOME.test.x).shape == (len(SOME.test),)


@pytest.mark.slow
def test_a_model_with_an_encoder_is_exported_for_any_number_of_inputs(file, tmp_path):
    done = tacit.run("fedavg:rounds=1", features=str(file), data=SOME, out=tmp_path / "r", **QUICK)
    model = trained(done.folder)
    where = export(model, tmp_path / "model.pt2", "torch")
    program = torch.export.load(where).module()
    for n in (1, 5):
        x = SOME.test.x[:n].float() / 255
        torch.testing.assert_close(program(x), model(x), atol=1e-4, rtol=1e-4)


def test_another_file_in_its_place_is_refused(made, file, tmp_path):
    word = pinned(str(file))
    card, _ = made
    other = head_off(build("mlp", SHAPE, 10, 1))
    write(file, card, other)
    with pytest.raises(BadInput, match=r"encoder.safetensors': its checksum is \w+, and must be"):
        features.encoder(word, SHAPE)
    assert pinned(str(file)) != word
    features.encoder(str(file), SHAPE)  # named anew, it is what is meant


def test_features_by_an_encoder_are_kept_for_public_data_and_found_wherever_it_lies(
    made, file, tmp_path, monkeypatch
):
    from tacit.data.federated import federate
    from tacit.experiment.feature_cache import find

    raw = federate(SOME, "iid", clients=3, seed=0)
    (tmp_path / "b").mkdir()
    write(tmp_path / "b" / file.name, *made)
    here, there = pinned(str(file)), pinned(str(tmp_path / "b" / file.name))
    assert here != there
    assert find(raw, here) == find(raw, there) != find(raw, "hog")


@pytest.mark.parametrize(
    ("card", "numbers", "why"),
    [
        ({"shape": [1, 9, 9]}, {}, "takes inputs of 1x9x9; these are 1x8x8"),
        ({"network": "mlp:hidden=32"}, {}, r"1.bias: is \(64,\); in the network .* it is \(32,\)"),
        ({"network": "mlp:hidden=1000000000000"}, {}, r"1.bias: is \(64,\); in the network"),
        ({"network": "logistic"}, {}, "1.bias: is .64,.; in the network 'logistic' it is missing"),
        ({"network": "os:system"}, {}, "model = 'os:system': .*allowed"),
        ({"network": "mlp:depth=3"}, {}, "model.depth: mlp takes hidden"),
        ({"checksum": "0" * 64}, {}, "checksum = '0000000000000000': its card and numbers have"),
        ({"width": 63}, {}, "width = 63: the network gives"),
        ({"format": 1}, {}, "format = 1: this version reads 2"),
        ({"std": [0.0]}, {}, "std = .*: must be a number for each channel"),
        ({"mean": [float("nan")]}, {}, "card.mean = nan: must be a number"),
        ({"data": "../x"}, {}, "data = '../x': must be letters"),
        ({"classes": "ten"}, {}, "classes: is .*; must be"),
        ({"classes": 0}, {}, "classes = 0: must be at least 1"),
        ({"colour": "red"}, {}, "card: does not say what it must"),
        ({}, {"1.bias": torch.full((64,), torch.inf)}, "1.bias: has numbers that are not finite"),
        ({}, {"1.bias": torch.zeros(64).double()}, "1.bias: is torch.float64; must be"),
        ({}, {"1.bias": None}, "1.bias: is missing; in the network 'mlp' it is .64,."),
        ({}, {"more": torch.zeros(1)}, "more: is .1,.; in the network 'mlp' it is missing"),
    ],
)
def test_a_file_that_is_not_what_it_says_is_refused_in_one_line(card, numbers, why, file):
    changed(file, numbers, **card)
    with pytest.raises(BadInput, match=f"features = '.*encoder.safetensors': .*{why}") as e:
        features.encoder(str(file), SHAPE)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("word", "other"),
    [('"digits"', '"public"'), ('"classes": 10', '"classes": 11'), ("450", "451")],
)
def test_a_card_is_what_it_was_when_it_was_written(word, other, file):
    """What is public about an encoder rests on the card."""
    blob = file.read_bytes()
    word, other = (json.dumps(text)[1:-1].encode() for text in (word, other))
    assert blob.count(word) == 1
    file.write_bytes(blob.replace(word, other))
    with pytest.raises(BadInput, match="its card and numbers have"):
        features.encoder(str(file), SHAPE)


@pytest.mark.parametrize("word", ["ldp_fl:epsilon=1", "moments", "fedavg"])
def test_an_encoder_of_the_same_records_is_not_public(word, file, tmp_path):
    how = {"features": str(file), "out": tmp_path / "run", **QUICK}
    with pytest.raises(BadInput, match=r"was trained on the records of this run .digits."):
        tacit.run(word, data=PUBLIC, **how)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("size", [0, 7, 40, 200, -1])
def test_a_file_that_was_cut_short_is_refused(file, size):
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(BadInput, match="not a whole safetensors file") as e:
        features.encoder(str(file), SHAPE)
    assert "\n" not in str(e.value)


def test_a_file_of_something_else_is_refused(file, tmp_path):
    file.write_bytes(save_tensors({"a": torch.zeros(1)}))
    with pytest.raises(BadInput, match="has no card; must be a file that tacit encode wrote"):
        features.encoder(str(file), SHAPE)
    with pytest.raises(BadInput, match=r"cannot be read .No such file"):
        tacit.run("fedavg", features=str(tmp_path / "no.safetensors"), data=SOME, **QUICK)


def test_an_encoder_that_mixes_examples_is_refused(file, monkeypatch):
    class Mixes(nn.Module):
        def forward(self, x):
            return x - x.mean(0)

    monkeypatch.setattr(
        encoder_file, "_layers", lambda card, numbers: nn.Sequential(nn.Flatten(), Mixes())
    )
    with pytest.raises(BadInput, match="what it says of one example depends on the others"):
        features.encoder(str(file), SHAPE)


# -------------------------------------------------------------------------------------------------
# at real sites


def test_a_site_takes_the_encoder_that_its_owner_named_and_no_other(made, file, tmp_path):
    rows = torch.arange(12)
    data = replace(SOME, train=SOME.train.take(rows), test=SOME.test.take(rows), own=True)
    mine = pinned(str(file))
    (tmp_path / "b").mkdir()
    theirs = tmp_path / "b" / "theirs.safetensors"  # the same under another name, elsewhere
    write(theirs, *made)
    facts = a_site(tmp_path / "facts", data).facts()
    where = {"open": None, "run": CHARTER.run, "sample_seed": 1}
    told = Experiment(FedAvg(), Setting(seed=SEED, features=str(theirs)))
    at = AtSites.of(told, {"0": facts, "1": facts}, 2, **where)
    charter = at.charter()
    assert charter.features.startswith("theirs.safetensors@digits.")
    assert charter.shape == (64,)
    ask = train(x=params_of(at.model), sgd=SGD(batch=4))
    assert refusal(a_site(tmp_path / "1", data, features=mine), ask, charter=charter) is None
    theirs.unlink()  # nobody looks for it here
    assert refusal(a_site(tmp_path / "2", data, features=mine), ask, charter=charter) is None
    for own, word in (
        (None, charter.features),
        (mine, charter.features[:-1] + ("0" if charter.features[-1] != "0" else "1")),
        (None, str(file)),
        (mine, str(file)),
        (None, mine),
    ):
        site = a_site(tmp_path / "3", data, features=own)
        why = refusal(site, ask, charter=replace(charter, features=word))
        assert "nor the encoder given with --features" in why


def test_an_owner_is_asked_about_an_encoder_by_what_is_in_it(file, tmp_path):
    mine = pinned(str(file))
    told = _as_told(Experiment(FedAvg(), Setting(features=str(file)))).setting.features
    assert told == f"encoder.safetensors@{mine.rpartition('@')[2]}"
    assert _own_encoder(told, mine) == _own_encoder("any/where.safetensors", mine) == mine
    assert _own_encoder("hog", mine) == "hog"
    for word, own in ((told, None), (told[:-8] + "01234567", mine)):
        with pytest.raises(Refused, match="not the encoder given with --features"):
            _own_encoder(word, own)
    assert _as_told(Experiment(FedAvg())).setting.features == "auto"


def test_a_pipe_is_no_file_and_nobody_waits_for_it(tmp_path):
    os.mkfifo(tmp_path / "pipe.safetensors")
    for name, why in (
        (str(tmp_path / "pipe.safetensors"), "cannot be read .not a file"),
        ("~nobodyxx/e.safetensors", "home"),
    ):
        with pytest.raises(BadInput, match=why):
            encoder_file.pinned(name)


def test_numbers_of_another_kind_are_refused_by_name(tmp_path):
    layers = {"x": torch.zeros(2, dtype=torch.bfloat16)}
    with pytest.raises(BadInput, match=r"x: is torch.bfloat16; must be torch.float32"):
        encoder_file._layers(None, layers)
