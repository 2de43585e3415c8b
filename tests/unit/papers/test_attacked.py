"""The attack finds members where samples are copies, and nothing where they are noise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tacit.core import BadInput
from tacit.data.examples import Examples
from tacit.experiment import attacked
from tacit.experiment.plan import Plan
from tacit.experiment.result import Run
from tacit.experiment.start import run
from tacit.methods.gfl import GFL


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(
        "gfl:n_k=4,rounds=1",
        split="label:2",
        clients=4,
        model="logistic",
        engine="serial",
        noise="seeded",
        out=tmp_path_factory.mktemp("gfl") / "run",
    )


def test_copies_of_members_are_found(done: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were a client's samples its own records, the attack would be certain."""
    federation = Plan.of(done.experiment).federation
    own = [federation.train(i).examples for i in federation.everyone]
    copies = [Examples(each.x[:80].float(), each.y[:80]) for each in own]
    monkeypatch.setattr(GFL, "synthetic", lambda self, s: copies)
    monkeypatch.setattr(attacked, "MOST", 80)
    assert attacked.attack_on(done).advantage > 0.95
    empty = [Examples(torch.zeros_like(each.x[:1]), each.y[:1]) for each in copies]
    monkeypatch.setattr(GFL, "synthetic", lambda self, s: empty)
    assert attacked.attack_on(done).advantage < 0.25


def test_copies_of_what_a_run_saw_are_found_where_it_saw_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each client sees its images with noise of its own, so that is what can be memorised."""
    noisy = run(
        "gfl:n_k=4,rounds=1",
        split="feature-noise:5",
        clients=4,
        model="logistic",
        engine="serial",
        noise="seeded",
        out=tmp_path / "noisy",
    )
    federation = Plan.of(noisy.experiment).encoded
    own = [federation.train(i) for i in federation.everyone]
    batches = [each.batch(slice(0, 80)) for each in own]
    mean, std = own[0].mean[0], own[0].std[0]
    copies = [Examples((x * std + mean) * 255, y) for x, y in batches]
    monkeypatch.setattr(GFL, "synthetic", lambda self, s: copies)
    monkeypatch.setattr(attacked, "MOST", 80)
    assert attacked.attack_on(noisy).advantage > 0.95


def test_samples_of_a_run_are_attacked_as_they_are(done: Run) -> None:
    assert 0 <= attacked.attack_on(done).advantage < 0.5


def test_a_run_without_samples_is_refused(tmp_path: Path) -> None:
    plain = run("fedavg:rounds=1", clients=2, model="logistic", engine="serial", out=tmp_path / "r")
    with pytest.raises(BadInput, match="not every client has shared samples"):
        attacked.attack_on(plain)


ATTACK = """
from pathlib import Path
import sys
from tacit.experiment import attacked
from tacit.experiment.result import Run
print(attacked.attack_on(Run(Path(sys.argv[1]))).members.tolist())
"""


def attacked_later(folder: Path) -> str:
    """Attack in a new process, which loads a file as it is by then."""
    call = [sys.executable, "-c", ATTACK, str(folder)]
    return subprocess.run(call, check=True, capture_output=True, text=True).stdout


def test_records_are_looked_at_as_the_run_saw_them(tmp_path: Path) -> None:
    """A file of features that has changed since is not what the samples were made with."""
    file = tmp_path / "features_that_change.py"
    file.write_text("def f(x):\n    return x.flatten(1)\n")
    seen = run(
        "gfl:n_k=4,rounds=1",
        split="label:2",
        clients=4,
        model="logistic",
        features=f"{file}:f",
        engine="serial",
        noise="seeded",
        out=tmp_path / "run",
    )
    file.write_text("def f(x):\n    return x.flatten(1) * 0\n")
    assert attacked_later(seen.folder) == f"{attacked.attack_on(seen).members.tolist()}\n"
