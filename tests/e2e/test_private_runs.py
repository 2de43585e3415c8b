"""Private runs as a user starts them.

What is predicted is what is spent, budgets stop, resume continues the ledger.
"""

import json
import math

import pytest
from safetensors.torch import load_file

import tacit
from tacit import privacy
from tacit.cli.main import call
from tacit.core import BudgetReached
from tacit.experiment.config import Experiment, Setting
from tacit.experiment.forecast import predicted
from tacit.experiment.rundir import RunDir
from tacit.experiment.start import resume
from tacit.methods.spec import method_from_spec
from tacit.privacy import show_epsilon

QUICK = {"clients": 5, "workers": 0, "noise": "seeded"}


FEW = [
    "ldp_fl:rounds=2",
    "ldp_fl:rounds=2,mode=gradient,relation=replace",
    "ldp_fl:rounds=3,per_round=2,epsilons=[1.0,4.0]",
    "dp_fedavg:rounds=2,q=0.5,epsilon=3.0,adaptive=true",
    "cl_fl:rounds=2,per_round=3",
    "nbafl:rounds=2,mode=paper",
    "udp:rounds=2",
    "dp_scaffold:rounds=2",
    "fedavg:rounds=2,sgd.clip=1.0,sgd.epsilon=4.0",
]
MORE = [
    "ldp_fl:rounds=2,mode=gradient",
    "ldp_fl:rounds=2,mode=update",
    "ldp_fl:rounds=2,mode=paper",
    "dp_fedavg:rounds=2,q=0.5,z=2.0",
    "nbafl:rounds=2",
    "udp:rounds=2,mode=paper",
    "fedavg:rounds=2",
]


@pytest.mark.parametrize("word", [*FEW, *(pytest.param(w, marks=pytest.mark.slow) for w in MORE)])
def test_what_is_predicted_is_what_is_spent(word, tmp_path):
    run = tacit.run(word, out=tmp_path / "run", **QUICK)
    method = method_from_spec(word)
    unit, observer = method.protects
    told = privacy.epsilon(
        predicted(Experiment(method, Setting(**QUICK))), unit=unit, observer=observer, delta=1e-5
    )
    assert run.spent == pytest.approx(told, rel=1e-6)


@pytest.mark.parametrize(
    ("word", "target"),
    [
        ("ldp_fl:rounds=2,epsilon=3.0", 3.0),
        ("ldp_fl:rounds=2,epsilon=3.0,mode=gradient", 3.0),
        ("ldp_fl:rounds=2,epsilon=3.0,mode=update", 3.0),
        ("fedprox:rounds=2,sgd.clip=1.0,sgd.epsilon=3.0", 3.0),
        ("udp:rounds=2,epsilon=3.0", 3.0),
        ("nbafl:rounds=2,epsilon=3.0", 3.0),
        ("dp_fedavg:rounds=2,q=0.5,epsilon=3.0", 3.0),
    ],
)
def test_the_epsilon_that_was_asked_for_comes_out_and_is_not_passed(word, target, tmp_path):
    run = tacit.run(word, out=tmp_path / "run", **QUICK)
    assert 0.97 * target < run.spent <= target


def test_replace_one_is_the_papers_2c_over_m(tmp_path):
    run = tacit.run(
        "ldp_fl:rounds=3,epsilon=4.0,mode=gradient,relation=replace", out=tmp_path / "run", **QUICK
    )
    ledger = RunDir.open(run.folder).ledger()
    spent = privacy.epsilon(
        ledger, unit="example", observer="server", delta=1e-5, relation="replace"
    )
    assert spent == pytest.approx(4.0, rel=1e-6)


def test_each_client_may_have_its_own_epsilon(tmp_path):
    run = tacit.run(
        "ldp_fl:rounds=2,mode=gradient,epsilons=[1.0,4.0]", out=tmp_path / "run", **QUICK
    )
    ledger = RunDir.open(run.folder).ledger()
    each = privacy.by_owner(ledger, unit="example", observer="server", delta=1e-5)
    assert [round(each[str(i)], 6) for i in range(5)] == [1.0, 4.0, 1.0, 4.0, 1.0]


def test_a_budget_stops_before_the_round_that_would_pass_it(tmp_path, capsys):
    out = tmp_path / "run"
    args = [
        "run",
        "fedavg",
        "--rounds",
        "30",
        "--sgd.clip",
        "1",
        "--sgd.z",
        "2",
        "--budget",
        "3",
        "--clients",
        "5",
        "--workers",
        "0",
    ]
    assert call([*args, "--noise", "seeded", "--out", str(out)]) == 3
    said, errors = capsys.readouterr()
    assert (
        errors.strip().splitlines()[-1].startswith("tacit: budget = 3: with this step epsilon is")
    )
    last = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
    assert 1 <= last["round"] < 30
    ledger = RunDir.open(out).ledger()
    spent = privacy.epsilon(ledger, unit="example", observer="server", delta=1e-5)
    assert spent <= 3
    rounds, accuracy, epsilon, replaced, files = said.splitlines()
    assert rounds == f"fedavg: stopped after {last['round']} of 30 rounds"
    assert accuracy == f"accuracy {100 * last['accuracy']:.2f}% after round {last['round']}"
    assert epsilon.startswith(
        f"eps {show_epsilon(spent)} for one example zeroed out against the server, delta 1e-05: "
    )
    assert replaced.endswith(" if one example is replaced")
    assert files == f"files in {out}"
    assert (out / "model.safetensors").exists()
    assert call(["resume", str(out)]) == 3  # a spent budget stays spent


def test_a_method_without_noise_cannot_start_under_a_budget(tmp_path, capsys):
    assert call(["run", "fedavg", "--budget", "3", "--out", str(tmp_path / "run")]) == 3
    said, errors = capsys.readouterr()
    assert "inf" in errors
    assert "stopped after 0 of" in said
    assert "nothing has left a client: the ledger is empty" in said
    assert (tmp_path / "run" / "ledger.jsonl").read_bytes() == b""


def test_a_central_budget_stops_too(tmp_path):
    with pytest.raises(BudgetReached):
        tacit.run("dp_fedavg:rounds=50,q=0.5,z=1.0", out=tmp_path / "run", budget=5.0, **QUICK)
    ledger = RunDir.open(tmp_path / "run").ledger()
    assert privacy.epsilon(ledger, unit="client", observer="clients", delta=1e-5) <= 5.0


def test_a_resumed_run_has_the_epsilon_and_the_weights_of_an_undisturbed_one(tmp_path):
    word = "dp_scaffold:rounds=4"
    whole = tacit.run(word, out=tmp_path / "whole", **QUICK)
    tacit.run("dp_scaffold:rounds=2", out=tmp_path / "part", **QUICK)
    part = resume(tmp_path / "part", rounds=4)
    assert part.epsilon == whole.epsilon
    assert math.isfinite(part.epsilon["example/server"])
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "part")]
    assert models[0] == models[1]


def test_noise_from_the_system_is_the_default_and_differs_every_time(tmp_path):
    setting = {"clients": 5, "workers": 2}  # forked, with the same memory
    a, b = (tacit.run("dp_scaffold:rounds=1", out=tmp_path / n, **setting) for n in "ab")
    models = [(r.folder / "model.safetensors").read_bytes() for r in (a, b)]
    assert models[0] != models[1]
    assert {line.noise for line in RunDir.open(a.folder).ledger()} == {"os"}
    assert "simulated" not in a.why


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (
            "privacy --z 1.1 --q 0.0042667 --steps 14062",
            ["2.383", "2.597", "CLT-GDP", "does not certify"],
        ),
        ("privacy --epsilon 1 --q 0.042667 --steps 1172", ["z = 5.5"]),
        ("privacy --epsilon 50 --q 0.042667 --z 0.5", ["980 steps"]),
        ("privacy --epsilon 4 --z 1 --steps 300", ["sampling rate q = 0.0"]),
        (
            "privacy ldp_fl --rounds 150 --epsilon 4 --paper",
            ["4.35", "3.55", "inf", "full-batch gradient"],
        ),
        ("privacy dp_fedavg --rounds 10 --q 0.1", ["against public", "poisson"]),
        ("privacy fedavg", ["inf", "without noise"]),
        ("privacy local", ["nothing about the data left any client"]),
        (
            "privacy prifedsync --rounds 50 --paper",
            ["prifedsync: what its paper claims", "round 300"],
        ),
        ("privacy --help", ["usage", "examples"]),
    ],
)
def test_tacit_privacy_answers(args, words, capsys):
    assert call(args.split()) == 0
    said = capsys.readouterr().out
    assert all(word in said for word in words), said


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("privacy --z 1 --q 2 --steps 5", ["q = 2", "at most 1"]),
        ("privacy --epsilon -1 --q 0.1 --steps 5", ["epsilon = -1", "above 0"]),
        ("privacy --epsilon 1 --z 1 --q 0.1 --steps 5", ["all but one"]),
        ("privacy --z 1 --q 0.1 --steps 5 --delta 1", ["delta", "below 1"]),
        ("privacy --z 1 --q 0.1 --steps 0.5", ["--steps", "'0.5'"]),
        ("run fedavg --sgd.z 1", ["sgd.clip", "above 0"]),
        ("run ldp_fl --epsilon 0", ["epsilon = 0", "above 0"]),
        ("run ldp_fl --clip 0", ["clip = 0", "above 0"]),
        ("run dp_fedavg --q 1.5", ["q = 1.5", "at most 1"]),
        ("run ldp_fl --mode local", ["--mode", "'local'", "gradient"]),
        ("run fedavg --budget 0", ["budget = 0", "above 0"]),
        ("run fedmix --sgd.clip 1 --sgd.z 1", ["sgd.clip = 1", "not a sum over examples"]),
        ("privacy fedmix --sgd.clip 1 --sgd.z 1", ["sgd.clip = 1", "not a sum over examples"]),
        ("privacy nbafl --sgd.clip 1 --sgd.epsilon 4", ["sgd.clip = 1", "whole clients"]),
        ("privacy dafl --sgd.clip 1 --sgd.epsilon 4", ["sgd.clip = 1", "'synthetic'", "'dp-sgd'"]),
        ("privacy dafl --method centralised", ["method = 'centralised'", "in every round"]),
        ("run dp_scaffold --sgd.clip 0 --sgd.z 0", ["sgd.clip", "above 0"]),
    ],
)
def test_bad_input_about_privacy_is_one_line(args, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call(args.split()) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("tacit: ")]
    assert len(lines) == 1
    assert all(word in lines[0] for word in words), lines[0]


def test_a_delta_of_one_over_n_or_more_is_warned_of(tmp_path, capsys):
    args = "run fedavg --rounds 1 --sgd.clip 1 --sgd.z 1 --delta 0.1 --out"
    assert call([*args.split(), str(tmp_path / "run")]) == 0
    assert "delta = 0.1" in capsys.readouterr().err


def test_classes_that_the_data_decide_are_said_and_can_be_stated(tmp_path, capsys, monkeypatch):
    """A class that one record alone has tells of it; stated ones are there without records."""
    monkeypatch.chdir(tmp_path)
    rows = [f"{i % 7},{i % 5},{i % 2}" for i in range(60)]
    (tmp_path / "visits.csv").write_text("\n".join(["a,b,label", *rows]))
    run = ["run", "fedavg", "--data", "visits.csv", "--rounds", "1", "--clients", "2"]
    assert call([*run, "--workers", "0", "--out", "found"]) == 0
    assert "2 classes were found in the data and count as public" in capsys.readouterr().err
    assert call([*run, "--workers", "0", "--classes", "3", "--out", "stated"]) == 0
    assert "classes were found" not in capsys.readouterr().err
    assert resume("stated", rounds=2).rounds == 2
    model = load_file(tmp_path / "stated" / "model.safetensors")
    assert [v.shape[0] for v in model.values() if v.ndim == 2][-1] == 3
