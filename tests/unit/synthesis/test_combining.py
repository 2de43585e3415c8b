"""What clients' private moments are combined to: with next to no noise, the moments themselves."""

from dataclasses import replace

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from often import often

from tacit.core import Client, Ledger
from tacit.synthesis import combining, moments
from tacit.synthesis.combining import FEWEST, Means, View, directions
from tacit.synthesis.moments import Terms

SURE = Terms(1e7, R=10.0)
K, CLASSES = 6, 3


def clients():
    """Return two clients' records: classes 0 and 1, classes 1 and 2."""
    rng = np.random.default_rng(0)
    shapes = 0.02 * (np.eye(K) + 0.3 * rng.normal(size=(CLASSES, K, K)))
    found = []
    for held in ((0, 1), (1, 2)):
        y = np.repeat(held, 200)
        x = np.einsum("nij,nj->ni", shapes[y], rng.normal(size=(400, K)))
        found.append((torch.from_numpy(x + 0.1 * np.eye(CLASSES, K)[y]), torch.from_numpy(y)))
    return found


def someone():
    rng = np.random.default_rng(0)
    return Client("0", 0, None, None, torch.nn.Identity(), {}, rng, "seeded", Ledger())


def test_with_next_to_no_noise_the_prior_is_what_all_records_say(monkeypatch):
    monkeypatch.setattr(combining, "CUT", 100.0)
    data = clients()
    sent = [moments.release(someone(), F, 0 * y, 1, SURE) for F, y in data]
    view = View.of(sent, SURE)
    everyone, labels = (torch.cat(parts) for parts in zip(*data, strict=True))
    torch.testing.assert_close(view.centre, everyone.mean(0), atol=1e-5, rtol=0)
    z = view(everyone)
    assert z.norm(dim=1).max() < 3
    seen = [(0.3 * view(F), y) for F, y in data]  # so that nothing is cut
    q = [moments.sums(someone(), z, y, CLASSES, SURE) for z, y in seen]
    means = Means.of(q, SURE)
    assert means.use.tolist() == [[1, 1, 0], [0, 1, 1]]
    terms = replace(SURE, R=view.radius(K))
    M = [moments.scatters(someone(), z, y, means.m, terms) for z, y in seen]
    smaller = View(view.centre, 0.3 * view.turn, 0.09 * view.variance)
    x = combining.prior(smaller, means, M, SURE, K)
    own = [torch.cov(everyone[labels == c].T, correction=0) for c in range(CLASSES)]
    n = torch.bincount(labels).double()
    together = sum(m * s for m, s in zip(n, own, strict=True)) / n.sum()
    for c in range(CLASSES):
        mean = everyone[labels == c].mean(0).float()
        torch.testing.assert_close(x["m"][c], mean, atol=1e-5, rtol=0)
        want = (1 - combining.MIX) * own[c] + combining.MIX * together
        torch.testing.assert_close(x["S"][c], want.float(), atol=2e-6, rtol=1e-2)
    torch.testing.assert_close(x["n"].double(), n, rtol=1e-4, atol=0)
    assert (x["v"] < 1e-10).all()


def test_a_view_has_the_variances_that_it_says():
    data = clients()
    sent = [moments.release(someone(), F, 0 * y, 1, SURE) for F, y in data]
    view = View.of(sent, SURE)
    # within clients: each centres its records at its own mean
    parts = [view(F - F.mean(0) + view.centre) for F, _ in data]
    got = torch.cat(parts).square().mean(0)
    torch.testing.assert_close(got, view.variance, rtol=1e-2, atol=1e-6)
    assert abs(float(view.variance.sum()) - combining.REACH**2) < 1e-6
    assert (view.variance.diff() <= 0).all()
    again = View.from_params(view.params())
    assert torch.equal(again.turn, view.turn)


@given(st.integers(40, 600), st.integers(5, 100), st.floats(0.25, 0.99))
@often(60)
def test_what_is_sent_is_within_the_share(k, classes, rate):
    kept = directions(k, classes, rate)
    whole = (k + 1) + k * (k + 1) // 2
    sent = whole + classes * ((k + 1) + kept * (kept + 1) // 2)
    assert 1 <= kept <= k
    assert sent <= rate * classes * whole or kept == FEWEST
    more = kept + 1
    more_sent = whole + classes * ((k + 1) + more * (more + 1) // 2)
    assert kept == k or more_sent > rate * classes * whole


def test_directions_at_the_ends():
    assert directions(3, 2, 0.1) == 3
    assert directions(500, 2, 0.28) == FEWEST
    assert directions(500, 2, 1.0) == 500
