"""Small cases worked by hand, random matrices, and what is refused."""

import itertools

import numpy as np
import pytest
import torch

from tacit.codec import pack, same
from tacit.compress import Compressor
from tacit.compress.binary import measure, rebuild
from tacit.compress.coherence import basis, coherence, explicit
from tacit.compress.rates import dynamic, weights
from tacit.core import BadInput, Params, params_of
from tacit.models import build


def up_to(n):
    return torch.arange(1.0, n + 1)


def test_ten_numbers_at_three_tenths():
    """floor(3) rows; 10 - 3 * 3 = 1 of them with 4 ones, the others with 3."""
    sums = measure(up_to(10), 0.3)
    assert sums.tolist() == [1 + 2 + 3 + 4, 5 + 6 + 7, 8 + 9 + 10]
    assert rebuild(sums, 10).tolist() == [2.5] * 4 + [6.0] * 3 + [9.0] * 3


def test_blocks_run_through_a_tensor_row_by_row():
    x = up_to(6).view(2, 3)
    assert measure(x, 0.5).tolist() == [3.0, 7.0, 11.0]
    assert measure(x.t(), 0.5).tolist() == [1 + 4, 2 + 5, 3 + 6]


def test_a_layer_too_small_for_two_lengths_is_still_tiled():
    """5 numbers at 0.3: one row, and 5 > 4 = floor(1/0.3) + 1.

    Algorithm 3 would leave the last number out.
    """
    assert measure(up_to(5), 0.3).tolist() == [15.0]
    assert measure(up_to(4), 0.4).tolist() == [10.0]
    assert measure(up_to(7), 0.4).tolist() == [1 + 2 + 3 + 4, 5 + 6 + 7]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_layer_with_fewer_numbers_than_a_row_needs_gets_one_row(n):
    assert measure(up_to(n), 0.3).tolist() == [n * (n + 1) / 2]
    assert rebuild(measure(up_to(n), 0.3), n).tolist() == [(n + 1) / 2] * n


def test_rate_one_changes_nothing():
    x = torch.randn(37, generator=torch.Generator().manual_seed(1))
    assert torch.equal(measure(x, 1.0), x)
    assert torch.equal(rebuild(x, 37), x)


@pytest.mark.parametrize("word", ["binary:1", "gaussian:1", "bernoulli:1.0"])
def test_rate_one_changes_nothing_whatever_the_matrix(word):
    x = Params(
        a=torch.randn(20, 30, generator=torch.Generator().manual_seed(1)),
        b=up_to(7),
        c=torch.tensor([2.5]),
    )
    c = Compressor.of(word)
    small = c.compress(x, c.rates(x))
    assert small.size() == x.size()
    assert same(c.expand(small, x, c.rates(x)), x)


@pytest.mark.parametrize(
    "word", ["binary:dynamic", "binary:0.1", "gaussian:0.3", "bernoulli:dynamic"]
)
def test_nothing_comes_of_nothing(word):
    zero = Params(a=torch.zeros(3, 5), b=torch.zeros(600))
    c = Compressor.of(word)
    rates = c.rates(zero)
    back = c.expand(c.compress(zero, rates), zero, rates)
    assert back.norm() == 0
    if "dynamic" in word:
        assert rates == {"a": 0.5, "b": 0.5}


def layers(**norms):
    return Params({k: torch.tensor([v]) for k, v in norms.items()})


def test_dynamic_rates_by_hand():
    """Norms 1, 3, 5, 11 of 20 in all: shares 0.05, 0.15, 0.25, 0.55, so

    0.05 < r_min: round(0.5 - 0.05, 1) = round(0.45, 1) = 0.5, as Python rounds the float next to
    0.45; 0.15 < r_min: round(0.5 - 0.15, 1) = round(0.35, 1) = 0.3 likewise; 0.25: round(0.25, 1) =
    0.2; 0.55: r_max.
    """
    w = layers(a=1.0, b=3.0, c=5.0, d=11.0)
    assert weights(w) == {"a": 0.05, "b": 0.15, "c": 0.25, "d": 0.55}
    assert dynamic(w, 0.5, 0.2) == {"a": 0.5, "b": 0.3, "c": 0.2, "d": 0.5}


def test_a_rate_that_rounds_to_nothing_is_a_tenth():
    assert dynamic(layers(a=0.24, b=0.76), 0.25, 0.25)["a"] == 0.1


def test_what_is_sent_is_small():
    """CUAG-PFL's CNN in the first round: the packed bytes shrink as the numbers do."""
    x = params_of(build("cuag-cnn", (3, 32, 32), 10, 0))
    assert x.size() == 797_962
    c = Compressor.of("binary:dynamic")
    small = c.compress(x, c.rates(x))
    assert small.size() / x.size() == pytest.approx(len(pack(small)) / len(pack(x)), abs=1e-3)
    assert 0.25 < small.size() / x.size() < 0.5
    assert Compressor.of("none").compress(x, {}) is x


@pytest.mark.parametrize("kind", ["gaussian", "bernoulli"])
def test_sums_of_few_cosines_come_back_from_random_measurements(kind):
    """Ten cosines in each block of 512, from 153 measurements: exactly.

    Also from a shorter last block.
    """
    rng = np.random.default_rng(0)
    blocks = []
    for n, few in ((512, 10), (512, 10), (100, 2)):
        coefficients = np.zeros(n)
        coefficients[rng.choice(n, few, replace=False)] = rng.normal(size=few) + 3
        blocks.append(basis("dct", n) @ coefficients)
    p = Params(w=torch.from_numpy(np.concatenate(blocks)).view(4, -1))
    c = Compressor.of(f"{kind}:0.3")
    small = c.compress(p, c.rates(p))
    assert small["w"].numel() == 2 * 153 + 30
    torch.testing.assert_close(c.expand(small, p, c.rates(p))["w"], p["w"], atol=1e-6, rtol=1e-6)


def test_random_matrices_are_the_same_at_both_ends_and_unlike_each_other():
    a, b = (explicit(kind, 100, 0.3) for kind in ("gaussian", "bernoulli"))
    assert a.shape == b.shape == (30, 100)
    assert set(np.unique(np.round(np.abs(b) * np.sqrt(30), 9))) == {1.0}
    assert np.linalg.norm(a, axis=0).mean() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("kind", ["dct", "dft"])
def test_coherence_is_as_in_figure_3(kind):
    """The binary matrix' falls with the rate, to 2 and less from 0.5 on,
    where the random ones' are twice as high.
    """
    psi = basis(kind, 512)
    np.testing.assert_allclose(psi.conj().T @ psi, np.eye(512), atol=1e-9)
    binary, gaussian, bernoulli = (
        [coherence(explicit(matrix, 512, k / 10), psi) for k in range(1, 10)]
        for matrix in ("binary", "gaussian", "bernoulli")
    )
    assert all(a >= b - 1e-9 for a, b in itertools.pairwise(binary))
    assert max(binary[4:]) <= 2 + 1e-9
    assert min(gaussian[4:] + bernoulli[4:]) >= 2 * min(binary[4:])
    assert all(1 <= v <= 512**0.5 for v in binary + gaussian + bernoulli)


@pytest.mark.parametrize(
    ("word", "says"),
    [
        (
            "binary",
            "compress = 'binary': must be none, or one of binary, gaussian, bernoulli with a rate",
        ),
        ("binary:", "compress = 'binary:': must be none"),
        ("binary:half", "such as binary:dynamic or binary:0.3"),
        ("binary:0", "rate of compress = 'binary:0' = 0.0: must be above 0 and at most 1"),
        ("binary:1.5", "must be above 0 and at most 1"),
        ("binary:nan", "must be above 0 and at most 1"),
        ("binay:0.5", "compress = 'binay:0.5': must be none"),
        ("none:0.5", "compress = 'none:0.5': must be none"),
        ("", "compress = '': must be none"),
    ],
)
def test_wrong_words_are_refused_in_one_line(word, says):
    with pytest.raises(BadInput) as e:
        Compressor.of(word)
    assert says in str(e.value)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("r_max", "r_min"), [(0.0, 0.2), (1.1, 0.2), (0.2, 0.5), (0.5, 0.0), (float("nan"), 0.2)]
)
def test_wrong_bounds_are_refused(r_max, r_min):
    with pytest.raises(BadInput, match="must be"):
        Compressor.of("binary:dynamic", r_max, r_min)
