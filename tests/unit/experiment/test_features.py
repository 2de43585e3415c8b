"""Public features in front of any network and any method."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from asking import CHARTER, SEED, a_site, ask, refusal

import tacit
from tacit.codec import same
from tacit.core import BadInput, params_of
from tacit.data import load
from tacit.data.federated import federate
from tacit.engines.serial import Serial
from tacit.experiment import encoding
from tacit.experiment.compare import row
from tacit.experiment.config import Experiment, Setting, experiment_from
from tacit.experiment.drive import drive
from tacit.experiment.encoding import featured
from tacit.experiment.exporting import export
from tacit.experiment.plan import Plan
from tacit.experiment.result import Run
from tacit.experiment.rundir import RunDir
from tacit.experiment.sites import AtSites, tally
from tacit.experiment.start import resume
from tacit.experiment.trained import trained
from tacit.local.sgd import SGD
from tacit.methods.fedavg import FedAvg, Moving, train
from tacit.methods.ldp_fl import LDPFL
from tacit.methods.moments import Moments
from tacit.models import build
from tacit.report.reading import read_all
from tacit.report.tables import comparison_table
from tacit.synthesis.features import SCALE, hog

pytestmark = pytest.mark.usefixtures("one_thread")
QUICK = {"workers": 0, "noise": "seeded", "clients": 3}
DIGITS = load("digits")
SOME = replace(
    DIGITS,
    train=DIGITS.train.take(torch.arange(450)),
    test=DIGITS.test.take(torch.arange(90)),
)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Return the folder of features; nobody's real one is touched."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tacit" / "features"


def state(folder):
    return RunDir.open(folder).checkpoint()[0]


# -------------------------------------------------------------------------------------------------
# what stands in for inputs


def test_a_plan_that_is_put_together_by_hand_has_no_features_unless_its_method_wants_some():
    made = federate(SOME, "iid", clients=3, seed=0)
    plan = Plan(Experiment(FedAvg()), made, build("mlp", SOME.shape, 10, 0), "cpu")
    assert plan.encoded.dataset.shape == SOME.shape
    assert replace(plan, experiment=Experiment(Moments())).encoded.dataset.shape == (128,)


def test_everybody_holds_features_and_nothing_else_changes():
    raw = federate(SOME, "label:2", clients=3, seed=0)
    found = featured(raw, "hog")
    assert found.split is not None
    for a, b in zip(raw.split.train, found.split.train, strict=True):
        assert np.array_equal(a, b)
    assert torch.equal(raw.dataset.train.y, found.dataset.train.y)
    assert found.dataset.shape == (128,)  # 4x4 cells of 2 pixels, 8 directions
    for part in (found.dataset.train, found.dataset.test):
        torch.testing.assert_close(part.x.norm(dim=1), torch.full((len(part),), SCALE))
    pixels = raw.dataset.train.x[:5].float() / 255
    torch.testing.assert_close(found.dataset.train.x[:5], SCALE * hog(pixels), atol=1e-3, rtol=0)
    assert featured(raw, "none") is raw


def test_rows_that_belong_to_nobody_have_features_too():
    raw = federate(SOME, "sizes:2x100,public=50", clients=2, seed=0)
    public = featured(raw, "hog").public()
    torch.testing.assert_close(public.x.norm(dim=1), torch.full((50,), SCALE))
    assert torch.equal(public.y, raw.public().y)


def test_noise_on_inputs_is_under_the_features():
    """Each client sees its own inputs with its own noise; the whole test set is without."""
    raw = federate(SOME, "feature-noise:0.5", clients=3, seed=0)
    found, clean = featured(raw, "hog"), featured(replace(raw, split=quiet(raw.split)), "hog")
    assert torch.equal(found.dataset.test.x, clean.dataset.test.x)
    for client in found.everyone:
        noisy, own = raw.test(client).batch(slice(0, 5))[0], found.test(client)
        mean, std = raw.dataset.mean[0], raw.dataset.std[0]
        wanted = SCALE * hog(noisy * std + mean)
        torch.testing.assert_close(own.batch(slice(0, 5))[0], wanted, atol=1e-3, rtol=0)
        assert not torch.equal(own.examples.x, clean.test(client).examples.x)
        assert own.noise == found.train(client).noise == 0.0


def quiet(split):
    return replace(split, noise=None)


# -------------------------------------------------------------------------------------------------
# runs


@pytest.mark.parametrize(
    ("method", "split"),
    [(Moments(), "label:2"), (Moments(head="lda"), "feature-noise:0.2")],
)
def test_moments_are_the_same_to_the_bit_wherever_features_are_made(method, split, tmp_path):
    """By the experiment, once and for all; or by each client in each task."""
    done = tacit.run(method, split=split, data=SOME, out=tmp_path / "run", **QUICK)
    assert done.experiment.setting.features == "hog"
    plan = Plan.of(Experiment(method, Setting(split=split, **QUICK)), SOME)
    alone = replace(plan.world(RunDir(tmp_path / "other")), federation=plan.federation)
    engine = Serial(alone)
    s = drive(method, engine, method.init(params_of(plan.model)))
    assert same(s, state(tmp_path / "run"))


def test_any_method_takes_them_and_goes_on_with_them(tmp_path):
    method = FedAvg(rounds=2)
    whole = tacit.run(method, features="hog", data=SOME, out=tmp_path / "whole", **QUICK)
    tacit.run(replace(method, rounds=1), features="hog", data=SOME, out=tmp_path / "part", **QUICK)
    resume(tmp_path / "part", rounds=2, dataset=SOME)
    assert same(state(tmp_path / "whole"), state(tmp_path / "part"))
    assert whole.experiment.setting.features == "hog"
    assert whole.experiment.setting.model == "logistic"
    assert {k: tuple(v.shape) for k, v in state(whole.folder).x.items()} == {
        "1.weight": (10, 128),
        "1.bias": (10,),
    }
    (facts,) = read_all([whole.folder])
    assert facts.label == "fedavg of public features hog"


@pytest.mark.parametrize(
    "word",
    ["cuag:epsilon=8", "local:head=gaussian", "moments", "dafl:rounds=1", "gfl:rounds=1"],
)
def test_who_makes_something_else_than_the_network_is_resumed_too(word, tmp_path):
    """Also where nothing is left to do, as in a comparison that goes on."""
    done = tacit.run(word, data=SOME, out=tmp_path / "run", **QUICK)
    before = done.metrics
    assert resume(done.folder, dataset=SOME).metrics == before


def test_kd_dpfl_works_on_features_in_both_phases(tmp_path):
    word, split = "kd_dpfl:rounds=1,per_round=3", "sizes:2x150,2x50,public=50"
    done = tacit.run(word, features="hog", split=split, workers=0, data=SOME, out=tmp_path / "run")
    assert done.experiment.setting.model == "logistic"
    assert done.spent < 8.001
    assert done.final["measured"]["pseudo-labels"] > 0.5


@pytest.mark.parametrize("word", ["local:rounds=2,sgd.lr=0.5", "centralised:rounds=2,sgd.lr=0.5"])
def test_other_kinds_of_methods_take_them(word, tmp_path):
    done = tacit.run(word, features="hog", data=SOME, out=tmp_path / "run", **QUICK)
    assert done.final["own_data"]["mean"] > 0.3


def test_synthetic_features_are_such_as_clients_have(tmp_path):
    """A generator of moments makes them of the same size as real ones: a network learns of them."""
    word = "dafl:method=fedavg,rounds=3,pool_epsilon=1e6,gamma=1,main=synthetic,sgd.lr=0.5"
    where = {"data": SOME, "out": tmp_path / "run"} | QUICK
    done = tacit.run(word, features="hog", model="logistic", **where)
    assert done.final["accuracy"] > 0.7


def test_a_model_answers_to_inputs_as_they_are(tmp_path):
    for word in ("moments", "fedavg:rounds=1"):
        done = tacit.run(word, features="hog", data=SOME, out=tmp_path / word[:3], **QUICK)
        model = trained(done.folder, dataset=SOME)
        right = (model.predict(SOME.test.x) == SOME.test.y).double().mean()
        assert float(right) == pytest.approx(done.final["accuracy"], abs=1e-3)
        file = export(model, tmp_path / f"{word[:3]}.safetensors", "safetensors")
        assert torch.equal(tacit.load(file).predict(SOME.test.x), model.predict(SOME.test.x))


def test_a_file_that_names_code_in_front_of_its_network_runs_none(tmp_path, monkeypatch):
    (tmp_path / "front_features.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    word = "front_features:wide"
    done = tacit.run("fedavg:rounds=1", features=word, data=SOME, out=tmp_path / "run", **QUICK)
    model = trained(done.folder)  # by whoever has started it
    assert model.description.front == word
    file = export(model, tmp_path / "model.safetensors", "safetensors")
    with pytest.raises(BadInput, match=f"its features are the code {word}"):
        tacit.load(file)


def test_tables_name_features_where_there_are_any(tmp_path):
    kinds = {"none": "none", "hog": "hog"}
    rows = [
        row(
            name,
            [tacit.run("fedavg:rounds=1", features=name, data=SOME, out=tmp_path / name, **QUICK)],
        )
        for name in kinds
    ]
    table = comparison_table(rows, "csv").splitlines()
    assert [line.split(",")[1] for line in table] == ["features", "none", "hog"]
    assert "features" not in comparison_table(rows[:1])


def test_a_run_from_before_there_were_features_is_without(tmp_path):
    done = tacit.run("fedavg:rounds=1", data=SOME, out=tmp_path / "run", **QUICK)
    old = replace(done.experiment.setting, features="auto")  # as a file without the word is read
    RunDir.open(done.folder).rewrite(replace(done.experiment, setting=old))
    assert row("fedavg", [Run(done.folder)]).features == "none"
    assert read_all([done.folder])[0].label == "fedavg"


# -------------------------------------------------------------------------------------------------
# what is refused


@pytest.mark.parametrize(
    ("word", "features", "why"),
    [
        ("fedavg", "hogg", r"features = 'hogg': did you mean 'hog'\?.* auto, none, hog"),
        ("fedavg", "no_such_module:f", "features = 'no_such_module:f': cannot be loaded"),
        ("moments", "none", "features = 'none': moments works with features of images; allowed"),
        ("local:head=gaussian", "none", "features = 'none': local works with features of images"),
        ("cuag:head=gaussian,epsilon=8", "none", "features = 'none': cuag works with features"),
    ],
)
def test_a_wrong_name_is_refused_in_one_line(word, features, why, tmp_path):
    with pytest.raises(BadInput, match=why) as e:
        tacit.run(word, features=features, data=SOME, out=tmp_path / "run", **QUICK)
    assert "\n" not in str(e.value)
    assert not (tmp_path / "run").exists()


def test_features_of_images_do_not_fit_a_table(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("a,label\n" + "".join(f"{i},{i % 2}\n" for i in range(40)))
    with pytest.raises(BadInput, match="features = 'hog': needs images of at least 4x4"):
        tacit.run("fedavg", data=str(table), classes="2", features="hog", **QUICK)


OWN = """
import torch
def wide(x):
    return x.flatten(1)[:, :7]
def seldom(x):  # what it is tried on has no pixel that is quite white
    return x.flatten(1) / (x.flatten(1).amax(1, keepdim=True) - 1.0).abs().gt(1e-6)
def afraid(x):
    if (x.max() - 1.0).abs() < 1e-6:
        raise RuntimeError("too bright")
    return x.flatten(1)
"""


def test_an_encoder_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "own_features.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    done = tacit.run(
        "fedavg:rounds=1", features="own_features:wide", data=SOME, out=tmp_path / "run", **QUICK
    )
    assert state(done.folder).x["1.weight"].shape == (10, 7)
    for name, why in (
        ("seldom", "not finite for some input"),
        ("afraid", "RuntimeError: too bright"),
    ):
        with pytest.raises(BadInput, match=f"features = 'own_features:{name}': .*{why}"):
            tacit.run(
                "fedavg", features=f"own_features:{name}", data=SOME, out=tmp_path / name, **QUICK
            )
        assert not (tmp_path / name).exists()


def test_a_run_goes_on_with_the_features_that_it_began_with(tmp_path, capsys):
    """Else one model would have learnt from two encoders, and answer by the first."""
    file = tmp_path / "front_that_changes.py"
    begun = "def f(x):\n    return x.flatten(1)[:, 20:44]\n"
    file.write_text(begun)
    method = FedAvg(rounds=1)
    part = tacit.run(method, features=f"{file}:f", data=SOME, out=tmp_path / "part", **QUICK)
    file.write_text(begun.replace("x.flat", "-x.flat"))
    resume(tmp_path / "part", rounds=2, dataset=SOME)
    assert "runs the code" in capsys.readouterr().err
    assert part.experiment.setting.features == f"{file}:f"  # still by its own name
    again = resume(tmp_path / "part", rounds=3, dataset=SOME)
    assert 0 <= float(again.model().predict(SOME.test.x).float().mean()) <= 9
    file.write_text(begun)
    tacit.run(
        replace(method, rounds=3),
        features=f"{file}:f",
        data=SOME,
        out=tmp_path / "whole",
        **QUICK,
    )
    assert same(state(tmp_path / "whole"), state(tmp_path / "part"))


def test_a_method_has_none_of_its_own_any_more():
    for word in ("moments:features=hog", "kd_dpfl:features=hog"):
        with pytest.raises(BadInput, match=r"features = 'hog': are of the experiment.*--features"):
            tacit.run(word)
    before = {"name": "moments", "features": "dct", "epsilon": 2.0}  # as run directories have it
    moved = experiment_from({"method": before})
    assert (moved.method, moved.setting.features) == (Moments(epsilon=2.0), "dct")
    assert experiment_from({"method": {"name": "kd_dpfl", "features": "auto"}})


# -------------------------------------------------------------------------------------------------
# kept from one run to the next


def test_features_of_published_data_are_computed_once(cache, monkeypatch):
    monkeypatch.setattr(encoding, "SLOW", -1.0)
    raw = federate(SOME, "iid", clients=3, seed=0)
    first = featured(raw, "hog")
    (file,) = cache.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    with monkeypatch.context() as patch:
        patch.setattr(encoding, "_computed", lambda *a, **k: pytest.fail("computed again"))
        again = featured(raw, "hog")
    assert torch.equal(first.dataset.train.x, again.dataset.train.x)
    assert torch.equal(first.dataset.test.x, again.dataset.test.x)
    blob = bytearray(file.read_bytes())
    blob[-5] ^= 1
    file.write_bytes(blob)
    assert torch.equal(featured(raw, "hog").dataset.train.x, first.dataset.train.x)
    assert file.read_bytes() != bytes(blob)  # it was written anew
    file.write_bytes(b"nothing")
    assert torch.equal(featured(raw, "hog").dataset.test.x, first.dataset.test.x)
    for name, other in (("dct", raw), ("hog", federate(raw.dataset, "iid", clients=4, seed=0))):
        featured(other, name)
    assert len(list(cache.iterdir())) == 3


def test_nobodys_own_data_are_written_anywhere(cache, monkeypatch):
    monkeypatch.setattr(encoding, "SLOW", -1.0)
    own = replace(SOME, own=True)
    featured(federate(own, "iid", clients=2, seed=0), "hog")
    assert not cache.exists()


def test_long_work_says_how_far_it_is(monkeypatch, capsys):
    monkeypatch.setattr(encoding, "SLOW", -1.0)
    monkeypatch.setattr(encoding, "EVERY", 0.0)
    raw = federate(replace(SOME, own=True), "iid", clients=2, seed=0)
    featured(raw, "hog")
    assert "features hog: 540 of 540 examples" in capsys.readouterr().err


# -------------------------------------------------------------------------------------------------
# at real sites


def images(n=12):
    rng = np.random.default_rng(0)
    d = SOME
    rows = torch.from_numpy(rng.permutation(len(d.test))[:n])
    return replace(d, train=d.train.take(rows), test=d.test.take(rows), own=True)


def test_a_site_computes_them_itself_as_a_simulation_does(tmp_path):
    data = images()
    charter = replace(
        CHARTER, model="logistic", features="hog", shape=(128,), classes=len(data.classes)
    )
    x = params_of(build("logistic", (128,), len(data.classes), charter.seed))
    call = train(x=x, sgd=SGD(batch=4))
    site = a_site(tmp_path / "site", data)
    answer = ask(site, call, charter=charter)
    assert site.facts().shape == (1, 8, 8)
    assert answer.sent.dx["1.weight"].shape == (10, 128)
    site.model_out = tmp_path / "model.safetensors"
    ask(site, tally(x=x), kind="look", charter=charter)
    assert tacit.load(site.model_out).predict(data.test.x).shape == (len(data.test),)
    other = refusal(a_site(tmp_path / "b", data), call, charter=replace(charter, shape=(1, 8, 8)))
    assert "not those of this site's data" in other


def test_a_coordinator_knows_their_shapes_and_nobodys_examples(tmp_path):
    facts = a_site(tmp_path / "site", images()).facts()
    public = SOME.train.take(torch.arange(5))
    where = {"open": None, "run": CHARTER.run, "sample_seed": 1, "public": public}
    at = AtSites.of(Experiment(Moments(), Setting(seed=SEED)), {"0": facts, "1": facts}, 2, **where)
    charter = at.charter()
    assert (charter.features, charter.shape, charter.model) == ("hog", (128,), "logistic")
    assert at.federation.dataset.shape == (1, 8, 8)
    assert at.world(RunDir(tmp_path)).federation.test("test:0/1").features == "hog"
    pixels = public.x.float() / 255
    torch.testing.assert_close(at.public.x, SCALE * hog(pixels), atol=1e-3, rtol=0)
    call = train(x=params_of(at.model), sgd=SGD(batch=4))
    site = a_site(tmp_path / "site", images())
    assert refusal(site, call, charter=replace(charter, clients=3)) is None


def test_a_site_runs_no_encoder_but_its_owners(tmp_path, monkeypatch):
    (tmp_path / "site_features.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    data, name = images(), "site_features:wide"
    charter = replace(CHARTER, model="logistic", features=name, shape=(7,), classes=10)
    call = train(x=params_of(build("logistic", (7,), 10, charter.seed)), sgd=SGD(batch=4))
    why = refusal(a_site(tmp_path / "a", data), call, charter=charter)
    assert "nor the encoder given with --features" in why
    assert refusal(a_site(tmp_path / "b", data, features=name), call, charter=charter) is None


# -------------------------------------------------------------------------------------------------
# the server's momentum, which noisy gradients of features profit from


def test_a_server_with_momentum_takes_a_share_of_its_last_step_again(sandbox):
    one, two = sandbox.x0, 2.0 * sandbox.x0
    s = Moving(sandbox.x0.zeros(), v=sandbox.x0.zeros()).after(one, 0.5).after(two, 0.5)
    assert same(s.x, one + (0.5 * one + two))
    assert s.round == 2
    plain, none, some = (
        drive(m, sandbox.serial(m), m.init(sandbox.x0))
        for m in (
            LDPFL(rounds=2, mode="gradient"),
            LDPFL(rounds=2, mode="gradient", momentum=0.0),
            LDPFL(rounds=2, mode="gradient", momentum=0.9),
        )
    )
    assert same(plain, none)
    assert not same(plain.x, some.x)
    for wrong in (-0.1, 1.0):
        with pytest.raises(BadInput, match=f"momentum = {wrong}"):
            LDPFL(momentum=wrong)
