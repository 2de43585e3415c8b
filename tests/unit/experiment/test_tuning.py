"""Choosing among runs by public data, and what looking at all of them has cost."""

import math
import os
from dataclasses import replace

import numpy as np
import pytest

import tacit
from tacit import privacy
from tacit.cli.main import call
from tacit.core import FEDERATION, BadInput, Gaussian, Ledger, NonPrivate, Release, Sampling
from tacit.data import load
from tacit.experiment.config import Experiment, Setting
from tacit.experiment.tuning import Validation, public_data, together
from tacit.methods.dp_fedavg import DPFedAvg
from tacit.methods.kd_dpfl import KDDPFL
from tacit.methods.ldp_fl import LDPFL
from tacit.report.reading import choice_in

DELTA = 1e-5


def spend(z, client="0", event=None):
    return Release("update", "example", client, "server", event or Gaussian(z), ((0, 3),))


class Finished:
    """A run with a ledger and nothing else."""

    def __init__(self, *lines):
        self.ledger = Ledger(lines)
        self.experiment = Experiment(LDPFL())

    def of(self, method, **setting):
        """Return the same as a run of another experiment."""
        self.experiment = Experiment(method, Setting(**setting))
        return self


def together_at(runs, delta=DELTA):
    return together(runs, delta)


def eps(*lines, delta=DELTA):
    return privacy.epsilon(Ledger(lines), unit="example", observer="server", delta=delta)


def test_runs_of_the_same_noise_add_up_and_are_not_taken_for_one():
    """Twice four releases at z are what four releases at z / sqrt 2 are."""
    found = together_at([Finished(spend(20.0)), Finished(spend(20.0))])
    assert found == pytest.approx(eps(spend(20.0 / math.sqrt(2))), rel=1e-6)
    assert found > eps(spend(20.0))


def test_other_names_of_the_clients_change_nothing():
    a, b = Finished(spend(20.0, "0")), Finished(spend(20.0, "7"))
    assert together_at([a, b]) == together_at([a, a])


def test_clients_that_are_charged_unlike_are_added_up_at_a_share_of_delta():
    mixed = Finished(spend(20.0, "0"), spend(30.0, "1"))
    assert together_at([mixed, mixed]) == pytest.approx(
        2 * eps(spend(20.0), delta=DELTA / 2), rel=0.02
    )


def test_one_run_without_noise_is_enough_to_be_infinite():
    open_ = Finished(spend(1.0, event=NonPrivate("no noise")))
    assert together_at([Finished(spend(20.0)), open_]) == math.inf
    assert together_at([Finished(spend(20.0)), Finished()]) == math.inf


def drawn(q, **setting):
    line = Release("x", "client", FEDERATION, "clients", Gaussian(2.0), ((0, 2),))
    run = Finished(replace(line, sampling=Sampling.at(q)))
    return run.of(DPFedAvg(), **setting)


def test_clients_that_the_same_seed_draws_in_all_runs_are_not_hidden_by_it():
    """Eight runs with the same clients are one whose noise is smaller, at best."""
    line = Release("x", "client", FEDERATION, "clients", Gaussian(2.0 / math.sqrt(8)), ((0, 2),))
    joined = Ledger([replace(line, sampling=Sampling.at(0.1))])
    least = privacy.epsilon(joined, unit="client", observer="clients", delta=DELTA)
    assert together_at([drawn(0.1)] * 8) >= least
    assert together_at([drawn(0.1)]) < together_at([drawn(1.0)])  # a single run has its lot


def test_a_client_is_another_one_under_another_split_or_seed():
    assert together_at([drawn(1.0), drawn(1.0)]) < math.inf
    assert together_at([drawn(1.0), drawn(1.0, seed=1)]) == math.inf
    assert together_at([drawn(1.0), drawn(1.0, clients=20)]) == math.inf


def test_a_record_that_another_seed_makes_public_has_no_epsilon():
    first, second = (Finished(spend(20.0)).of(KDDPFL(), seed=seed) for seed in (0, 1))
    assert together_at([first, second]) == math.inf
    assert together_at([first, first]) < math.inf


def test_delta_is_that_which_is_asked_for():
    runs = [Finished(spend(20.0)).of(LDPFL(), delta=delta) for delta in (1e-2, 1e-5)]
    assert together_at(runs) == together_at(runs[::-1]) > together_at(runs, 1e-2)


def test_the_best_is_the_first_of_the_best_and_never_one_without_a_model():
    assert Validation("x", 1, [math.nan, 0.5, 0.7, 0.7]).best == 2


@pytest.fixture(scope="module")
def public(tmp_path_factory):
    """Public digits: some like those of the package, a little darker, in a file of their own."""
    file = tmp_path_factory.mktemp("public") / "public.npz"
    digits = load("digits").test
    np.savez(file, x=digits.x[:200].numpy() // 2, y=digits.y[:200].numpy())
    return file


SMALL = ["--clients", "2", "--rounds", "1", "--model", "logistic", "--noise", "seeded"]


def test_a_sweep_is_chosen_on_public_data_and_says_what_it_has_cost(public, tmp_path, capsys):
    words = ["sweep", "fedavg", "--over", "sgd.lr=0.00001,0.1", "--validate", str(public), *SMALL]
    call([*words, "--sgd.clip", "1", "--sgd.z", "1", "--out", str(tmp_path / "s")])
    said = capsys.readouterr().out
    assert "best on 200 public records of public: fedavg, sgd.lr = 0.1 with" in said
    assert "eps of all 2 runs together is" in said
    swept = tacit.experiment.sweep.resume_sweep(tmp_path / "s")  # nothing is left to run
    model = swept.runs[1][1][0].model()
    digits = load("digits").test
    right = float((model.predict(digits.x[:200] // 2) == digits.y[:200]).float().mean())
    assert swept.table()[1]["validated"] == swept.validation.accuracy[1] == pytest.approx(right)
    assert swept.together > max(row.spent for _, row in swept.rows)
    assert swept.choice in said
    assert swept.choice in (tmp_path / "s" / "table.txt").read_text()
    assert swept.choice in (tmp_path / "s" / "report.html").read_text()
    one = swept.runs[1][1][0].folder
    assert call(["report", str(one)]) == call(["report", str(one), "--for", "review"]) == 0
    for page in one.glob("*.html"):
        assert "runs together is" in page.read_text()
    assert len(list(one.glob("*.html"))) == 2


def test_to_choose_by_models_that_no_noise_protects_has_no_epsilon(tmp_path, capsys):
    """A client's own model is fitted to its records as they are, and so is its accuracy."""
    for n, word in enumerate(("local", "cuag:epsilon=8")):
        out = str(tmp_path / str(n))
        call(["sweep", word, "--over", "rounds=1", "--clients", "2", "--out", out])
        said = capsys.readouterr().out
        assert "eps of all 1 runs together is inf: to choose by their test data costs that" in said
        assert "no eps covers the test records" in said


def test_without_it_the_test_data_are_not_praised(tmp_path, capsys):
    call(["sweep", "fedavg", "--over", "sgd.lr=0.1", *SMALL, "--out", str(tmp_path / "s")])
    assert "eps of all 1 runs together is inf: to choose by their test" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("digits", "must be other data than those that are trained on"),
        ("nothing.npz", "nothing.npz"),
    ],
)
def test_data_that_cannot_choose_are_refused_before_anything_runs(tmp_path, word, why):
    with pytest.raises(BadInput, match=why):
        tacit.sweep("fedavg", {"sgd.lr": [0.1]}, out=tmp_path / "s", validate=word)
    assert not (tmp_path / "s").exists()


def test_inputs_that_models_would_not_take_are_refused_before_anything_runs(public, tmp_path):
    with np.load(public) as old:
        np.savez(tmp_path / "scaled.npz", x=old["x"] / 16.0, y=old["y"])
    why = r"validate = '.*scaled.npz': from 0 to 7.9375: must be pixels"
    with pytest.raises(BadInput, match=why):
        tacit.sweep(
            "fedavg", {"sgd.lr": [0.1]}, validate=str(tmp_path / "scaled.npz"), out=tmp_path / "s"
        )
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_runs_own_records_are_not_public_whatever_their_file_is_called(part, tmp_path, capsys):
    """Choosing by exact scores on private records is in no ledger."""
    own = getattr(load("digits"), part)
    x, y = own.x[:100].numpy(), own.y[:100].numpy()
    np.savez(tmp_path / "copy.npz", x=x[::-1], y=y[::-1])
    with pytest.raises(BadInput, match=r"copy.npz': each of its 100 records is one that is train"):
        tacit.sweep(
            "fedavg", {"sgd.lr": [0.1]}, validate=str(tmp_path / "copy.npz"), out=tmp_path / "s"
        )
    assert not (tmp_path / "s").exists()
    np.savez(tmp_path / "some.npz", x=np.concatenate([x[:30], x // 2]), y=np.append(y[:30], y))
    found = public_data(str(tmp_path / "some.npz"), Setting(), load("digits"))
    assert len(found.train) + len(found.test) == 130
    assert "30 of its 130 records are like ones" in capsys.readouterr().err


def test_other_shapes_and_classes_are_refused(public, tmp_path):
    with np.load(public) as old:
        x, y = old["x"], old["y"]
    for name, more in (
        ("wide.npz", {"x": np.repeat(x, 2, axis=-1), "y": y}),
        ("fewer.npz", {"x": x, "y": y % 5}),
    ):
        np.savez(tmp_path / name, **more)
        with pytest.raises(BadInput, match=r"validate = .*has (inputs of shape|classes) .*must"):
            tacit.sweep(
                "fedavg", {"sgd.lr": [0.1]}, validate=str(tmp_path / name), out=tmp_path / "s"
            )


@pytest.mark.parametrize("text", ["", "[1]", '{"said": 3}', "[" * 4000, "{", '{"said": "cut sh'])
def test_a_folder_that_says_nothing_of_a_choice_is_read_as_such(text, tmp_path):
    assert choice_in(tmp_path) == ""
    (tmp_path / "choice.json").write_text(text)
    assert choice_in(tmp_path) == ""


def test_nobody_waits_for_a_pipe_in_a_strangers_folder(tmp_path):
    os.mkfifo(tmp_path / "choice.json")
    assert choice_in(tmp_path) == ""
