"""Networks in bfloat16: close to single precision, never where gradients are clipped.

Whatever computes in bfloat16 runs in one process, kept to instructions that every machine can carry
out: a virtual one may announce others that end a process.
"""

import copy
import json
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

import tacit
from tacit.cli.progress import LONG, Suggesting
from tacit.core import BadInput
from tacit.experiment.watch import Nobody
from tacit.methods.spec import method_from_spec
from tacit.models import build, precision
from tacit.models.precision import InBf16, chosen, compute_in
from tacit.privacy import check_network
from tacit.privacy.losses import cross_entropies
from tacit.privacy.perexample import CannotClip, clipped_sum

SLOW = pytest.mark.slow
SCRIPT = """
import json, sys, tempfile, tomllib
from pathlib import Path
import numpy as np, torch
from safetensors.torch import load_file
import tacit
from tacit.core import Client, params_of
from tacit.data import load
from tacit.data.federated import LocalData
from tacit.models import build
from tacit.models.precision import compute_in
from tacit.synthesis.gan import GAN

torch.set_num_threads(1)
out = {}
METHODS = {"fedavg": "sgd.lr=0.2", "pfldyn": "local.steps=5", "cuag": "mu=0,local.steps=5"}
for name in sys.argv[1:]:
    settings = METHODS[name]
    found = {}
    for precision in ("f32", "bf16"):
        with tempfile.TemporaryDirectory() as folder:
            word = ",".join(filter(None, ["rounds=2", settings]))
            run = tacit.run(f"{name}:{word}", clients=3, seed=1, workers=0, noise="seeded",
                            precision=precision, out=Path(folder) / "run")
            x = load_file(run.folder / "model.safetensors")
            config = tomllib.loads((run.folder / "config.toml").read_text())
            found[precision] = dict(
                accuracy=run.final["accuracy"], precision=config["precision"],
                dtypes=sorted({str(v.dtype) for v in x.values()}),
                x=torch.cat([v.flatten() for v in x.values()]))
    moved = torch.linalg.vector_norm(found["f32"].pop("x") - (b := found["bf16"].pop("x")))
    out[name] = found | {"apart": float(moved / torch.linalg.vector_norm(b))}

digits = load("digits")
rows = np.arange(64)
data = LocalData(digits.train, rows, digits.mean, digits.std)
def drawn(precision):
    me = Client("0", 0, data, data, torch.nn.Identity(), {}, np.random.default_rng(0),
                classes=10, precision=precision)
    fitted = GAN(epochs=3, batch=16, mode="paper").fit(
        me, classes=10, counts=None, epsilon=float("inf"), delta=1e-5)
    images = fitted.draw(torch.arange(10), np.random.default_rng(1)).float()
    return images, [str(line.event) for line in me.spent]
(a, spent), (b, spent_too) = drawn("f32"), drawn("bf16")
out["gan"] = {"apart": float((a - b).abs().mean()), "same": spent == spent_too, "n": len(spent)}

net = build("mlp", (4,), 3, 0)
compute_in("bf16", net)
out["scores"] = str(net(torch.rand(2, 4)).dtype)
try:
    from tacit.privacy.losses import cross_entropies
    from tacit.privacy.perexample import clipped_sum
    clipped_sum(net, cross_entropies, torch.rand(2, 4), torch.tensor([0, 1]), 1.0)
except Exception as e:
    out["clipped"] = f"{type(e).__name__}: {e}"
print(json.dumps(out))
"""


@pytest.fixture(scope="module", params=[pytest.param("fedavg pfldyn cuag", marks=SLOW)])
def found(request):
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *request.param.split()],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_run_in_bf16_is_close_to_one_in_f32_and_the_run_directory_says_which(found):
    runs = [found[name] for name in ("fedavg", "pfldyn", "cuag") if name in found]
    assert runs
    for both in runs:
        check_both(both)


def check_both(both):
    assert [both[p]["precision"] for p in ("f32", "bf16")] == ["f32", "bf16"]
    assert both["bf16"]["dtypes"] == ["torch.float32"]
    assert 0 < both["apart"] < 0.03  # not the same numbers: it was computed in another precision
    assert both["bf16"]["accuracy"] == pytest.approx(both["f32"]["accuracy"], abs=0.05)


def test_a_generator_in_bf16_draws_alike_and_costs_the_same(found):
    assert 0 < found["gan"]["apart"] < 5  # of 255
    assert found["gan"]["same"]
    assert found["gan"]["n"] > 0


def test_a_network_in_bf16_answers_in_f32_and_is_never_clipped(found):
    assert found["scores"] == "torch.float32"
    assert found["clipped"].startswith("CannotClip: it computes in bfloat16")


class Halved(nn.Module):
    """Computes in half precision by itself, whatever the run says."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x):
        with torch.autocast("cpu", torch.float16):
            return self.last(torch.tanh(self.first(x))).to(x.dtype)


def test_a_network_that_computes_in_half_precision_by_itself_does_not_train_privately():
    with pytest.raises(CannotClip, match="it computes in float16"):
        clipped_sum(Halved(), cross_entropies, torch.rand(2, 4), torch.tensor([0, 1]), 1.0)
    with pytest.raises(BadInput, match="it computes in float16"):
        check_network(Halved(), (4,), 3)


@pytest.mark.parametrize(
    "word",
    ["fedavg:sgd.clip=1,sgd.z=1", "cuag:head=prototypes", "dafl:main=dp-sgd,sgd.clip=1,sgd.z=1"],
)
def test_dp_sgd_in_bf16_is_refused_with_the_reason(word, tmp_path):
    assert method_from_spec(word).per_example
    with pytest.raises(BadInput, match="precision = 'bf16': each example's gradient is clipped"):
        tacit.run(word, clients=3, workers=0, precision="bf16", out=tmp_path / "run")


def test_auto_is_what_a_trial_shows_and_f32_where_gradients_are_clipped(monkeypatch, capsys):
    model, shape = build("mlp", (4,), 3, 0), (4,)
    for times, auto in ((None, "f32"), (0.8, "f32"), (1.05, "f32"), (2.3, "bf16")):
        monkeypatch.setattr(precision, "gain", lambda model, shape, times=times: times)
        assert chosen("auto", model, shape, clips=False) == auto
        assert chosen("auto", model, shape, clips=True) == "f32"
        assert chosen("f32", model, shape, clips=False) == "f32"
    assert chosen("bf16", model, shape, clips=False) == "bf16"
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(precision, "gain", lambda model, shape: 0.8)
    assert chosen("bf16", model, shape, clips=False) == "bf16"
    assert "0.8 times as fast" in capsys.readouterr().err
    monkeypatch.setattr(precision, "gain", lambda model, shape: None)
    with pytest.raises(BadInput, match="this machine cannot compute it"):
        chosen("bf16", model, shape, clips=False)


def test_a_trial_that_ends_its_process_says_that_it_cannot():
    class Ends(nn.Linear):
        def forward(self, x):
            os._exit(4)

    assert precision.gain(Ends(4, 3), (4,)) is None


def test_networks_that_are_alike_are_tried_once(monkeypatch):
    """So runs of a table compute alike, however near the gain is to what it takes."""
    monkeypatch.setattr(precision, "_trial", lambda model, shape: 2.0)
    assert precision.gain(nn.Linear(41, 3), (41,)) == 2.0
    monkeypatch.setattr(precision, "_trial", lambda model, shape: 0.5)
    assert precision.gain(nn.Linear(41, 3), (41,)) == 2.0
    assert precision.gain(nn.Linear(41, 4), (41,)) == 0.5
    assert precision.gain(nn.Linear(41, 3), (2, 41)) == 0.5


def test_copies_compute_in_the_same_precision_on_their_own_weights():
    model = build("mlp", (4,), 3, 0)
    assert not isinstance(model.forward, InBf16)
    compute_in("f32", model)
    assert not isinstance(model.forward, InBf16)
    compute_in("bf16", model)
    compute_in("bf16", model)  # once is enough
    other = copy.deepcopy(model)
    assert isinstance(other.forward, InBf16)
    assert other.forward.forward.__self__ is other


def test_a_long_run_hears_once_what_could_make_it_shorter(capsys):
    for began, said in ((LONG / 9, 1), (0, 0)):
        watch = Suggesting(Nobody(), lambda: "try this")
        watch.begin("fedavg", 11)
        watch.began -= began
        for t in (1, 2):
            watch.finished_round({"round": t}, 11)
        assert capsys.readouterr().err.count("try this") == said
