"""What holds for every split, whatever the data, the scheme and the seed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from often import often

from tacit.core.errors import BadInput
from tacit.data.splits import SCHEMES, Split, clients_of, split

quick = often(80)
seeds = st.integers(0, 2**40)
betas = st.sampled_from(["1e-300", "1e-6", "0.05", "0.5", "1", "10", "1e6", "1e300", "inf"])


@st.composite
def labels(draw: st.DrawFn, classes: int, at_least: int = 0) -> np.ndarray:
    """Labels of a set in which any class may be missing."""
    counts = draw(st.lists(st.integers(0, 40), min_size=classes, max_size=classes))
    counts[draw(st.integers(0, classes - 1))] += at_least
    rows = np.repeat(np.arange(classes), counts)
    return np.random.default_rng(draw(st.integers(0, 9))).permutation(rows)


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int, int]:
    """Train labels, test labels, clients, classes."""
    classes = draw(st.integers(1, 12))
    train = draw(labels(classes, at_least=1))
    return train, draw(labels(classes)), draw(st.integers(1, min(len(train), 25))), classes


def holder_problem(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int, int, int]:
    """Draw a problem in which every present class has enough examples for any k."""
    classes, clients = draw(st.integers(1, 12)), draw(st.integers(1, 25))
    counts = np.array(
        draw(st.lists(st.sampled_from([0, 0, 7, 30]), min_size=classes, max_size=classes))
    )
    counts[0] = max(counts[0], 1)
    train = np.repeat(np.arange(classes), np.where(counts > 0, counts + clients, 0))
    k = draw(st.integers(1, int((counts > 0).sum())))
    return train, draw(labels(classes)), clients, classes, k


holder_problems = st.composite(holder_problem)()


def check(result: Split, train: np.ndarray, test: np.ndarray, clients: int) -> None:
    """Check what every scheme promises."""
    assert len(result.train) == len(result.test) == clients
    public = [] if result.public is None else [result.public]
    for parts, total in (([*result.train, *public], len(train)), (result.test, len(test))):
        rows = np.concatenate(parts)
        assert rows.dtype == np.int64
        assert len(np.unique(rows)) == len(rows)
        assert ((rows >= 0) & (rows < total)).all()
        assert all((np.diff(part) > 0).all() for part in parts)
    for mine, tested in zip(result.train, result.test, strict=True):
        assert len(mine) > 0
        assert set(test[tested]) <= set(train[mine])
    held = set(train[np.concatenate(result.train)])
    assert sum(map(len, result.test)) == np.isin(test, list(held)).sum()


def attempt(*args, **kwargs) -> Split | str:
    """Return the split, or the line that refuses it."""
    try:
        return split(*args, **kwargs)
    except BadInput as refusal:
        return str(refusal)


def same(one: Split, other: Split) -> bool:
    pairs = [*zip(one.train, other.train, strict=True), *zip(one.test, other.test, strict=True)]
    return all(np.array_equal(a, b) for a, b in pairs) and (one.relabel, one.noise) == (
        other.relabel,
        other.noise,
    )


@quick
@given(
    problems(),
    seeds,
    betas,
    st.sampled_from(
        ["iid", "dirichlet", "dirichlet-client", "dirichlet-prior", "quantity", "feature-noise"]
    ),
)
def test_schemes_that_use_every_row(problem, seed, beta, name):
    train, test, clients, classes = problem
    scheme = {"iid": "iid", "feature-noise": "feature-noise:0.1"}.get(name, f"{name}:{beta}")
    result = split(scheme, train, test, clients=clients, classes=classes, seed=seed)
    check(result, train, test, clients)
    sizes = [len(rows) for rows in result.train]
    assert sum(sizes) == len(train)
    if name in ("iid", "dirichlet-client", "dirichlet-prior", "feature-noise"):
        assert max(sizes) - min(sizes) <= 1
    assert (result.noise is not None) == (name == "feature-noise")
    assert result.relabel is None
    assert result.public is None
    assert same(result, split(scheme, train, test, clients=clients, classes=classes, seed=seed))


@quick
@given(holder_problems, seeds)
def test_label_gives_exactly_k_classes_divided_evenly(problem, seed):
    train, test, clients, classes, k = problem
    result = split(f"label:{k}", train, test, clients=clients, classes=classes, seed=seed)
    check(result, train, test, clients)
    counts = np.stack([np.bincount(train[rows], minlength=classes) for rows in result.train])
    present = np.unique(train)
    holders = (counts > 0).sum(axis=0)[present]
    assert ((counts > 0).sum(axis=1) == k).all()
    assert holders.max() - holders.min() <= 1
    for label in present[holders > 0]:
        shares = counts[counts[:, label] > 0, label]
        assert shares.max() - shares.min() <= 1
        assert shares.sum() == (train == label).sum()
    if clients * k >= len(present):
        assert counts.sum() == len(train)
    assert same(
        result, split(f"label:{k}", train, test, clients=clients, classes=classes, seed=seed)
    )


@quick
@given(holder_problems, seeds, st.sampled_from(["", "-random"]))
def test_acid_and_alid_give_exactly_k_classes_and_at_most_an_equal_share(problem, seed, law):
    train, test, clients, classes, k = problem
    how = {"clients": clients, "classes": classes, "seed": seed}
    acid = split(f"acid{law}:{k}", train, test, **how)
    alid = split(f"alid{law}:{k}", train, test, **how)
    check(acid, train, test, clients)
    held = [set(train[rows]) for rows in acid.train]
    used = np.concatenate(acid.train)
    for rows, mine in zip(acid.train, held, strict=True):
        assert len(mine) == k
        assert k <= len(rows) <= len(train) // clients
        if len(rows) < len(train) // clients:  # then nothing is left of its classes
            assert np.isin(train, list(mine)).sum() == np.isin(train[used], list(mine)).sum()
    assert acid.relabel is None
    assert len(alid.relabel) == clients
    assert all(sorted(numbers) == list(range(classes)) for numbers in alid.relabel)
    assert same(acid, Split(alid.train, alid.test))
    assert same(alid, split(f"alid{law}:{k}", train, test, **how))


@quick
@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 20)), min_size=1, max_size=4),
    st.sampled_from(["", ",public=7", ",public=rest"]),
    st.integers(7, 50),
    seeds,
)
def test_sizes_gives_what_is_written(groups, public, spare, seed):
    scheme = "sizes:" + ",".join(f"{many}x{size}" for many, size in groups) + public
    wanted = [size for many, size in groups for _ in range(many)]
    train = np.arange(sum(wanted) + spare) % 3
    result = split(scheme, train, train[:20], clients=clients_of(scheme, 1), classes=3, seed=seed)
    check(result, train, train[:20], len(wanted))
    assert [len(rows) for rows in result.train] == wanted
    size = None if result.public is None else len(result.public)
    assert size == {"": None, ",public=7": 7, ",public=rest": spare}[public]


@quick
@given(problems(), seeds, st.text(max_size=12), st.sampled_from([*SCHEMES, ""]))
def test_any_text_gives_a_split_or_one_line(problem, seed, text, usage):
    train, test, clients, classes = problem
    scheme = usage.partition(":")[0] + text
    result = attempt(scheme, train, test, clients=clients, classes=classes, seed=seed)
    if isinstance(result, Split):
        check(result, train, test, clients)
    else:
        assert len(result.splitlines()) == 1


HOLDERS = ["label", "niid-label", "acid", "alid", "acid-random"]


@quick
@given(problems(), seeds, st.integers(1, 12), st.sampled_from(HOLDERS))
def test_few_examples_give_exactly_k_classes_or_a_refusal(problem, seed, k, name):
    train, test, clients, classes = problem
    result = attempt(f"{name}:{k}", train, test, clients=clients, classes=classes, seed=seed)
    if isinstance(result, Split):
        check(result, train, test, clients)
        assert all(len(set(train[rows])) == k for rows in result.train)
    else:
        assert result.startswith(f"split = '{name}:{k}': ")


SEEDED = [
    "iid",
    "label:2",
    "dirichlet:0.5",
    "dirichlet-client:0.5",
    "quantity:1",
    "acid:3",
    "alid:3",
    "acid-random:3",
    "niid-label:3",
    "niid-dirichlet:0.5",
    "dirichlet-prior:4",
    "sizes:5x40",
]


@pytest.mark.parametrize("scheme", [*SEEDED, "feature-noise:1"])
def test_another_seed_gives_another_split(scheme):
    train, test = np.arange(600) % 10, np.arange(100) % 10
    one, other = (split(scheme, train, test, clients=5, classes=10, seed=seed) for seed in (1, 2))
    assert not same(one, other)
    assert not all(np.array_equal(a, b) for a, b in zip(one.test, other.test, strict=True))


LARGE = [
    "iid",
    "label:2",
    "dirichlet:1e-6",
    "dirichlet:0.1",
    "dirichlet-client:1e-6",
    "quantity:1e-6",
    "alid:5",
    "alid-random:5",
    "niid-label:2",
    "dirichlet-prior:1e-6",
]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("scheme", [*LARGE, "feature-noise:0.1", "sizes:5000x6,5000x5,public=rest"])
def test_ten_thousand_clients(scheme):
    train, test = np.arange(60_000) % 10, np.arange(10_000) % 10
    result = split(scheme, train, test, clients=10_000, classes=10, seed=0)
    assert min(map(len, result.train)) >= 1
    assert len(np.unique(np.concatenate(result.train))) == sum(map(len, result.train))
