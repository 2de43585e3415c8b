"""Networks, splits and data sets of the user's own: one way of naming them, and what is refused."""

import math
import re
import sys
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

import tacit
from tacit import codec, methods
from tacit.apps.policy import refuse_code
from tacit.cli.main import call
from tacit.core import BadInput, Params, own_code
from tacit.core.registry import Registry, names_code
from tacit.data import load
from tacit.data.federated import federate
from tacit.data.splits import SPLITS, _schemes
from tacit.experiment.rundir import RunDir
from tacit.methods import LDPFL, METHODS
from tacit.methods.spec import as_method
from tacit.models import MODELS, build
from tacit.privacy.rules import Update
from tacit.privacy.updates import MECHANISMS, update_rule
from tacit.synthesis.features import FEATURES, encoder
from tacit.testing import findings, small
from tacit.testing.claims import claims_hold
from tacit.testing.world import Sandbox

MINE = """
import numpy as np
import torch
from dataclasses import dataclass
from torch import nn
from tacit.data import Dataset, Examples
from tacit.data.splits import Split

@dataclass(frozen=True)
class Note:
    word: str

class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.layer = nn.Linear(int(np.prod(shape)), classes)

    def forward(self, x):
        return self.layer(x.flatten(1))

def by_parity(dataset, *, clients, seed):
    parts = [np.arange(i, len(dataset.train), clients) for i in range(clients)]
    tests = [np.arange(i, len(dataset.test), clients) for i in range(clients)]
    return Split(tuple(parts), tuple(tests))

def twice(dataset, *, clients, seed):
    rows = np.arange(len(dataset.train))
    return Split((rows,) * clients, (rows[:1],) * clients)

def few(dataset, *, clients, seed):
    return Split((np.arange(5),), (np.arange(5),))

def blobs():
    g = torch.Generator().manual_seed(0)
    y = torch.arange(120) % 3
    x = torch.randn(120, 4, generator=g) + 3 * torch.eye(3, 4)[y]
    return Dataset("blobs", Examples(x[:90], y[:90]), Examples(x[90:], y[90:]), ("a", "b", "c"))

def nothing():
    return 7
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A file of one's own, in the working folder, under a name that no other test uses."""
    name = f"mine_{re.sub(r'[^0-9a-z]', '_', tmp_path.name.lower())}"
    (tmp_path / f"{name}.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    return f"{name}.py"


def test_network_split_and_data_of_ones_own_make_a_run_that_any_folder_resumes(
    mine, tmp_path, monkeypatch
):
    done = tacit.run(
        "fedavg:rounds=2,sgd.lr=0.5",
        data=f"{mine}:blobs",
        split=f"{mine}:by_parity",
        model=f"{mine}:Net",
        clients=3,
        workers=2,
        out=tmp_path / "run",
    )
    assert done.accuracy > 0.9
    config = RunDir.open(tmp_path / "run").experiment().setting
    for word in (config.data, config.split, config.model):
        assert word.startswith(str(tmp_path))
    (tmp_path / "else").mkdir()
    monkeypatch.chdir(tmp_path / "else")
    assert tacit.resume(tmp_path / "run").accuracy == done.accuracy


def test_a_split_of_ones_own_gives_every_client_its_rows(mine):
    parts = federate(load("digits"), f"{mine}:by_parity", clients=4, seed=0).split.train
    assert [int(rows[0]) for rows in parts] == [0, 1, 2, 3]
    assert sum(map(len, parts)) == len(load("digits").train)


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("twice", "given to two clients"),
        ("few", "has 1 parts; must be 4"),
        ("nothing", "cannot|takes|unexpected"),
        ("absent", "has no attribute"),
    ],
)
def test_a_split_that_divides_nothing_is_refused(mine, word, why):
    with pytest.raises((BadInput, TypeError), match=why):
        federate(load("digits"), f"{mine}:{word}", clients=4, seed=0)


def test_data_that_are_none_are_refused(mine):
    with pytest.raises(BadInput, match="must be a Dataset"):
        load(f"{mine}:nothing")


@pytest.mark.parametrize(
    ("source", "why"),
    [("raise ValueError('no\\n luck')", "ValueError: no luck"), ("def (", "SyntaxError")],
)
def test_a_file_that_cannot_be_run_is_one_line(tmp_path, source, why):
    file = tmp_path / f"broken_{len(source)}.py"
    file.write_text(source)
    with pytest.raises(BadInput, match=re.escape(why)) as e:
        build(f"{file}:Net", (4,), 3, 0)
    assert "\n" not in str(e.value)
    with pytest.raises(BadInput, match=re.escape(why)):  # and again: nothing of it stays
        build(f"{file}:Net", (4,), 3, 0)


def test_two_files_of_one_name_are_refused(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "samename.py").write_text("x = 1")
    own_code.load(f"{tmp_path / 'a' / 'samename.py'}:x", "model")
    with pytest.raises(BadInput, match="has the same name"):
        own_code.load(f"{tmp_path / 'b' / 'samename.py'}:x", "model")


def test_messages_build_classes_of_named_code_only(mine):
    Note = own_code.load(f"{mine}:Note", "method")
    blob = codec.pack(Note("hello"))
    assert codec.unpack(blob) == Note("hello")
    module = Note.__module__
    for foreign in ("decimal:Decimal", "os:system", f"{module}:Net", f"{module}:np"):
        with pytest.raises(BadInput, match="refusing to build"):
            codec.decode(f'{{"$": "{foreign}", "items": {{}}}}', {})


def test_a_peer_cannot_make_anybody_import(tmp_path, monkeypatch):
    (tmp_path / "lurking.py").write_text("raise SystemExit('ran')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("lurking:X", "tacit_own_lurking:X"):
        with pytest.raises(BadInput, match="refusing to build"):
            codec.decode(f'{{"$": "{name}", "items": {{}}}}', {})
    assert LDPFL(mode="update", mechanism="lurking:f").mechanism == "lurking:f"  # as in a message
    with pytest.raises(BadInput, match="names code, and this site runs only what it has installed"):
        refuse_code(["lurking:f"], {None})
    assert "lurking" not in sys.modules


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package that brings one thing of each kind by an entry point; return its module's name."""
    name = f"brings_{re.sub(r'[^0-9a-z]', '_', tmp_path.name.lower())}"
    (tmp_path / f"{name}.py").write_text(HALF + MINE + "def flatter(x):\n    return x.flatten(1)\n")
    info = tmp_path / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    kinds = {"splits": "by_parity", "data": "blobs", "models": "Net", "features": "flatter"}
    kinds |= {"mechanisms": "half"}
    groups = [f"[tacit.{kind}]\nour-{kind} = {name}:{what}\n" for kind, what in kinds.items()]
    (info / "entry_points.txt").write_text("\n".join(groups))
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_installed_things_are_known_by_the_names_of_their_entry_points(installed, tmp_path):
    done = tacit.run(
        "fedavg:rounds=1",
        data="our-data",
        split="our-splits",
        model="our-models",
        clients=3,
        workers=0,
        out=tmp_path / "run",
    )
    assert done.final["round"] == 1
    assert encoder("our-features", (1, 8, 8))(torch.rand(2, 1, 8, 8)).shape == (2, 64)
    assert update_rule("our-mechanisms", "x", 1.0, 2.0) == Update("x", 0.5, 1.0)
    for wrong in (
        lambda: build("our-modles", (4,), 3, 0),
        lambda: federate(load("digits"), "our-split", clients=2, seed=0),
        lambda: encoder("our-feature", (1, 8, 8)),
        lambda: load("our-dat"),
    ):
        with pytest.raises(BadInput, match="did you mean 'our-"):
            wrong()


def test_features_of_ones_own_are_named_like_everything_else(mine, tmp_path):
    (tmp_path / "flatter.py").write_text("def flat(x):\n    return x.flatten(1)\n")
    assert encoder("flatter.py:flat", (1, 4, 4))(torch.rand(2, 1, 4, 4)).shape == (2, 16)
    with pytest.raises(BadInput, match="has no attribute 'flatt'"):
        encoder("flatter.py:flatt", (1, 4, 4))


PAGE = Path(__file__).parents[2] / "docs/own-code.md"
HALF = PAGE.read_text().split("### By name\n")[1].split("```python\n")[1].split("```")[0]
HALF += """

def nothing(what, clip, mu):
    return None


def broken(what, clip, mu):
    return 1 / 0
"""


def test_a_mechanism_of_ones_own_is_named_like_everything_else(mine, tmp_path, monkeypatch):
    """It is run, predicted and, from another folder, found again."""
    (tmp_path / "halves.py").write_text(HALF)
    word = "ldp_fl:mode=update,rounds=1,mechanism=halves.py:half"
    how = {"clients": 2, "workers": 0, "noise": "seeded"}
    done = tacit.run(word, out=tmp_path / "run", **how)
    flat = tacit.run("ldp_fl:mode=update,rounds=1,clip=0.5", out=tmp_path / "flat", **how)
    assert done.epsilon == flat.epsilon
    assert done.final["accuracy"] == flat.final["accuracy"]
    monkeypatch.chdir(tmp_path.parent)
    assert tacit.resume(tmp_path / "run").final == done.final


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nothing", "must return a rule \\(send, lines\\), not a NoneType"),
        ("broken", "cannot be made \\(ZeroDivisionError: division by zero\\)"),
        ("mising", "has no attribute 'mising'"),
    ],
)
def test_a_mechanism_that_is_none_is_refused_before_anything_starts(mine, tmp_path, name, why):
    (tmp_path / f"{name}_halves.py").write_text(HALF)
    word = f"ldp_fl:mode=update,mechanism={name}_halves.py:{name}"
    with pytest.raises(BadInput, match=rf"^mechanism = '.*_halves.py:{name}': .*{why}"):
        tacit.run(word, clients=2, workers=0, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_mechanism_that_is_not_there_names_those_that_are():
    with pytest.raises(
        BadInput, match=r"^mechanism = 'flatt': did you mean 'flat'\? Allowed: flat, layers,"
    ):
        LDPFL(mode="update", mechanism="flatt")
    with pytest.raises(BadInput, match="means nothing in mode = 'auto', only in 'update'"):
        LDPFL(mechanism="layers")


def test_installed_names_are_code_to_whoever_did_not_write_them(installed):
    """So a site neither imports what a coordinator names, nor a report what a folder names."""
    assert [names_code(word) for word in ("our-models", "mlp", "mine.py:Net", "iid")] == [
        True,
        False,
        True,
        False,
    ]
    assert installed not in sys.modules


def test_everything_that_is_built_in_is_found_in_its_files():
    """One file is enough: nothing lists what there is."""
    files = {f.stem for f in Path(methods.__file__).parent.glob("*.py")}
    assert set(METHODS) <= files
    assert {"fedavg", "scaffold", "dafl", "moments", "kd_dpfl", "pate"} <= set(METHODS)
    assert {"iid", "label", "dirichlet-client", "alid", "feature-noise"} <= set(SPLITS)
    assert {"logistic", "dafl-cnn", "resnet18", "vgg16"} <= set(MODELS)
    assert set(FEATURES) == {"dct", "hog", "colour-hog", "scattering", "raw"}
    assert set(MECHANISMS) == {"flat", "layers"}


def test_a_new_file_is_all_that_a_split_needs(tmp_path, monkeypatch):
    package = tmp_path / "fake_splits"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "halves.py").write_text(
        "from tacit.data.splits import iid\n"
        "from tacit.data.splits.scheme import Scheme\n"
        "HALVES = Scheme('halves', 'as iid', iid.draw, iid.shares)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = Registry("split", group="none", package="fake_splits", found=_schemes)
    assert found["halves"].about == "as iid"


# ---- a mechanism, as docs/own-code.md has it


@pytest.fixture
def documented(tmp_path, monkeypatch):
    """Write the page's method with a rule of its own into a file, changed or not; return its word.

    Changed means that a text of it, which occurs once, is another one.
    """
    source = PAGE.read_text().split("## A mechanism\n")[1].split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)

    def write(name, old="", new=""):
        assert not old or source.count(old) == 1
        (tmp_path / f"{name}.py").write_text(source.replace(old, new) if old else source)
        return f"{name}.py:ByLayer"

    return write


def test_a_rule_of_ones_own_spends_what_is_predicted(documented, tmp_path, capsys):
    word = documented("bylayer")
    small = ["--rounds", "2", "--clients", "3", "--model", "logistic"]
    assert call(["privacy", word, *small]) == 0
    assert "its guarantee: eps 4 for one client" in capsys.readouterr().out
    assert call(["run", word, *small, "--engine", "serial", "--out", "run"]) == 0
    assert "eps 4 for one client" in capsys.readouterr().out
    done = tacit.resume(tmp_path / "run")
    assert done.spent == pytest.approx(4, rel=1e-3)


def test_layers_are_clipped_to_their_shares(documented):
    Layers = own_code.load(documented("bylayers").replace("ByLayer", "Layers"), "method")
    dx = Params({"a": torch.tensor([30.0, 40.0]), "b": torch.tensor([0.0, 0.3])})
    me = Mock(noise="os", round=0, id="0")
    sent = Layers(clip=math.sqrt(2), z=0.0).send(me, dx)  # two layers: at most 1 each
    assert torch.allclose(sent["a"], torch.tensor([0.6, 0.8]))
    assert torch.allclose(sent["b"], torch.tensor([0.0, 0.3]))


def test_check_method_passes_a_rule_of_ones_own(documented):
    assert findings(documented("bylayer_kept")) == []


def test_a_rule_that_predicts_less_than_it_spends_is_found(documented, tmp_path):
    word = documented("bylayer_less", 'gaussian_line("layers", self.z', 'gaussian_line("layers", 9')
    with closing(Sandbox(tmp_path / "sandbox")) as sandbox:
        (found,) = claims_hold(sandbox, small(as_method(word)))
    assert "more than" in found
