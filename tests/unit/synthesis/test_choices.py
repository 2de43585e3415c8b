"""What DA-FL and GFL choose where samples are public features, and that what was said stays."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tacit
from tacit.core import Known
from tacit.data import load
from tacit.experiment.config import Experiment, Setting
from tacit.experiment.plan import Plan
from tacit.local.sgd import SGD
from tacit.methods.dafl import DAFL
from tacit.methods.gfl import GFL
from tacit.methods.ldp_fl import LDPFL
from tacit.methods.scaffold import Scaffold
from tacit.methods.spec import method_from_spec
from tacit.synthesis import choices

FEATURES = Known({"0": 100, "1": 100}, 1e-5, features=True)
LINEAR = replace(FEATURES, linear=50)
PIXELS = replace(FEATURES, features=False)


def test_on_samples_of_features_steps_are_longer_and_samples_more():
    dafl, gfl = DAFL().tuned(FEATURES), GFL().tuned(FEATURES)
    assert (dafl.gamma, dafl.sgd.lr, gfl.sgd.lr) == (choices.GAMMA, choices.LR, choices.LR)
    assert dafl.method.sgd == dafl.sgd  # the main phase's
    assert dafl.tuned(FEATURES) == dafl
    assert gfl.tuned(FEATURES) == gfl


@pytest.mark.parametrize(
    ("method", "known"),
    [
        (DAFL(), PIXELS),
        (DAFL(main="open"), FEATURES),
        (DAFL(main="dp-sgd", sgd=SGD(lr="auto", clip=1.0, z=1.0)), FEATURES),
        (DAFL(mode="paper"), FEATURES),
        (DAFL(generator="gan"), FEATURES),
        (GFL(), PIXELS),
        (GFL(sgd=SGD(lr="auto", clip=1.0, z=1.0)), FEATURES),
        (GFL(mode="paper"), FEATURES),
    ],
)
def test_elsewhere_all_is_as_ever(method, known):
    chosen = method.tuned(known)
    assert chosen.sgd.lr == 0.05
    assert getattr(chosen, "ratio", 0.05) == 0.05


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "gamma": st.sampled_from([0.05, 1.0]),
            "sgd": st.builds(SGD, lr=st.sampled_from([0.05, 0.5, 3.0])),
            "rounds": st.sampled_from([1, 20]),
            "method": st.sampled_from([Scaffold()]),
        },
    ),
    st.sampled_from([FEATURES, LINEAR, PIXELS]),
)
def test_what_a_user_has_said_stays(said, known):
    chosen = DAFL(**said).tuned(known)
    inner = said.pop("method", None)
    assert {name: getattr(chosen, name) for name in said} == said
    assert inner is None or type(chosen.method) is Scaffold
    assert chosen.method.rounds == chosen.rounds
    assert chosen.method.sgd == chosen.sgd


def test_a_method_inside_chooses_by_its_own_rules():
    chosen = DAFL(method=LDPFL(), rounds=9).tuned(LINEAR)
    alone = LDPFL(rounds=9, sgd=SGD(lr="auto")).tuned(LINEAR)
    assert chosen.method == alone
    assert chosen.method.mode == "gradient"
    assert chosen.sgd == alone.sgd
    said = DAFL(method=LDPFL(), rounds=9, sgd=SGD(lr=0.05)).tuned(LINEAR)
    assert said.method.sgd.lr == said.sgd.lr == 0.05


@pytest.mark.parametrize(
    ("word", "setting", "features", "network"),
    [
        ("dafl", {}, "hog", "mlp"),
        ("gfl", {}, "hog", "mlp"),
        ("dafl", {"features": "none"}, "none", ""),
        ("gfl", {"model": "logistic"}, "none", "logistic"),
        ("dafl:method=ldp_fl", {}, "hog", "logistic"),
        ("dafl:main=dp-sgd,sgd.clip=1,sgd.z=1", {}, "hog", "logistic"),
        ("gfl:sgd.clip=1,sgd.z=1", {}, "hog", "logistic"),
        ("dafl:main=open", {}, "none", ""),
        ("gfl:online=open", {}, "none", ""),
        ("dafl:generator=gan", {}, "none", ""),
        ("gfl:mode=paper", {}, "none", ""),
        ("dafl:mode=paper", {}, "none", ""),
    ],
)
def test_images_have_features_unless_something_else_is_said(word, setting, features, network):
    plan = Plan.of(
        Experiment(method_from_spec(word), Setting(workers=0, **setting)), load("digits")
    )
    got = plan.experiment.setting
    assert got.features == features
    assert got.model == network or not network


@pytest.mark.parametrize("word", ["dafl:rounds=5", "gfl:n_k=100,rounds=2"])
def test_with_no_flags_they_learn(word, tmp_path, one_thread):
    how = {"split": "label:2", "clients": 5, "workers": 0, "noise": "seeded", "eval_every": 5}
    done = tacit.run(f"{word},epsilon=8", out=tmp_path / "run", **how)
    assert done.accuracy > 0.75
    assert done.spent == pytest.approx(8.0, rel=1e-3)
