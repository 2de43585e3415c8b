"""Where synthetic examples come from: one mode for all of it."""

import ast
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import tacit
from tacit import privacy
from tacit.cli.main import call
from tacit.core import BadInput, Client, Ledger, Pure, Task
from tacit.data.examples import Dataset, Examples
from tacit.data.federated import LocalData
from tacit.engines.client_host import one_thread
from tacit.experiment.synth import synthesise
from tacit.methods.dafl import DAFL
from tacit.methods.gfl import GFL
from tacit.methods.spec import method_from_spec
from tacit.synthesis.gan import GAN, GANSettings
from tacit.synthesis.source import Source

DELTA = 1e-5
# of the paper's second kind: neither network sees a label
UNLABELLED = GANSettings(conditional=False, epochs=1, batch=30, width=2)
PAPER = {"mode": "paper", "gan": UNLABELLED, "label_epsilon": 0.5}
COUNTS = (31, 17, 12)


def pictures():
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.integers(0, 256, (60, 1, 8, 8), np.uint8))
    return Examples(x, torch.from_numpy(np.repeat(np.arange(3), COUNTS)))


def client(seed=0):
    data = LocalData(pictures(), np.arange(60), (0.5,), (0.5,))
    rng = np.random.default_rng(seed)
    return Client("0", 0, data, data, nn.Identity(), {}, rng, "seeded", Ledger(), classes=3)


def cost(lines):
    """Return epsilon for replacing a record, which PLS has a guarantee for."""
    how = {"unit": "example", "observer": "server", "delta": DELTA, "relation": "replace"}
    return privacy.epsilon(Ledger(lines), **how)


@pytest.mark.slow
def test_the_papers_synthetic_set_does_not_tell_exact_counts():
    """Labels are chosen by PLS, and the certificate has what that costs."""
    dataset = Dataset("scans", pictures(), pictures(), ("a", "b", "c"))
    told = []
    for seed in range(12):
        with one_thread():
            made = synthesise(dataset, Source(**PAPER), delta=DELTA, seed=seed, noise="seeded")
        told.append(tuple(made.examples.y.bincount(minlength=3).tolist()))
        labels = [line for line in made.ledger if line.what == "pls"]
        assert sum(line.event.epsilon * line.total() for line in labels) == pytest.approx(0.5)
        assert all(isinstance(line.event, Pure) for line in labels)
    assert len(set(told)) > 6
    assert told.count(COUNTS) <= 1
    few = synthesise(dataset, Source(**PAPER), samples=9, delta=DELTA, noise="seeded")
    assert len(few.examples) == 9
    assert cost(few.ledger) > cost([line for line in few.ledger if line.what != "pls"])


@pytest.mark.parametrize(
    ("task", "how", "slack"),
    [
        ("dafl.synthesise", DAFL(**PAPER, gamma=0.5), 0.01),  # PLS is predicted as one choice
        ("gfl.offline", GFL(**PAPER, n_k=20), 1e-6),
        # the size that a certified GAN goes by is a noisy one
        pytest.param(
            "dafl.synthesise",
            DAFL(generator="gan", gan=UNLABELLED, gamma=0.5),
            0.3,
            marks=pytest.mark.slow,
        ),
        ("gfl.offline", GFL(generator="gan", gan=UNLABELLED, n_k=20), 0.3),
        ("dafl.synthesise", DAFL(gamma=0.5), 1e-6),
        ("gfl.offline", GFL(n_k=20), 1e-6),
    ],
)
def test_a_clients_samples_cost_what_was_predicted(task, how, slack):
    me = client()
    with one_thread():
        Task.registry[task].fn(me, how=how, delta=DELTA)
    told = cost(how.pool_rule(DELTA).lines("0", 60, 1))
    assert told < math.inf
    assert cost(me.spent) == pytest.approx(told, rel=slack)


def test_gfl_chooses_no_labels_by_the_data():
    told = GFL(**PAPER).pool_rule(DELTA).lines("0", 60, 1)
    assert "pls" not in {line.what for line in told}
    me = client()
    with one_thread():
        Task.registry["gfl.offline"].fn(me, how=GFL(**PAPER, n_k=20), delta=DELTA)
    assert "pls" not in {line.what for line in me.spent}


def test_only_mechanisms_and_generators_call_a_value_released():
    """A method can but post-process what it is given: `Released.map`."""
    root = Path(tacit.__file__).parent
    calls = {
        file.relative_to(root).as_posix()
        for file in root.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "Released"
    }
    rooms = {"core/ledger.py", "privacy/mechanisms.py", "synthesis/labels.py"}
    assert calls <= rooms | {"synthesis/source.py"}


@pytest.mark.parametrize(
    ("mode", "law", "steps"), [("certified", "poisson", 12), ("paper", "fixed", 12)]
)
def test_the_gan_trains_in_the_mode_of_the_method(mode, law, steps):
    """A certified GAN draws Poisson samples, the published one batches of a fixed size.

    Both fit in this budget.
    """
    source = Source(
        mode=mode, generator="gan", pool_epsilon=50.0, gan=GANSettings(epochs=3, batch=25)
    )
    *_, line = source.pool_rule(DELTA).lines("0", 100, 1)
    assert (line.sampling.law, line.sampling.q, line.steps) == (law, 0.25, steps)


@pytest.mark.parametrize("mode", ["certified", "paper"])
def test_settings_are_those_of_the_training(mode):
    settings = GANSettings(epochs=3, batch=25, z=0.7, conditional=False)
    assert settings.in_mode(mode) == GAN(epochs=3, batch=25, z=0.7, conditional=False, mode=mode)


@pytest.mark.parametrize(
    "args", ["run dafl", "run gfl --mode paper", "synth digits --generator gan"]
)
@pytest.mark.parametrize("mode", ["certified", "paper"])
def test_a_mode_for_the_gan_alone_is_no_option(args, mode, capsys):
    assert call([*args.split(), "--gan.mode", mode]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--gan.mode: unknown option" in line


def test_a_mode_for_the_gan_alone_is_no_setting():
    with pytest.raises(BadInput, match=r"method\.gan key = 'mode'"):
        method_from_spec("gfl:gan.mode=paper")
    with pytest.raises(BadInput, match=r"gan = GAN\(\.\.\.\): must be GANSettings"):
        DAFL(gan=GAN(mode="paper"))
