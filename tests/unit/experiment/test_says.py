"""What a run says of its privacy is what its ledger says,
however it ended and whatever was evaluated.
"""

import math
from functools import cache

import pytest

import tacit
from tacit import privacy
from tacit.cli.main import call
from tacit.core import BadInput
from tacit.engines.sealed import Log
from tacit.experiment.compare import row
from tacit.experiment.result import Stopped
from tacit.experiment.rundir import RunDir
from tacit.experiment.sweep import sweep
from tacit.report.pictures import draw_accuracy, draw_sweep
from tacit.report.tables import comparison_table, sweep_table

# batches of everybody, so that no accountant takes long
WORD = "fedavg:rounds=30,sgd.clip=1.0,sgd.z=4.0,sgd.batch=1000"
QUICK = {"clients": 5, "workers": 0, "noise": "seeded"}
BUDGET = 4.0


def of_the_ledger(folder, unit="example", observer="server", relation="zero-out"):
    ledger = RunDir.open(folder).ledger()
    return privacy.epsilon(ledger, unit=unit, observer=observer, delta=1e-5, relation=relation)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """Return a run that its budget stopped, evaluated so often; tests only read it."""
    folder = tmp_path_factory.mktemp("stopped")

    @cache
    def run(eval_every):
        how = {"eval_every": eval_every, "budget": BUDGET, **QUICK}
        with pytest.raises(Stopped) as e:
            tacit.run(WORD, out=folder / str(eval_every), **how)
        return e.value.run

    return run


@pytest.mark.parametrize("eval_every", [1, 4, 100])
def test_a_stopped_run_has_spent_what_its_ledger_says(eval_every, stopped):
    """With an evaluation every fourth round it used to be what the fourth had cost."""
    run = stopped(eval_every)
    rounds = run.metrics[-1]["round"]
    assert rounds > 4
    assert rounds % 4
    assert 0.9 * BUDGET < run.epsilon["example/server"] <= BUDGET
    assert run.epsilon["example/server"] == of_the_ledger(run.folder)
    assert run.spent == run.epsilon["example/server"]


def test_a_run_without_an_evaluated_round_has_an_epsilon_and_no_accuracy(stopped):
    run = stopped(100)
    assert run.final == {}
    assert math.isnan(run.accuracy)
    made = row(WORD, [run])
    assert made.epsilon == run.epsilon
    assert made.spent == run.spent
    cells = comparison_table([made]).splitlines()[-1].split()
    assert cells[1:4] == ["-", "-", privacy.show_epsilon(run.spent)]


def test_a_finished_run_says_what_its_last_line_says(tmp_path):
    run = tacit.run("dp_fedavg:rounds=3,q=0.5,z=2.0", out=tmp_path / "run", eval_every=2, **QUICK)
    assert run.epsilon == run.metrics[-1]["epsilon"]
    assert run.spent == run.metrics[-1]["spent"] == of_the_ledger(run.folder, "client", "clients")
    first = run.metrics[0]  # not evaluated
    assert first["accuracy"] is None
    assert 0 < first["spent"] < run.spent


def test_repeats_show_the_one_that_has_spent_most(tmp_path, stopped):
    runs = [stopped(4)]
    runs.append(
        tacit.run(f"{WORD},rounds=1".replace("rounds=30,", ""), out=tmp_path / "b", **QUICK)
    )
    assert runs[1].spent < runs[0].spent
    for order in (runs, runs[::-1]):
        assert row(WORD, order).spent == runs[0].spent
        assert row(WORD, order).epsilon["example/server"] == runs[0].spent


@pytest.mark.slow
def test_a_sweep_shows_what_was_spent_where_a_budget_stopped_it(tmp_path):
    setting = {**QUICK, "budget": BUDGET}
    done = sweep(WORD, {"eval_every": [4, 100]}, out=tmp_path / "s", **setting)
    assert len(done.stopped) == 2
    spent = {row.spent for _, row in done.rows}
    assert spent == {of_the_ledger(f) for f in (tmp_path / "s").glob("fedavg*")}
    assert min(spent) > 0.9 * BUDGET
    *_, without = sweep_table(done.rows).splitlines()
    said = privacy.show_epsilon(min(spent))
    assert without.split()[1:5] == ["100", "-", said, "example/server"]
    assert draw_sweep(done.rows, tmp_path / "sweep")[0].stat().st_size > 1000
    nothing = {"fedavg": [tacit.experiment.result.Run(next((tmp_path / "s").glob("*=100-s0")))]}
    assert draw_accuracy(nothing, tmp_path / "accuracy")[0].stat().st_size > 1000


@pytest.mark.slow
def test_the_conclusion_and_a_stop_say_what_the_ledger_says(tmp_path, capsys):
    args = ["run", "fedavg", "--rounds", "30", "--sgd.clip", "1", "--sgd.z", "4", "--workers", "0"]
    args += ["--sgd.batch", "1000", "--clients", "5", "--eval-every", "100", "--noise", "seeded"]
    assert call([*args, "--budget", "4", "--out", str(tmp_path / "stopped")]) == 3
    said = capsys.readouterr().out
    spent = privacy.show_epsilon(of_the_ledger(tmp_path / "stopped"))
    assert f"eps {spent} for one example zeroed out against the server, delta 1e-05: " in said
    assert "if one example is replaced" in said
    assert call([*args, "--out", str(tmp_path / "whole")]) == 0
    said = capsys.readouterr().out
    spent = privacy.show_epsilon(of_the_ledger(tmp_path / "whole"))
    assert f"eps {spent} for one example zeroed out against the server, delta 1e-05: " in said
    replaced = privacy.show_epsilon(of_the_ledger(tmp_path / "whole", relation="replace"))
    assert f"eps {replaced} if one example is replaced\n" in said


def test_groups_are_told_from_the_ledger(tmp_path, capsys):
    """A budget that stops a run between two evaluations;
    both groups have spent more since the last.
    """
    word = "kd_dpfl:rounds=6,per_round=7,eps_1=1.0,eps_2=4.0,sgd.batch=1000"
    setting = {**QUICK, "split": "sizes:2x300,6x100,public=200"}
    del setting["clients"]
    with pytest.raises(Stopped) as e:
        tacit.run(word, out=tmp_path / "r", eval_every=3, budget=3.6, **setting)
    run = e.value.run
    assert run.metrics[-1]["round"] % 3, "the stop has to come between two evaluations"
    ledger = RunDir.open(run.folder).ledger()
    each = privacy.by_owner(ledger, unit="example", observer="server", delta=1e-5)
    groups = run.groups
    assert groups["large"]["clients"] == 2
    assert groups["general"]["clients"] == 6
    assert max(g["epsilon"] for g in groups.values()) == max(each.values()) == run.spent
    assert groups["large"]["epsilon"] == pytest.approx(1.0, rel=1e-3)
    assert run.final["groups"]["general"]["epsilon"] < groups["general"]["epsilon"]


def forget_manifest(folder):
    """Make a run what it was before there were manifests."""
    for file in [*folder.rglob("manifest.json"), *folder.rglob("*.mark")]:
        file.unlink()
    *_, state = sorted(folder.glob("checkpoint/state-*"))
    state.rename(folder / "checkpoint" / "state.safetensors")


def test_a_ledger_that_calls_zero_out_add_remove_is_read(tmp_path):
    """As it was called before: the same releases, the same figure, and a run that goes on."""
    run = tacit.run("ldp_fl:rounds=2,mode=gradient", out=tmp_path / "run", **QUICK)
    spent = run.spent
    for name, old in (("ledger.jsonl", '"add/remove"'), ("config.toml", '"add/remove"')):
        file = run.folder / name
        text = file.read_text()
        assert '"zero-out"' in text
        file.write_text(text.replace('"zero-out"', old))
    forget_manifest(run.folder)
    with pytest.raises(BadInput, match=r"no manifest\.json; a run of an earlier version, or dam"):
        _ = run.spent
    assert call(["privacy", str(run.folder), "--repair"]) == 0
    assert run.spent == spent
    assert {line.relation for line in run.ledger} == {"zero-out"}
    assert tacit.resume(run.folder).spent == spent


def test_a_relation_that_nobody_knows_is_refused(tmp_path):
    run = tacit.run("ldp_fl:rounds=1,mode=gradient", out=tmp_path / "run", **QUICK)
    file = run.folder / "ledger.jsonl"
    text = file.read_text().replace('"zero-out"', '"remove"')
    Log(file, "ledger").restore(text.splitlines(), writes=9)
    with pytest.raises(BadInput, match="relation = 'remove': allowed: zero-out, replace, either"):
        _ = run.ledger


def test_what_went_up_and_what_was_claimed_at_an_accuracy(tmp_path):
    """As CUAG-PFL's tables 6 and 1: GB of one client in every round, eps at a target."""
    word = "prifedsync:mode=paper,rounds=2,per_round=2,local.steps=1"
    run = tacit.run(word, out=tmp_path / "run", model="logistic", **QUICK)
    sent = sum(line["bytes_up"] for line in run.metrics)
    assert run.gigabytes_up == sent / 2**30
    assert run.client_gigabytes_up == run.gigabytes_up / 2
    dense = 2 * 4 * 65 * 10  # two rounds of the logistic regression on digits, 4 bytes a number
    assert dense < run.client_gigabytes_up * 2**30 < dense + 2 * 2000
    reached = run.reached(0.0)
    assert reached["round"] == 1
    assert reached["spent"] == math.inf
    assert 0 < reached["claimed"] == run.claimed_after(1) < run.claimed_after(2)
    assert run.reached(1.01) is None
