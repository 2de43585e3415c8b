"""What never builds a matrix equals the matrix, for all sizes and rates."""

import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from often import often

from tacit.compress import Compressor
from tacit.compress.binary import measure, rebuild, rows_for
from tacit.compress.coherence import explicit
from tacit.compress.rates import dynamic, weights
from tacit.core import Params

sizes = st.integers(1, 300)
tenths = st.integers(1, 10).map(lambda k: k / 10)
rates = st.one_of(tenths, st.floats(0.01, 1.0))
many = often(200)


def numbers(n, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=n))


def algorithm_3(n, r):
    """The matrix line by line as the paper has it, in exact arithmetic.

    None where its rows do not tile the columns.
    """
    rows, z = int(r * n), int(1 / r)
    count = n - z * rows
    if rows == 0 or count > rows:
        return None
    phi = np.zeros((rows, n))
    for j in range(count):
        phi[j, j * (z + 1) : (j + 1) * (z + 1)] = 1
    for j in range(count, rows):
        phi[j, n - z * rows + j * z : n - z * rows + (j + 1) * z] = 1
    return phi


@given(sizes, rates)
@many
def test_measuring_is_the_product_with_the_papers_matrix(n, rate):
    x = numbers(n)
    got = measure(x, rate).numpy()
    phi = algorithm_3(n, Fraction(repr(rate)))
    if phi is not None:
        assert (phi.sum(0) == 1).all()
        np.testing.assert_array_equal(phi, explicit("binary", n, rate))
    np.testing.assert_allclose(got, explicit("binary", n, rate) @ x.numpy(), atol=1e-12)


def test_the_papers_matrix_exists_for_every_layer_of_a_real_network():
    """CUAG-PFL's CNN on CIFAR-10.

    The layers that are too small for Algorithm 3 are smaller than its smallest.
    """
    for n in (4800, 64, 102400, 614400, 384, 73728, 192, 1920, 10):
        for r in (Fraction(k, 10) for k in range(1, 11)):
            rows, z = int(r * n), int(1 / r)
            assert 0 <= n - z * rows <= rows


@given(st.integers(1, 60), rates)
@many
def test_rebuilding_is_the_pseudo_inverse(n, rate):
    y = numbers(rows_for(n, rate), 1)
    want = np.linalg.pinv(explicit("binary", n, rate)) @ y.numpy()
    np.testing.assert_allclose(rebuild(y, n).numpy(), want, atol=1e-12)


@given(sizes, rates)
@many
def test_rebuilt_numbers_measure_the_same_and_are_the_shortest_that_do(n, rate):
    x = numbers(n)
    back = rebuild(measure(x, rate), n)
    torch.testing.assert_close(measure(back, rate), measure(x, rate))
    assert back.norm() <= x.norm() * (1 + 1e-12)


@given(st.integers(1, 10**7), tenths)
@many
def test_rows_are_counted_exactly(n, rate):
    assert rows_for(n, rate) == max(1, round(rate * 10) * n // 10)


@given(st.lists(st.floats(0, 10), min_size=1, max_size=8), st.integers(1, 10), st.integers(1, 10))
@many
def test_dynamic_rates_are_tenths_between_bounds(norms, a, b):
    r_min, r_max = sorted((a / 10, b / 10))
    w = Params({str(i): torch.tensor([v]) for i, v in enumerate(norms)})
    got = dynamic(w, r_max, r_min)
    for layer, weight in weights(w).items():
        assert got[layer] == pytest.approx(round(got[layer], 1))
        assert 0.1 <= got[layer] <= r_max
        if r_min <= weight and 0.1 <= round(weight, 1) < r_max:
            assert got[layer] == round(weight, 1)
        if weight >= r_max + 0.05:
            assert got[layer] == r_max


@given(
    st.sampled_from(["none", "binary:dynamic", "binary:0.3", "gaussian:0.4", "bernoulli:dynamic"]),
    st.booleans(),
)
@often(20)
def test_compression_is_linear_and_keeps_the_mark(word, released):
    c = Compressor.of(word)
    x, y = (
        Params(a=numbers((5, 40), s), b=numbers(700, s + 1), c=numbers(2, s + 2)) for s in (0, 10)
    )
    rates = c.rates(x)
    small = c.compress(x.as_released(released), rates)
    both = c.compress(x + 2.0 * y, rates)
    for k in x:
        torch.testing.assert_close(both[k], small[k] + 2.0 * c.compress(y, rates)[k])
    back = c.expand(small, x, rates)
    assert small.released is released
    assert back.released is released
    assert {k: v.shape for k, v in back.items()} == {k: v.shape for k, v in x.items()}


LARGE = """
import resource, time, torch
from tacit.compress.binary import measure, rebuild
torch.set_num_threads(1)
n = 15_000_000
x = torch.ones(n)
measure(x[:1000], 0.3)
took = []
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for rate in (0.1, 0.3, 0.3, 0.5, 1.0):
    start = time.process_time()
    y = measure(x, rate)
    took.append(time.process_time() - start)
    del y
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(max(took), grown * 1024 / (4 * n))
"""


@pytest.mark.slow
def test_fifteen_million_numbers_are_measured_in_time_and_memory():
    """VGG-16 has as many.

    0.3 s of one core, and at most one more copy, which a rate of 1 needs for its result.
    """
    done = subprocess.run([sys.executable, "-c", LARGE], capture_output=True, text=True, check=True)
    seconds, copies = map(float, done.stdout.split())
    assert seconds < 0.3
    assert copies < 1.05
