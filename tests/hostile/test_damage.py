"""A damaged store never spends less, and a damaged run never says or does anything else in silence.

One file is damaged at a time. Either that is refused in one line, or nothing has changed: the same
epsilon, the same model, the same metrics. What is repaired never says less than it did.
"""

import math
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
from asking import CHARTER, CLIENT, X, a_site, ask, records
from damage import damage, fresh

import tacit
from tacit import privacy
from tacit.apps.books import Books
from tacit.apps.repair import repair_store
from tacit.cli.main import call
from tacit.core import Damaged, Ledger, TacitError
from tacit.engines.store import ClientStore
from tacit.experiment.repair import repair_run
from tacit.experiment.result import Run
from tacit.experiment.rundir import RunDir
from tacit.experiment.watch import Nobody
from tacit.local.sgd import SGD
from tacit.methods.scaffold import train as scaffold_train

PRIVATE = SGD(clip=1.0, z=2.0, batch=4)
OTHER = replace(CHARTER, run="fedcba9876543210")
MANY = 900  # each of stores and of runs under way; 200 of finished runs


# ---- a site's store


def work(site, charter, round):
    """Let a site train privately, and keep state."""
    accepted = f"{scaffold_train.name}@{round - 1}" if round else None
    how = scaffold_train(x=X, c=X.zeros(), sgd=PRIVATE)
    return ask(site, how, round=round, charter=charter, accepted=accepted)


def spent(folder):
    """Return what a store says that all its runs have cost."""
    every = Ledger()
    books = Books(folder)
    books.verify()
    for name, ledger in books.ledgers():
        every.add(replace(line, owner="site", what=f"{line.what} {name}") for line in ledger)
    return epsilon(every)


def epsilon(ledger):
    return privacy.epsilon(ledger, unit="example", observer="server", delta=1e-5, quick=True)


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """A store after three rounds of two runs, and as it was after the first."""
    folder = tmp_path_factory.mktemp("stores")
    site = a_site(folder / "now", noise="os")
    for round in range(3):
        for charter in (CHARTER, OTHER):
            work(site, charter, round)
        if round == 0:
            fresh(folder / "now", folder / "before")
    assert 0 < spent(folder / "before") < spent(folder / "now") < math.inf
    return folder


def check_store(stores, seed, to):
    """Damage a store; it refuses, or says what it said; what is repaired says no less."""
    true = spent(stores / "now")
    store = fresh(stores / "now", to)
    what = damage(store, stores / "before", seed)
    try:
        assert spent(store) == true, what
        refused = False
    except TacitError:
        refused = True
    try:
        work(a_site(store, noise="os", budget=1e9), CHARTER, 3)
        assert not refused, what
        assert spent(store) > true, what
    except TacitError:
        pass
    repair_store(store, lambda text: None)
    assert spent(store) >= true, what
    return refused


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_store_never_spends_less(stores, tmp_path, seed):
    check_store(stores, seed, tmp_path / "store")


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_many_damaged_stores_never_spend_less(stores, tmp_path):
    refused = sum(check_store(stores, 1000 + n, tmp_path / "store") for n in range(MANY))
    assert refused > MANY / 4


def test_a_site_refuses_a_damaged_store_and_tells_nobody_where_it_is(stores, tmp_path, caplog):
    store = fresh(stores / "now", tmp_path / "store")
    ledger = store / CHARTER.run / CLIENT / "ledger.jsonl"
    ledger.write_text("".join(ledger.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(TacitError) as e:
        work(a_site(store, noise="os"), CHARTER, 3)
    assert str(e.value) == "this site's memory is damaged; its owner is told how"
    assert f"`tacit privacy {store} --repair`" in caplog.text


def test_a_whole_run_that_is_gone_is_missed(stores, tmp_path):
    """Ledger, mark and all: the books still know of it."""
    store = fresh(stores / "now", tmp_path / "store")
    shutil.rmtree(store / OTHER.run)
    with pytest.raises(Damaged, match="an old copy"):
        spent(store)
    with pytest.raises(TacitError):  # where there is a budget, other runs count
        work(a_site(store, noise="os", budget=100.0), CHARTER, 3)
    true = spent(stores / "now")
    repair_store(store, lambda text: None)
    assert spent(store) == true  # from the copy


def test_what_cannot_be_restored_is_infinite(stores, tmp_path):
    store = fresh(stores / "now", tmp_path / "store")
    shutil.rmtree(store / OTHER.run)
    shutil.rmtree(store / "copies")
    said = []
    repair_store(store, said.append)
    assert "counts as infinite" in "".join(said)
    assert spent(store) == math.inf


def test_a_store_of_an_earlier_version_is_refused_and_taken_over(stores, tmp_path, capsys):
    store = fresh(stores / "now", tmp_path / "store")
    true = spent(store)
    shutil.rmtree(store / "copies")
    for file in [store / "books.json", *store.rglob("*.mark")]:
        file.unlink()
    assert call(["privacy", str(store)]) == 2
    assert "a store of an earlier version, or damaged" in capsys.readouterr().err
    assert call(["privacy", str(store), "--repair"]) == 0
    assert "taken over as it stands" in capsys.readouterr().out
    assert spent(store) == true
    work(a_site(store, noise="os"), CHARTER, 2)


def test_privacy_says_what_a_store_has_spent(stores, capsys):
    assert call(["privacy", str(stores / "now")]) == 0
    *runs, every = capsys.readouterr().out.splitlines()
    assert len(runs) == 2
    assert every.startswith("all runs: eps ")
    assert every.endswith(" for one example against the server, delta 1e-05")


def test_lines_of_a_kill_stay(tmp_path):
    """A ledger that was written before its mark has more lines than that, and they count."""
    store = ClientStore(tmp_path / "run" / "1")
    site = a_site(tmp_path / "site", records())
    lines = [line for round in range(2) for line in work(site, CHARTER, round).ledger]
    store.write_ledger(Ledger(lines[:1]))
    mark = (store.folder / "ledger.mark").read_bytes()
    store.write_ledger(Ledger(lines))
    (store.folder / "ledger.mark").write_bytes(mark)
    assert ClientStore(store.folder).ledger() == Ledger(lines)


# ---- a run directory

WORDS = {  # one whose clients keep state, and one whose server adds the noise
    "clients": "dp_scaffold:rounds=4,sgd.batch=16,sgd.clip=1,sgd.z=1",
    "server": "dp_fedavg:rounds=4,q=0.7,z=1.5",
}
SETTING = {
    "clients": 3,
    "workers": 0,
    "model": "logistic",
    "noise": "seeded",
    "split": "sizes:3x40",
}


class Photographer(Nobody):
    """Copies the run directory after each round: what a kill would leave."""

    def __init__(self, run, to):
        self.run, self.to = run, to

    def finished_round(self, line, rounds):
        shutil.copytree(self.run, self.to / f"after-{line['round']}")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name, word in WORDS.items():
        watch = Photographer(folder / name / "whole", folder / name)
        tacit.run(word, out=folder / name / "whole", watch=watch, **SETTING)
    return folder


def outcome(folder):
    """Return all of a run that somebody may rely on."""
    run = Run(folder)
    metrics = [{k: v for k, v in line.items() if k != "seconds"} for line in run.metrics]
    return metrics, run.epsilon, (folder / "model.safetensors").read_bytes()


FIGURES = ("epsilon", "spent")


def same_outcome(now, whole, went_back):
    """Tell whether all is the same; a run that went back says what it had released by then."""
    if not went_back:
        return now == whole
    (lines, *rest), (known, *others) = now, whole
    grown = all(a["spent"] >= b["spent"] for a, b in zip(lines, known, strict=True))
    rounds, before = (
        [{k: v for k, v in line.items() if k not in FIGURES} for line in each]
        for each in (lines, known)
    )
    return grown and (rounds, rest) == (before, others)


def check_run(runs, base, seed, to, capsys):
    """Damage a run; reading and going on say so, or give what they gave."""
    runs = runs / list(WORDS)[seed % 2]
    whole, before = outcome(runs / "whole"), Run(runs / base)
    run = fresh(runs / base, to)
    what = damage(run, runs / "after-1", seed)
    try:
        told = (Run(run).metrics, Run(run).epsilon)
        assert told == (before.metrics, before.epsilon), what
    except TacitError:
        pass
    capsys.readouterr()
    try:
        tacit.resume(run)
        went_back = "going on from the checkpoint of round" in capsys.readouterr().err
        assert same_outcome(outcome(run), whole, went_back), what
        return 0
    except TacitError:
        pass
    try:
        repair_run(run, lambda text: None)
        assert Run(run).spent >= before.spent, what
    except TacitError:
        pass
    return 1


@pytest.mark.parametrize("base", ["after-3", "whole"])
@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_run_changes_nothing_in_silence(runs, base, seed, tmp_path, capsys):
    check_run(runs, base, seed, tmp_path / "run", capsys)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(("base", "many"), [("after-3", MANY), ("whole", 200)])
def test_many_damaged_runs_change_nothing_in_silence(runs, base, many, tmp_path, capsys):
    refused = sum(check_run(runs, base, 1000 + n, tmp_path / "run", capsys) for n in range(many))
    assert refused > many / 4


def test_a_run_that_goes_back_has_released_more_by_then(runs, tmp_path, capsys):
    """Two checkpoints in each other's place: said aloud, and nothing that was released is lost."""
    run = fresh(runs / "clients" / "after-3", tmp_path / "run")
    two, three = (run / "checkpoint" / f"state-00000{n}.safetensors" for n in (2, 3))
    blobs = two.read_bytes(), three.read_bytes()
    two.write_bytes(blobs[1])
    three.write_bytes(blobs[0])
    tacit.resume(run)
    assert "going on from the checkpoint of round 1" in capsys.readouterr().err
    now, whole = outcome(run), outcome(runs / "clients" / "whole")
    assert now[0][1]["spent"] > whole[0][1]["spent"]
    assert same_outcome(now, whole, went_back=True)


def test_two_documents_of_one_place_in_each_others_are_refused(runs, tmp_path):
    run = fresh(runs / "server" / "after-3", tmp_path / "run")
    requests = sorted(run.rglob("requests.json"))[0]
    mark = requests.with_name("ledger.mark")
    blobs = requests.read_bytes(), mark.read_bytes()
    requests.write_bytes(blobs[1])
    mark.write_bytes(blobs[0])
    with pytest.raises(Damaged, match="another document"):
        RunDir.open(run).ledger()
    mark.write_bytes(blobs[1])
    with pytest.raises(TacitError):
        tacit.resume(run)


def test_every_file_of_a_finished_run_is_verified(runs, tmp_path, capsys):
    for file in ("model.safetensors", "metrics.jsonl", "config.toml", "ledger.jsonl"):
        run = fresh(runs / "server" / "whole", tmp_path / "run")
        assert call(["privacy", str(run)]) == 0
        blob = bytearray((run / file).read_bytes())
        blob[len(blob) // 2] ^= 1
        (run / file).write_bytes(blob)
        capsys.readouterr()
        assert call(["privacy", str(run)]) == 2
        assert f"{run / file}: not as it was written" in capsys.readouterr().err


def test_a_round_that_is_there_twice_is_noticed(runs, tmp_path):
    """Also the last one, after which a kill may leave lines that nothing vouches for."""
    run = fresh(runs / "server" / "after-3", tmp_path / "run")
    *_, last = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    with (run / "metrics.jsonl").open("a") as f:
        f.write(last)
    with pytest.raises(Damaged, match=r"metrics\.jsonl: not as it was written"):
        RunDir.open(run).metrics()


def test_a_process_that_knows_no_method_yet_can_verify_and_take_over(runs, tmp_path, capsys):
    """Here all methods are known; a command that is started afresh knows none."""
    run = fresh(runs / "clients" / "whole", tmp_path / "run")
    command = [sys.executable, "-c", "from tacit.cli.main import main; main()", "privacy", str(run)]
    assert call(["privacy", str(run)]) == 0
    said = capsys.readouterr().out
    for file in [*run.rglob("manifest.json"), *run.rglob("*.mark")]:
        file.unlink()
    (run / "checkpoint/state-000004.safetensors").rename(run / "checkpoint/state.safetensors")
    again = subprocess.run([*command, "--repair"], capture_output=True, text=True, check=False)
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout.endswith(said)


def test_a_run_without_its_checkpoints_does_not_start_again(runs, tmp_path, capsys):
    run = fresh(runs / "clients" / "after-3", tmp_path / "run")
    for file in (run / "checkpoint").glob("state-*"):
        file.unlink()
    assert call(["resume", str(run)]) == 2
    assert "there is no other checkpoint to go back to" in capsys.readouterr().err
    assert [line["round"] for line in RunDir.open(run).metrics()] == [1, 2, 3]


def test_a_run_goes_back_when_it_is_told_to(runs, tmp_path, capsys):
    run = fresh(runs / "clients" / "after-3", tmp_path / "run")
    assert call(["resume", str(run), "--back", "3"]) == 2
    assert "back = 3: must be at least 0 and at most 2" in capsys.readouterr().err
    kept = sorted(run.glob("checkpoint/clients/1/*@2.safetensors"))
    kept[-1].write_bytes(kept[-1].read_bytes()[:-4])
    assert call(["resume", str(run)]) == 2
    assert f"{kept[-1]}: " in capsys.readouterr().err
    assert call(["resume", str(run), "--back", "1"]) == 0
    whole = runs / "clients" / "whole"
    assert outcome(run)[1:] == outcome(whole)[1:]
    assert [line["accuracy"] for line in Run(run).metrics] == [
        line["accuracy"] for line in Run(whole).metrics
    ]


@pytest.mark.parametrize("keep", [1, 2])
def test_as_many_checkpoints_are_kept_as_were_asked_for(keep, tmp_path):
    tacit.run(WORDS["clients"], out=tmp_path / "run", keep=keep, **SETTING)
    assert len(list((tmp_path / "run" / "checkpoint").glob("state-*"))) == keep
    kept = list((tmp_path / "run" / "checkpoint" / "clients" / "0").glob("*.safetensors"))
    assert len(kept) <= keep + 1
