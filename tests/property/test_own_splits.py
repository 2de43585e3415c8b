"""Own data over clients: who holds a record depends on nothing but the record."""

import re
from collections import Counter
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st
from often import often
from scipy.stats import chi2_contingency, chisquare

from tacit.core import BadInput
from tacit.data.examples import Dataset, Examples
from tacit.data.federated import Federation, federate
from tacit.data.splits import SCHEMES, Split, clients_of, split

quick = often(20, suppress_health_check=list(HealthCheck))
record = st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 3))  # many are alike
records = st.lists(record, min_size=60, max_size=80)
NAMES = ("ant", "bee", "cat", "dog")
WRITTEN = {
    "iid": "iid",
    "label": "label:2",
    "dirichlet": "dirichlet:1",
    "dirichlet-client": "dirichlet-client:1",
    "quantity": "quantity:2",
    "acid": "acid:3",
    "alid": "alid:3",
    "sizes": "sizes:2x30,1x20,public=20",
    "feature-noise": "feature-noise:0.5",
}
VARIANTS = {  # other laws for the tables of those above
    "acid-random": "acid-random:3",
    "alid-random": "alid-random:3",
    "niid-label": "niid-label:2",
    "niid-dirichlet": "niid-dirichlet:1",
    "dirichlet-prior": "dirichlet-prior:4",
}
variants = st.sampled_from([*VARIANTS.values()])


def test_every_scheme_is_tried():
    assert {usage.partition(":")[0] for usage in SCHEMES} == {*WRITTEN, *VARIANTS}


def examples(rows: list) -> Examples:
    x = torch.tensor([r[:2] for r in rows], dtype=torch.float32)
    return Examples(x, torch.tensor([r[2] for r in rows]))


def held(federation: Federation) -> Counter:
    """Return how often each client trains and tests on each record, as it sees it."""
    found: Counter = Counter()
    for client in federation.everyone:
        for use, data in (("train", federation.train(client)), ("test", federation.test(client))):
            x, y = data.batch(slice(None))
            found.update(
                (use, client, *row, k) for row, k in zip(x.tolist(), y.tolist(), strict=True)
            )
    public = federation.public()
    if public is not None:
        found.update(("public", *row) for row in public.x.tolist())
    return found


def divided(scheme: str, rows: list, test: list, seed: int) -> Counter:
    """Return who holds what; a set in which a client has nothing does not count."""
    data = Dataset("own", examples(rows), examples(test), NAMES)
    try:
        return held(federate(data, scheme, clients=clients_of(scheme, 3), seed=seed))
    except BadInput:
        assume(False)


@pytest.mark.parametrize("scheme", WRITTEN.values())
@quick
@given(records, record, st.integers(0, 59), st.integers(0, 9))
def test_a_record_more_less_or_other_moves_no_other_between_clients(scheme, rows, new, at, seed):
    test = rows[:20]
    before = divided(scheme, rows, test, seed)
    more = divided(scheme, [*rows[:at], new, *rows[at:]], test, seed)
    assert not before - more
    assert (more - before).total() <= 1
    other = divided(scheme, [*rows[:at], new, *rows[at + 1 :]], test, seed)
    assert (before - other).total() <= 1
    assert (other - before).total() <= 1
    tested = divided(scheme, rows, [*test, new], seed)
    assert not before - tested
    assert (tested - before).total() <= 1


@quick
@given(variants, records, record, st.randoms(), st.integers(0, 9))
def test_nor_does_it_in_variants_of_a_scheme(scheme, rows, new, random, seed):
    before = divided(scheme, rows, rows[:20], seed)
    more = [*rows, new]
    random.shuffle(more)
    after = divided(scheme, more, rows[:20], seed)
    assert not before - after
    assert (after - before).total() <= 1


@pytest.mark.parametrize("scheme", WRITTEN.values())
@quick
@given(records, st.randoms(), st.integers(0, 9))
def test_the_order_of_records_decides_nothing(scheme, rows, random, seed):
    test = rows[:20]
    before = divided(scheme, rows, test, seed)
    random.shuffle(rows)
    random.shuffle(test)
    assert divided(scheme, rows, test, seed) == before


@cache
def large() -> Dataset:
    rng = np.random.default_rng(5)
    y = rng.choice(4, 40_000, p=[0.4, 0.3, 0.2, 0.1])
    x = torch.from_numpy(rng.normal(size=(40_000, 2)).astype(np.float32))
    every = Examples(x, torch.from_numpy(y))
    train, test = (every.take(torch.arange(*ends)) for ends in ((0, 30_000), (30_000, 40_000)))
    return Dataset("large", train, test, NAMES)


def tables(scheme: str, clients: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the counts of classes by client, to train on and to test on."""
    found = federate(large(), scheme, clients=clients, seed=seed).split
    parts = ((large().train, found.train), (large().test, found.test))
    train, test = (
        np.stack([np.bincount(e.y.numpy()[rows], minlength=4) for rows in clients_rows])
        for e, clients_rows in parts
    )
    return train, test


def fits(counts: np.ndarray, shares: np.ndarray) -> bool:
    """Tell whether counts look like draws with these shares; 1 in 10,000 would not."""
    assert not counts[shares == 0].any()
    expected = shares[shares > 0] * counts.sum()
    return len(expected) == 1 or chisquare(counts[shares > 0], expected).pvalue > 1e-4


def test_shares_of_iid_are_even():
    train, test = tables("iid", 7, 0)
    assert train.sum() == 30_000
    assert test.sum() == 10_000
    for label in range(4):
        assert fits(train[:, label], np.full(7, 1 / 7))
        assert fits(test[:, label], np.full(7, 1 / 7))


@pytest.mark.parametrize("k", [1, 2, 4])
def test_label_gives_k_classes_each_divided_evenly(k):
    train, test = tables(f"label:{k}", 8, 1)
    assert ((train > 0).sum(axis=1) == k).all()
    for label in range(4):
        holders = train[:, label] > 0
        assert fits(train[:, label], holders / holders.sum())
        assert fits(test[:, label], holders / holders.sum())


@pytest.mark.parametrize("scheme", ["dirichlet:0.5", "dirichlet-client:0.5", "quantity:1"])
def test_train_and_test_follow_the_same_shares(scheme):
    train, test = tables(scheme, 6, 3)
    assert train.sum() == 30_000
    assert test.sum() == 10_000
    for label in range(4):
        pairs = np.array([train[:, label], test[:, label]])
        assert chi2_contingency(pairs[:, pairs.sum(axis=0) > 0]).pvalue > 1e-4


def test_dirichlet_has_the_spread_of_its_law():
    """The variance of one share of Dir(beta) over N is (1/N)(1 - 1/N)/(N beta + 1)."""
    labels, places = np.arange(8000) % 4, np.random.default_rng(7).random(8000)
    how = {"clients": 4, "classes": 4, "places": (places, places[:0])}
    shares = []
    for seed in range(80):
        parts = split("dirichlet:2", labels, labels[:0], seed=seed, **how).train
        shares.append([np.bincount(labels[rows], minlength=4) / 2000 for rows in parts])
    expected = (1 / 4) * (3 / 4) / (4 * 2 + 1)
    assert np.mean(shares) == pytest.approx(1 / 4)
    assert 0.85 < np.var(shares) / expected < 1.15


def test_quantity_keeps_the_mix_and_changes_the_sizes():
    train, _ = tables("quantity:1", 5, 2)
    sizes = train.sum(axis=1)
    assert sizes.max() > 2 * sizes.min()
    for label in range(4):
        assert fits(train[:, label], sizes / sizes.sum())


@pytest.mark.parametrize(
    "scheme", ["acid:3", "alid:3", "acid-random:3", "dirichlet-client:1", "dirichlet-prior:4"]
)
def test_where_classes_are_alike_sizes_are(scheme):
    """Four classes of 4,000 over four clients: about 4,000 each, binomial."""
    rng = np.random.default_rng(6)
    x = torch.from_numpy(rng.normal(size=(16_000, 2)).astype(np.float32))
    every = Examples(x, torch.arange(16_000) % 4)
    sizes = federate(Dataset("even", every, every, NAMES), scheme, clients=4, seed=1).sizes()
    assert sum(sizes.values()) == 16_000
    assert all(abs(n - 4000) < 5 * 3000**0.5 for n in sizes.values())


def test_acid_gives_k_classes():
    train, test = tables("acid:3", 8, 4)
    assert ((train > 0).sum(axis=1) == 3).all()
    assert not test[train == 0].any()


def test_sizes_are_proportions():
    train, test = tables("sizes:2x3000,1x6000,public=3000", 3, 0)
    assert fits(train.sum(axis=1), np.array([1, 1, 2]) / 4)
    assert abs(train.sum() - 24_000) < 5 * (30_000 * 0.2 * 0.8) ** 0.5  # the rest is public
    assert fits(test.sum(axis=1), np.array([1, 1, 2]) / 4)
    assert test.sum() == 10_000


@pytest.mark.parametrize("scheme", ["label:1", "dirichlet:0.5", "acid:2", "quantity:1"])
def test_another_seed_gives_another_split(scheme):
    assert not np.array_equal(*(tables(scheme, 4, seed)[0] for seed in (0, 1)))


def refused(scheme: str, rows: list, clients: int, seed: int = 0) -> str:
    data = Dataset("own", examples(rows), examples(rows), NAMES)
    with pytest.raises(BadInput) as caught:
        federate(data, scheme, clients=clients, seed=seed)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_would_need_counts_is_refused():
    rows = [(i, 0, 0) for i in range(40)]
    assert "public=rest: needs the number of records" in refused("sizes:2x9,public=rest", rows, 2)
    assert "another seed" in refused("dirichlet:1e-9", rows, 9)
    assert "clients = 50: must be at most 40" in refused("iid", rows, 50)
    assert re.search(
        r"split = 'label:1': client \d gets no training example: there is none of class [123],",
        refused("label:1", rows, 4),
    )


def attempt(*args, **kwargs) -> Split | str:
    """Return the split, or the line that refuses it."""
    try:
        return split(*args, **kwargs)
    except BadInput as refusal:
        return str(refusal)


@quick
@given(st.data(), st.integers(1, 12), st.integers(1, 25), st.text(max_size=12))
def test_any_text_gives_a_split_or_one_line(data, classes, clients, text):
    scheme = data.draw(st.sampled_from([*SCHEMES, ""])).partition(":")[0] + text
    scheme = data.draw(st.sampled_from([scheme, *WRITTEN.values(), "dirichlet:1e-300"]))
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    train, test = (rng.integers(0, classes, n) for n in (60, 20))
    places = (rng.random(60), rng.random(20))
    how = {"clients": clients, "classes": classes, "seed": 0, "places": places}
    found = attempt(scheme, train, test, **how)
    if isinstance(found, str):
        assert len(found.splitlines()) == 1
        return
    assert all(len(rows) for rows in found.train)
    public = [] if found.public is None else [found.public]
    for parts, most in (([*found.train, *public], 60), (found.test, 20)):
        rows = np.concatenate(parts)
        assert len(set(rows.tolist())) == len(rows) <= most


def test_published_splits_stay_as_they_are():
    """Public data sets are divided by counts, exactly: sizes that differ by one at most."""
    data = large()
    public = Dataset("p", data.train, data.test, NAMES, own=False)
    sizes = federate(public, "iid", clients=7, seed=0).sizes().values()
    assert max(sizes) - min(sizes) <= 1


def test_noise_on_inputs_is_that_of_the_scheme():
    """Variance s i / N for client i, drawn for each record by itself; copies have their own."""
    same = Examples(torch.zeros(20_000, 2), torch.zeros(20_000, dtype=torch.int64))
    two = federate(Dataset("z", same, same, ("a",)), "feature-noise:0.5", clients=2, seed=0)
    for client, variance in (("0", 0.25), ("1", 0.5)):
        x, _ = two.train(client).batch(slice(None))
        assert x.var().item() == pytest.approx(variance, rel=0.05)
        assert len({tuple(row) for row in x.tolist()}) == len(x)
    assert two.train("0").batch(slice(None))[0].equal(two.train("0").batch(slice(None))[0])
