"""Splits worked by hand, and every refusal."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import numpy as np
import pytest

from tacit.core.errors import BadInput
from tacit.data.splits import SCHEMES, SPLITS, clients_of, dirichlet, split
from tacit.data.splits.dealing import apportion
from tacit.data.splits.drawing import balanced_division, fill_empty
from tacit.data.splits.sizes import PRESETS

TEN = np.arange(100) % 10  # ten classes, ten examples each


def draw(scheme, train=TEN, test=TEN, clients=5, classes=10, seed=0):
    return split(scheme, train, test, clients=clients, classes=classes, seed=seed)


def sizes(parts):
    return [len(rows) for rows in parts]


def table(labels, parts, classes):
    """Count each client's examples of each class."""
    return np.stack([np.bincount(labels[rows], minlength=classes) for rows in parts])


def test_iid_sizes_differ_by_at_most_one():
    assert sizes(draw("iid", train=np.zeros(11, int), test=[], classes=1, clients=4).train) == [
        3,
        3,
        3,
        2,
    ]


def test_one_client_has_everything():
    for scheme in (
        "iid",
        "label:10",
        "dirichlet:0.1",
        "dirichlet-client:0.1",
        "quantity:0.1",
        "acid:10",
        "acid-random:10",
        "niid-label:10",
        "niid-dirichlet:0.1",
        "dirichlet-prior:0.1",
    ):
        result = draw(scheme, clients=1)
        assert result.train[0].tolist() == result.test[0].tolist() == list(range(100))


def test_label_one_with_as_many_clients_as_classes_gives_each_a_class():
    labels = np.array([0, 1, 2, 0, 1, 2])
    result = draw("label:1", train=labels, test=np.array([2, 1, 0]), clients=3, classes=3)
    assert sorted(rows.tolist() for rows in result.train) == [[0, 3], [1, 4], [2, 5]]
    for mine, tested in zip(result.train, result.test, strict=True):
        assert tested.tolist() == [2 - mine[0]]


def test_label_divides_a_class_evenly_among_its_holders():
    result = draw("label:2", clients=10)
    counts = table(TEN, result.train, 10)
    assert ((counts == 5).sum(axis=1) == 2).all()
    assert ((counts == 5).sum(axis=0) == 2).all()
    assert counts.sum() == 100


def test_label_with_too_few_clients_leaves_classes_out():
    result = draw("label:2", clients=2)
    assert sizes(result.train) == [20, 20]
    assert sum(sizes(result.test)) == 40


def test_label_skips_a_class_without_examples():
    result = draw(
        "label:2", train=np.array([0, 0, 2, 2]), test=np.array([0, 1, 2]), clients=2, classes=3
    )
    assert table(np.array([0, 0, 2, 2]), result.train, 3).tolist() == [[1, 0, 1], [1, 0, 1]]
    assert sorted(np.concatenate(result.test).tolist()) == [0, 2]


def test_label_pairs_vary():
    labels = np.arange(1000) % 10
    pairs = {
        tuple(np.unique(labels[rows])) for rows in draw("label:2", train=labels, clients=40).train
    }
    assert len(pairs) > 10


def test_tiny_beta_gives_a_class_to_one_client_and_no_client_nothing():
    counts = table(TEN, draw("dirichlet:1e-6", clients=20).train, 10)
    assert counts.sum() == 100
    assert counts.sum(axis=1).min() == 1
    # all but the single repaired examples
    assert (counts.max(axis=0) + (counts > 0).sum(axis=0) - 1 == 10).all()


def test_huge_beta_divides_each_class_evenly():
    labels = np.arange(4000) % 4
    for scheme in ("dirichlet:1e9", "dirichlet:inf", "quantity:inf"):
        counts = table(labels, draw(scheme, train=labels, test=[], clients=4, classes=4).train, 4)
        assert np.abs(counts.sum(axis=1) - 1000).max() <= 8
    assert np.abs(table(labels, draw("dirichlet:inf", labels, [], 4, 4).train, 4) - 250).max() <= 2


def test_dirichlet_client_with_tiny_beta_gives_one_class_each():
    counts = table(TEN, draw("dirichlet-client:1e-6", clients=10).train, 10)
    assert (np.sort(counts, axis=1) == [0] * 9 + [10]).all()


def test_quantity_keeps_the_classes_and_changes_the_sizes():
    labels = np.arange(10_000) % 2
    result = draw("quantity:0.5", train=labels, test=labels, clients=5, classes=2)
    assert max(sizes(result.train)) > 2 * min(sizes(result.train))
    assert all(abs(labels[rows].mean() - 0.5) < 0.1 for rows in result.train if len(rows) > 1000)


def test_empty_clients_are_filled_from_the_largest():
    counts = np.array([[5, 1], [0, 0], [0, 3], [0, 0]])
    assert fill_empty(counts).tolist() == [[3, 1], [1, 0], [0, 3], [1, 0]]


def test_acid_gives_equal_sizes_where_the_classes_allow_it():
    labels = np.arange(24) % 4
    counts = table(labels, draw("acid:2", train=labels, clients=4, classes=4, test=[]).train, 4)
    assert (np.sort(counts, axis=1) == [0, 0, 3, 3]).all()


def test_acid_is_limited_by_what_the_classes_have():
    labels = np.array([0] * 8 + [1] * 2)
    assert sorted(sizes(draw("acid:1", train=labels, clients=2, classes=2, test=[]).train)) == [
        2,
        5,
    ]


def test_acid_on_unequal_classes_starves_no_one():
    labels = np.repeat(np.arange(10), [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949])
    smallest = min(sizes(draw("acid:3", train=labels, clients=100, test=[]).train))
    assert 500 < smallest <= 600


def test_acid_gives_consecutive_classes_as_pfldyn_does():
    """Client c of PFLDyn's code has the classes (c + j) mod n, j < k, and 500 of 50,000."""
    labels = np.arange(50_000) % 10
    for scheme in ("acid:3", "alid:3"):
        counts = table(labels, draw(scheme, train=labels, test=[], clients=100).train, 10)
        for client in (0, 1, 8, 9, 42, 99):
            mine = [(client + j) % 10 for j in range(3)]
            assert np.flatnonzero(counts[client]).tolist() == sorted(mine)
        assert (counts.sum(axis=1) == 500).all()
        assert set(counts[counts > 0]) <= {165, 166, 167, 168}


def test_acid_random_stays_as_acid_was():
    """What acid:k did before it followed PFLDyn's lists: figures name it."""
    result = split("acid-random:1", [0, 1, 0, 1, 0, 1], [], clients=3, classes=2, seed=1)
    assert [rows.tolist() for rows in result.train] == [[0, 2], [3], [1, 5]]


def test_niid_label_gives_client_i_class_i_and_random_others():
    labels = np.arange(60_000) % 10
    seen = set()
    for seed in range(20):
        counts = table(labels, draw("niid-label:2", labels, [], 10, seed=seed).train, 10)
        held = counts > 0
        assert held[np.arange(10), np.arange(10)].all()
        assert (held.sum(axis=1) == 2).all()
        assert counts.sum() == 60_000
        for label in range(10):  # equal parts for the holders
            parts = counts[held[:, label], label]
            assert parts.max() - parts.min() <= 1
        seen |= set(held.sum(axis=0).tolist())
        assert counts.sum(axis=1).max() > 1.2 * counts.sum(axis=1).min()  # sizes are skewed
    assert {1, 2, 3, 4} <= seen


def test_niid_label_one_is_a_class_each():
    counts = table(TEN, draw("niid-label:1", clients=20).train, 10)
    assert counts.tolist() == np.tile(5 * np.eye(10, dtype=int), (2, 1)).tolist()


def test_niid_label_cuts_a_class_in_the_order_of_the_clients():
    """As numpy's array_split: 7 examples for 3 holders are 3, 2 and 2."""
    result = draw("niid-label:1", np.zeros(7, int), [], clients=3, classes=1)
    assert sizes(result.train) == [3, 2, 2]


class Told:
    """A generator whose draws from the Dirichlet law are told beforehand."""

    def __init__(self, *shares):
        self.shares = [np.array(s) for s in shares]

    def dirichlet(self, concentration, size):
        return self.shares.pop(0)[None]


def test_niid_dirichlet_balances_by_hand():
    """Two clients, classes of 10, 10 and 4: an even share is 12.

    Of class 0 client 0 gets 9; of class 1, as drawn, 8 more: 17, enough. So class 2 goes to client
    1 whole, although its draw would give it a fourth.
    """
    rng = Told([0.9, 0.1], [0.8, 0.2], [0.75, 0.25])
    counts = balanced_division(rng, 0.5, np.array([10, 10, 4]), 2)
    assert counts.tolist() == [[9, 8, 0], [1, 2, 4]]


def test_niid_dirichlet_gives_everybody_ten_and_nobody_two_even_shares():
    labels = np.arange(60_000) % 10
    for seed in range(5):
        had = sizes(draw("niid-dirichlet:0.05", labels, [], 10, seed=seed).train)
        assert sum(had) == 60_000
        assert min(had) >= 10
        assert max(had) < 6000 + 6000  # below an even share before the last class that it got


def test_dirichlet_prior_is_hsus_law():
    """Shares from Dir(beta p) have the variance p(1-p)/(beta+1)."""
    labels = np.arange(100_000) % 10
    drawn = draw("dirichlet-prior:1", labels, [], 400).train[:100]
    assert (table(labels, drawn, 10) / 250).var() == pytest.approx(0.1 * 0.9 / 2, rel=0.15)
    alike = draw("dirichlet-client:1", labels, [], 400).train[:100]  # Dir(1, ..., 1), so 10 + 1
    assert (table(labels, alike, 10) / 250).var() == pytest.approx(0.1 * 0.9 / 11, rel=0.15)


def test_alid_is_acid_with_permuted_classes():
    acid, alid = draw("acid:3"), draw("alid:3")
    assert all(map(np.array_equal, acid.train, alid.train))
    assert acid.relabel is None
    assert len({*alid.relabel}) == 5
    assert all(sorted(numbers) == list(range(10)) for numbers in alid.relabel)
    assert type(alid.relabel[0][0]) is int


def test_sizes_come_in_the_order_written():
    result = draw("sizes:1x30,2x5,public=20", clients=3)
    assert sizes(result.train) == [30, 5, 5]
    assert len(result.public) == 20
    assert draw("sizes:1x30,2x5", clients=3).public is None
    rest = draw("sizes:1x30,2x5,public=rest", clients=3).public
    assert len(rest) == 60
    assert not np.isin(
        rest, np.concatenate(draw("sizes:1x30,2x5,public=rest", clients=3).train)
    ).any()


@pytest.mark.parametrize(
    ("preset", "total", "clients", "public"),
    [("kd-mnist", 60_000, 53, 1000), ("kd-svhn", 73_257, 52, 1200)],
)
def test_presets_of_kd_dpfl(preset, total, clients, public):
    assert preset in PRESETS
    assert clients_of(f"sizes:{preset}", 10) == clients
    result = draw(f"sizes:{preset}", train=np.arange(total) % 10, clients=clients)
    assert len(result.public) == public
    assert sum(sizes(result.train)) == total - public


def test_clients_of_other_schemes_is_what_is_wanted():
    assert clients_of("label:2", 7) == 7


def test_feature_noise_is_iid_with_growing_noise():
    result = draw("feature-noise:0.4", clients=4)
    assert all(map(np.array_equal, result.train, draw("iid", clients=4).train))
    assert result.noise == pytest.approx(
        [math.sqrt(0.1), math.sqrt(0.2), math.sqrt(0.3), math.sqrt(0.4)]
    )
    assert draw("feature-noise:0", clients=2).noise == (0.0, 0.0)


def test_test_rows_follow_the_training_rows():
    train = np.array([0] * 9 + [1] * 6)
    result = draw("sizes:1x10,1x5", train=train, test=np.repeat([0, 1], 30), clients=2, classes=2)
    counts = table(train, result.train, 2)
    assert (
        table(np.repeat([0, 1], 30), result.test, 2).tolist()
        == np.rint(counts * 30 / [9, 6]).astype(int).tolist()
    )


def test_apportion_gives_the_rest_to_the_largest_remainders():
    rng = np.random.default_rng(0)
    assert apportion(rng, 5, np.array([3, 0, 3, 1])).tolist() == [2, 0, 2, 1]
    assert apportion(rng, 5, np.array([0, 0])).tolist() == [0, 0]
    assert apportion(rng, 1, np.array([1, 1, 1])).sum() == 1


def test_a_client_may_have_no_test_rows():
    assert sizes(draw("iid", test=[]).test) == [0] * 5


@pytest.mark.slow
def test_the_split_does_not_depend_on_hash_randomisation():
    code = """
from tacit.data.splits import split
result = split("alid:2", [0, 1, 2, 3] * 9, [0, 1, 2, 3], clients=4, classes=4, seed=3)
text = repr(([rows.tolist() for rows in result.train + result.test], result.relabel))
"""
    here: dict[str, str] = {}
    exec(code, here)
    env = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code + "import sys; sys.stdout.write(text)"]
    assert (
        subprocess.run(command, env=env, capture_output=True, check=True, text=True).stdout
        == here["text"]
    )


def test_splits_stay_as_they_are():
    """A published figure names its split by text and seed,
    so a change here breaks what others have written down.
    """
    result = split("label:1", [0, 1, 0, 1, 0, 1], [0, 1], clients=3, classes=2, seed=1)
    assert [rows.tolist() for rows in result.train] == [[3, 5], [0, 2, 4], [1]]


def test_every_scheme_has_a_line_of_help():
    assert {usage.partition(":")[0] for usage in SCHEMES} == set(SPLITS)
    assert all(text and "\n" not in text for text in SCHEMES.values())


LIKE = "must be like sizes:4x2500,49x1000,public=1000 (or public=rest), or kd-mnist or kd-svhn"
NAMES = (
    "acid, alid, acid-random, alid-random, dirichlet, dirichlet-client, niid-dirichlet, "
    "dirichlet-prior, feature-noise, iid, label, niid-label, quantity, sizes"
)


@pytest.mark.parametrize(
    ("scheme", "line"),
    [
        ("label:11", "split = 'label:11': k must be between 1 and 10 (there are 10 classes)"),
        ("acid:0", "split = 'acid:0': k must be between 1 and 10 (there are 10 classes)"),
        ("alid:-1", "split = 'alid:-1': k must be between 1 and 10 (there are 10 classes)"),
        ("label:2.5", "split = 'label:2.5': k must be a whole number"),
        ("label:\n2", r"split = 'label:\n2': k must be a whole number"),
        ("label", "split = 'label': the argument is missing, write label:k"),
        ("sizes:", "split = 'sizes:': the argument is missing, write sizes:SPEC"),
        ("iid:3", "split = 'iid:3': iid takes no argument"),
        ("iid:", "split = 'iid:': iid takes no argument"),
        ("dirichlet:0", "split = 'dirichlet:0': beta must be above 0"),
        ("dirichlet-client:-1", "split = 'dirichlet-client:-1': beta must be above 0"),
        ("quantity:nan", "split = 'quantity:nan': beta must be above 0"),
        ("dirichlet:small", "split = 'dirichlet:small': beta must be a number"),
        ("feature-noise:-0.1", "split = 'feature-noise:-0.1': s must be at least 0 and finite"),
        ("feature-noise:nan", "split = 'feature-noise:nan': s must be at least 0 and finite"),
        ("feature-noise:inf", "split = 'feature-noise:inf': s must be at least 0 and finite"),
        ("feature-noise:x", "split = 'feature-noise:x': s must be a number"),
        ("dirichelt:1", f"split = 'dirichelt': did you mean 'dirichlet'? Allowed: {NAMES}"),
        ("", f"split = '': allowed: {NAMES}"),
        ("sizes:4*5", f"split = 'sizes:4*5': {LIKE}"),
        ("sizes:5x0", f"split = 'sizes:5x0': {LIKE}"),
        ("sizes:public=rest", f"split = 'sizes:public=rest': {LIKE}"),
        ("sizes:5x1,public=0", f"split = 'sizes:5x1,public=0': {LIKE}"),
        ("sizes:5x21", "split = 'sizes:5x21': needs 105 training examples (there are 100)"),
        (
            "sizes:5x20,public=1",
            "split = 'sizes:5x20,public=1': needs 101 training examples (there are 100)",
        ),
        (
            "sizes:5x20,public=rest",
            "split = 'sizes:5x20,public=rest': needs 100 training examples and a public rest",
        ),
        ("sizes:3x2", "clients = 5: must be 3 (as split 'sizes:3x2' says)"),
        ("sizes:999999999x999999999", "clients = 5: must be 999999999 (as split"),
    ],
)
def test_refusals_of_the_scheme(scheme, line):
    with pytest.raises(BadInput) as refusal:
        draw(scheme)
    assert str(refusal.value).startswith(line)
    assert len(str(refusal.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"clients": 0}, "clients = 0: must be at least 1"),
        ({"clients": 101}, "clients = 101: must be at most 100 (there are 100 training examples)"),
        ({"train": []}, "clients = 5: must be at most 0 (there are 0 training examples)"),
        ({"classes": 0}, "classes = 0: must be at least 1"),
        ({"seed": -1}, "seed = -1: must be at least 0"),
        ({"classes": 9}, "train_labels[9] = 9: must be between 0 and 8"),
        ({"test": [0, -1]}, "test_labels[1] = -1: must be between 0 and 9"),
        ({"train": [0.5]}, "train_labels = float64 of shape (1,): must be a row of whole numbers"),
        ({"test": [[1]]}, "test_labels = int64 of shape (1, 1): must be a row of whole numbers"),
    ],
)
def test_refusals_of_the_rest(changed, line):
    with pytest.raises(BadInput) as refusal:
        draw("iid", **changed)
    assert str(refusal.value) == line


def test_refusal_of_a_law_that_never_gives_everybody_ten(monkeypatch):
    monkeypatch.setattr(dirichlet, "DRAWS", 20)
    line = r"^split = 'niid-dirichlet:1e-6': no draw gave every client 10 examples; take a larger"
    with pytest.raises(BadInput, match=line):  # a class goes to one client, and one has 5
        draw("niid-dirichlet:1e-6", [0] * 95 + [1] * 5, [], clients=2)


def test_refusal_of_clients_that_cannot_have_ten():
    line = r"^split = 'niid-dirichlet:1': 11 clients of at least 10 need 110 training examples \("
    with pytest.raises(BadInput, match=line):
        draw("niid-dirichlet:1", clients=11)


def test_refusal_of_k_counts_only_classes_that_have_examples():
    with pytest.raises(
        BadInput, match=r"^split = 'label:3': k must be between 1 and 2 \(2 of 3 have examples\)$"
    ):
        draw("label:3", train=[0, 0, 2, 2], test=[], clients=2, classes=3)


@pytest.mark.parametrize("name", ["label", "niid-label", "acid", "alid", "acid-random"])
def test_refusal_of_a_class_with_fewer_examples_than_holders(name):
    line = rf"^split = '{name}:2': class 1 has 2 examples for 3 clients that should hold it$"
    with pytest.raises(BadInput, match=line):
        draw(f"{name}:2", train=[0] * 9 + [1] * 2, test=[], clients=3, classes=2)
