"""Personal classifiers: what they take over from a prior, and when a client is better off alone."""

import numpy as np
import pytest
import torch

from tacit.core import Client, Params
from tacit.data.examples import Examples
from tacit.data.federated import LocalData
from tacit.synthesis import classifiers, personal
from tacit.synthesis.moments import Gaussians
from tacit.synthesis.personal import Prior, alone, fitted, right

K, CLASSES = 4, 5
EYE = torch.eye(K).double()


def records(n=60, gap=0.4, seed=0):
    """Return records of classes 1 and 3 in four dimensions."""
    rng = np.random.default_rng(seed)
    y = torch.tensor([1, 3]).repeat(n // 2)
    x = 0.1 * torch.from_numpy(rng.normal(size=(n, K)))
    return x + gap * torch.nn.functional.one_hot(y, CLASSES)[:, :K].double(), y


def prior(m, n=1e12, doubt=0.0, S=0.01):
    """Return a prior whose classes have these means, and round covariances."""
    known = Gaussians(torch.full((CLASSES,), n).double(), m, S * EYE.repeat(CLASSES, 1, 1))
    return Prior(known, doubt * EYE.repeat(CLASSES, 1, 1))


def test_a_class_that_a_client_does_not_hold_is_never_its_answer():
    F, y = records()
    for x in (alone(F, y, CLASSES), prior(torch.zeros(CLASSES, K).double()).fit(F, y)):
        said = classifiers.scores(x, F.float())
        assert (said[:, [0, 2, 4]] == -torch.inf).all()
        assert said[:, [1, 3]].isfinite().all()


def test_means_are_weighted_by_how_sure_they_are():
    """Own records have variance S/n, the shared mean S/N and its noise: by hand, in one class."""
    F, y = records()
    own = torch.stack([F[y == c].mean(0) if (y == c).any() else 0 * F[0] for c in range(CLASSES)])
    m = own + 1.0
    sure = prior(m).fit(F, y)["m"]
    unsure = prior(m, doubt=1e12).fit(F, y)["m"]
    # variances 0.01/30 of one's own, and 0.01/60 + 0.01/60 of the shared one: half and half
    half = prior(m, n=60.0, doubt=0.01 / 60).fit(F, y)["m"]
    for c in (1, 3):
        torch.testing.assert_close(sure[c].double(), m[c], atol=1e-5, rtol=0)
        torch.testing.assert_close(unsure[c].double(), own[c], atol=1e-5, rtol=0)
        torch.testing.assert_close(half[c].double(), own[c] + 0.5, atol=1e-5, rtol=0)


def test_a_shared_covariance_counts_as_so_many_records():
    """12 K = 48 of variance 0.01 beside 30 of one's own: W is the inverse of its root."""
    F, y = records()
    got = prior(torch.zeros(CLASSES, K).double(), doubt=1e12).fit(F, y)["W"][1].double()
    d = F[y == 1] - F[y == 1].mean(0)
    want = (48 * 0.01 * EYE + d.T @ d) / (48 + 30)
    torch.testing.assert_close(torch.linalg.inv(got.T @ got), want, atol=1e-6, rtol=1e-4)


def client(F, y):
    data = LocalData(Examples(F.float(), y), np.arange(len(y)), (0.0,), (1.0,), features="raw")
    rng = np.random.default_rng(0)
    return Client("0", 0, data, data, torch.nn.Identity(), {}, rng, classes=CLASSES)


def as_params(p):
    g = p.known
    x = {"n": g.n, "m": g.m, "S": g.S, "v": torch.ones(CLASSES), "E": p.doubt[0]}
    return Params({k: v.float() for k, v in x.items()})


def test_a_client_takes_what_is_better_on_its_own_records():
    F, y = records(n=24, gap=0.1, seed=4)
    true = 0.1 * torch.eye(CLASSES, K).double()
    good, wrong = prior(true), prior(true[[0, 3, 2, 1, 4]])  # others number the classes otherwise
    me = client(4.0 * F, y)  # as inputs of a network, which are four times as large
    F, y = personal.own_features(me)
    by_itself = right(lambda F, y: alone(F, y, CLASSES), F, y)
    assert right(good.fit, F, y) > by_itself > right(wrong.fit, F, y)
    torch.testing.assert_close(fitted(me, as_params(good))["m"], good.fit(F, y)["m"])
    torch.testing.assert_close(fitted(me, as_params(wrong))["m"], alone(F, y, CLASSES)["m"])
    torch.testing.assert_close(fitted(me)["W"], alone(F, y, CLASSES)["W"])


@pytest.mark.parametrize("n", [0, 1, 2])
def test_few_records_are_no_error(n):
    F, y = records()
    me = client(4.0 * F[:n], y[:n])
    for shared in (None, as_params(prior(torch.zeros(CLASSES, K).double()))):
        x = fitted(me, shared)
        assert x["W"].isfinite().all()
        assert not x["b"].isnan().any() or n == 0


def test_covariances_stay_as_they_are_and_others_become_some():
    good = torch.stack([EYE, 2 * EYE])
    assert personal.definite(good) is good
    for bad in (-EYE, EYE - 1.0, torch.full((K, K), torch.nan).double(), 1e300 * EYE - 1e300):
        S = personal.definite(torch.stack([EYE, bad]))
        assert not torch.linalg.cholesky_ex(S).info.any()


@pytest.mark.parametrize("worst", [-1.0, float("nan"), float("inf"), 1e30])
def test_no_prior_makes_a_classifier_fail_for_who_holds_a_class(worst):
    F, y = records()
    shared = Params(
        n=torch.full((CLASSES,), worst),
        m=torch.full((CLASSES, K), worst),
        S=worst * torch.eye(K).repeat(CLASSES, 1, 1),
        v=torch.full((CLASSES,), worst),
        E=worst * torch.eye(K),
    )
    x = Prior.of(shared).fit(F, y)
    assert classifiers.scores(x, F.float()).shape == (len(F), CLASSES)
