"""A site sees what it spends, round by round and as a page, and keeps the model it answers with."""

import logging
import re

import pytest
import torch
from asking import X, a_site, ask, records

import tacit
from tacit import privacy
from tacit.apps.books import Terms, write_budget
from tacit.cli.main import call
from tacit.core import Gaussian, Ledger, Release
from tacit.experiment.config import Experiment, Setting, to_toml
from tacit.experiment.sites import tally, tally_own
from tacit.local.sgd import SGD
from tacit.methods.fedavg import FedAvg, train
from tacit.methods.local import Local
from tacit.methods.local import train as train_alone
from tacit.methods.pfldyn import PFLDyn
from tacit.report.account import Account
from tacit.report.account import page as account_page

PRIVATE = SGD(clip=1.0, z=2.0, batch=4)


def test_a_site_says_after_every_round_what_it_has_spent(tmp_path, caplog):
    site = a_site(tmp_path, budget=50.0)
    with caplog.at_level(logging.INFO, "tacit.site"):
        ask(site, train(x=X, sgd=PRIVATE))
        first = caplog.messages[-1]
        ask(site, train(x=X, sgd=PRIVATE), round=1)
    assert first.startswith("spent so far: eps ")
    assert "for one example against the server, delta 1e-05; budget 50: " in first
    assert caplog.messages[-1] > first  # figures of one length


def test_the_account_of_a_store_says_what_is_left_and_is_a_page(tmp_path, capsys):
    store = tmp_path / "store"
    ask(a_site(store, noise="os"), train(x=X, sgd=PRIVATE))
    write_budget(store, Terms("clinic <a>", 50.0))
    assert call(["privacy", str(store), "--page", str(tmp_path / "account.html")]) == 0
    run, every, left, _ = capsys.readouterr().out.splitlines()
    assert "; one example against server " in run
    assert "; one client against server inf" in run
    spent = float(every.split()[3])
    assert left.startswith("budget 50: ")
    assert float(left.split()[2]) == pytest.approx(50 - spent, abs=0.1)
    page = (tmp_path / "account.html").read_text()
    assert "clinic &lt;a&gt;" in page
    assert "<a>" not in page
    assert "Gaussian noise" in page
    assert f"<b>{every.split()[3]}</b>" in page
    by_run = page.partition("<h2>By run</h2>")[2].partition("<h2>")[0]
    heads = re.findall("<th>(.*?)</th>", by_run)
    cells = dict(zip(heads, re.findall("<td>(.*?)</td>", by_run), strict=True))
    assert cells["epsilon of one example zeroed out, against the server"] == every.split()[3]
    assert cells["epsilon of one client replaced, against the public"] == "inf"


def test_the_page_of_a_run_and_the_cost_of_a_file(tmp_path, capsys):
    experiment = Experiment(FedAvg(rounds=1, sgd=PRIVATE), Setting(clients=2, budget=90.0))
    (tmp_path / "plan.toml").write_text(to_toml(experiment))
    how = ["--engine", "serial", "--out", str(tmp_path / "run")]
    assert call(["privacy", str(tmp_path / "plan.toml")]) == 0
    assert "fedavg" in capsys.readouterr().out
    assert call(["run", str(tmp_path / "plan.toml"), *how]) == 0
    capsys.readouterr()
    assert call(["privacy", str(tmp_path / "run"), "--page", str(tmp_path / "p.html")]) == 0
    assert "; budget 90: " in capsys.readouterr().out
    page = (tmp_path / "p.html").read_text()
    assert "Privacy account of" in page
    assert "for one example against the server; budget 90: " in page
    assert "no budget" not in page


def test_the_page_of_a_run_is_about_whom_its_method_protects():
    noisy = Release("a", "client", "0", "public", Gaussian(1.0), ((0, 0),))
    account = Account("run", 1e-5, {"run": Ledger([noisy])}, 9.0, "client", "public")
    assert account.spent == privacy.epsilon(
        account.all, unit="client", observer="public", delta=1e-5
    )
    assert "for one client against the public; budget 9: " in account_page(account)


def test_a_site_keeps_the_shared_model_that_is_measured(tmp_path):
    """Also where it reports nothing."""
    file = tmp_path / "model.safetensors"
    site = a_site(tmp_path / "store", metrics=0.0)
    site.model_out = file
    with pytest.raises(tacit.BadInput, match="does not report any"):
        ask(site, tally(x=X), kind="look")
    model = tacit.load(file)
    assert model.description.client == ""
    x = records().test.x
    assert model.predict_proba(x).shape == (len(x), len(records().classes))
    numbers = model.answers.state_dict()
    assert all(torch.equal(numbers[k], X[k]) for k in X)


@pytest.mark.parametrize("method", [Local(), PFLDyn()])
def test_a_site_keeps_its_own_model(method, tmp_path):
    file = tmp_path / "model.safetensors"
    site = a_site(tmp_path / "store")
    site.model_out = file
    accepted = None
    if isinstance(method, Local):
        ask(site, train_alone(x=X, sgd=SGD(lr=0.5)))
        accepted = f"{train_alone.name}@0"
    s = method.init(X)
    counted = ask(site, tally_own(method=method, s=s), kind="look", accepted=accepted)
    model = tacit.load(file)
    assert model.description.client == "hospital-b"
    assert model.description.privacy.startswith("eps inf")
    test = records().test
    right = int((model.predict(test.x) == test.y).sum())
    assert right == sum(counted.sent.right)


def test_a_model_that_cannot_be_kept_changes_nothing_that_the_server_sees(tmp_path, monkeypatch):
    """Whether a model of one's own can be made may depend on what records there are."""
    fine, broken = (a_site(tmp_path / name) for name in ("fine", "broken"))
    for site in (fine, broken):
        site.model_out = tmp_path / "model.safetensors"
    monkeypatch.setattr(broken, "_take_model", lambda *args: 1 / 0)
    seen = [ask(site, tally(x=X), kind="look").sent for site in (fine, broken)]
    assert seen[0].right == seen[1].right
    for site in (fine, broken):
        site.metrics = 0.0
        with pytest.raises(tacit.BadInput, match="does not report any"):
            ask(site, tally(x=X), kind="look")
